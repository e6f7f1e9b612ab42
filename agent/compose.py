"""The target, made of its tasks' winners, judged whole and recorded like a candidate of its own.

Its "source" is the list of calls with the kernels that serve them, so the same composition is the same candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from knowledge_base.content import canonical, content_key
from knowledge_base.records import Candidate, Measurement
from knowledge_base.snf.task import Decomposition, Task
from knowledge_base.store import Evaluation

from .context import Context, Judged
from .summary import TaskResult

if TYPE_CHECKING:
    from evaluator.composed import Winner
    from evaluator.judge import Judgement
    from evaluator.oracle import Oracle
    from knowledge_base.chips import Chip

LABEL = "the whole target"


def compose(
    context: Context,
    target: str,
    decomposition: Decomposition,
    winners: Mapping[str, Judged],
    results: Sequence[TaskResult],
) -> dict[str, Any]:
    """Judges the target at sizes of its own; the verdict's status, message and numbers.

    ``winners``: a general one per task identity.
    """
    from evaluator.composed import Winner

    context.check_time()
    context.progress.step(LABEL, 0.1, 1.0, "judging")
    given = {
        identity: Winner(j.known.candidate.source, dict(j.known.evaluation.configuration), j.plans)
        for identity, j in winners.items()
    }
    judgement: Judgement = context.judges.call(_judge, decomposition, given, context.chip, context.seed)
    _record(context, target, decomposition, winners, judgement, results)
    verdict = judgement.verdict
    context.progress.end(LABEL, verdict.correct, verdict.status.value)
    context.folder.log(f"{LABEL}: {verdict.status.value} {verdict.message}")
    return {
        "status": verdict.status.value,
        "message": verdict.message,
        "numbers": verdict.numbers,
        "sizes": [dict(at) for at in judgement.sizes],
        "seconds": round(judgement.seconds, 3),
    }


def _judge(
    decomposition: Decomposition, winners: dict[str, Winner], chip: Chip, seed: int, oracle: Oracle
) -> Judgement:
    """Runs in a judge process."""
    from evaluator.composed import judge_composed

    return judge_composed(decomposition, winners, chip, seed=seed, oracle=oracle)


def _record(
    context: Context,
    target: str,
    decomposition: Decomposition,
    winners: Mapping[str, Judged],
    judgement: Judgement,
    results: Sequence[TaskResult],
) -> None:
    from knowledge_base.snf.printer import show

    graph = decomposition.graph
    name = target.replace("-", "_")
    whole = Task(name, content_key("target", show(graph)), graph, graph.precision)
    calls = [
        {
            "task": call.task.name,
            "kernel": winners[call.task.identity].known.candidate.digest,
            "configuration": winners[call.task.identity].known.evaluation.configuration,
        }
        for call in decomposition.calls
    ]
    candidate = Candidate(
        source=canonical({"plan": decomposition.plan, "calls": calls}),
        task=whole.identity,
        proposer="composition",
        note=f"{len(calls)} calls of {len(winners)} kernels",
    )
    times = [(r.us, r.floor_us, r.calls) for r in results if r.us is not None and r.floor_us is not None]
    total = Measurement(
        kind="modelled",
        chip=context.chip.name,
        us=round(sum(us * count for us, _, count in times), 3),
        floor_us=round(sum(floor * count for _, floor, count in times), 3),
    )
    evaluation = Evaluation(
        task=whole.identity,
        candidate=candidate.digest,
        configuration={"plan": decomposition.plan},
        chip=context.chip.name,
        shape=graph.sizes,
        evaluator=context.evaluator,
        verdict=judgement.verdict,
        measurements=(total,),
        seed=judgement.seed,
        seconds=judgement.seconds,
    )
    context.store.record_tasks([whole])
    context.store.record(candidate, [evaluation], run=context.run, move="compose")
