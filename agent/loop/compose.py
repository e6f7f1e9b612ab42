"""The target, made of its tasks' winners, judged whole and recorded like a candidate of its own.

Its "source" is the list of calls with the kernels that serve them, so the same composition is the same candidate.
"""

from __future__ import annotations

from collections.abc import Mapping

from knowledge_base.content import canonical, content_key
from knowledge_base.records import Candidate, Measurement, Trial
from knowledge_base.snf.printer import show
from knowledge_base.snf.task import Decomposition, Task

from .context import RunContext

LABEL = "the whole target"


def compose(
    context: RunContext,
    target: str,
    decomposition: Decomposition,
    winners: Mapping[str, Trial],
    time: Measurement,
) -> Trial:
    """Judges the target at sizes of its own; its trial.

    ``winners``: a general one per task identity.  ``time``: of all calls together.
    """
    context.check_time()
    context.progress.step(LABEL, 0.1, 1.0, "judging")
    whole, trial = _trial(context, target, decomposition, winners, time)
    judges, plans = context.judges, context.plans
    trial = judges.judge_composed(trial, decomposition, winners, plans, context.chip, context.seed)
    context.store.record_tasks([whole])
    context.store.record([trial], run=context.run, move="compose")
    verdict = trial.verdict
    assert verdict is not None
    context.progress.end(LABEL, verdict.correct, verdict.status.value)
    context.folder.log(f"{LABEL}: {verdict.status.value} {verdict.message}")
    return trial


def _trial(
    context: RunContext,
    target: str,
    decomposition: Decomposition,
    winners: Mapping[str, Trial],
    time: Measurement,
) -> tuple[Task, Trial]:
    """The whole target as a task, and the composition as a trial of it."""
    graph = decomposition.graph
    name = target.replace("-", "_")
    whole = Task(name, content_key("target", show(graph)), graph, graph.precision)
    calls = [
        {
            "task": call.task.name,
            "kernel": winners[call.task.identity].candidate.digest,
            "configuration": winners[call.task.identity].configuration,
        }
        for call in decomposition.calls
    ]
    candidate = Candidate(
        source=canonical({"plan": decomposition.plan, "calls": calls}),
        task=whole.identity,
        proposer="composition",
        note=f"{len(calls)} calls of {len(winners)} kernels",
    )
    trial = Trial(
        candidate=candidate,
        configuration={"plan": decomposition.plan},
        chip=context.chip.name,
        shape=graph.sizes,
        evaluator=context.evaluator,
        measurements=(time,),
    )
    return whole, trial
