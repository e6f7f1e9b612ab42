"""The target, made of its tasks' winners, judged whole and recorded like a candidate of its own.

Its "source" is the list of calls with the kernels that serve them, so the same composition is the same candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.plans import Plans
from evaluator.replay import Composition, cubins_of
from kernels_generated.runtime import Launchable
from knowledge_base.chips import Chip
from knowledge_base.content import canonical, content_key
from knowledge_base.records import COMPOSITION, Candidate, Measurement, Trial, Verdict
from knowledge_base.snf.printer import show
from knowledge_base.snf.task import Decomposition, Task

from .context import RunContext

WHOLE = "the whole target"


@dataclass(frozen=True)
class Composed:
    """``trial``: of the composition.  whole: the target as a task.

    winners: for each call one or more, as :func:`begun` has them.
    """

    whole: Task
    trial: Trial
    decomposition: Decomposition
    winners: tuple[tuple[Trial, ...], ...]

    @property
    def serving(self) -> list[Trial]:
        """The winner for each call that serves it at its own sizes."""
        return [fastest for fastest, *_ in self.winners]


def begun(
    context: RunContext,
    target: str,
    decomposition: Decomposition,
    winners: Sequence[Sequence[Trial]],
    time: Measurement | None,
) -> Composed:
    """The composition, not yet judged.  ``time``: of all calls together, where nothing will measure it as a whole.

    winners: for each call the fastest at its sizes; where that one refuses others, behind it one that serves them all.
    """
    graph = decomposition.graph
    whole = Task(target.replace("-", "_"), content_key("target", show(graph)), graph, graph.precision)
    calls = [
        {"task": call.task.name, "kernels": [[w.candidate.digest, w.configuration] for w in chosen]}
        for call, chosen in zip(decomposition.calls, winners, strict=True)
    ]
    candidate = Candidate(
        source=canonical({"plan": decomposition.plan, "calls": calls}),
        task=whole.identity,
        proposer=COMPOSITION,
        note=f"{len(calls)} calls of {len({w.candidate.digest for w, *_ in winners})} kernels",
    )
    trial = Trial(
        candidate=candidate,
        configuration={"plan": decomposition.plan},
        chip=context.chip.name,
        shape=graph.sizes,
        evaluator=context.evaluator,
        measurements=() if time is None else (time,),
    )
    return Composed(whole, trial, decomposition, tuple(map(tuple, winners)))


def compose(context: RunContext, composed: Composed) -> Trial:
    """Judges the target at sizes of its own; its trial.  One that a GPU has rejected stays so."""
    context.check_time()
    context.progress.step(WHOLE, 0.1, 1.0, "judging")
    trial = composed.trial
    if trial.verdict is None:
        # Of several that serve all sizes of a task the first call's; those for some sizes are told by their guards.
        winners: dict[str, list[Trial]] = {}
        for call, (*fastest, general) in zip(composed.decomposition.calls, composed.winners, strict=True):
            known = winners.setdefault(call.task.identity, [general])
            known[-1:-1] = [trial for trial in fastest if trial not in known]
        asked = (composed.decomposition, winners, context.plans, context.chip, context.seed)
        trial = context.judges.judge_composed(trial, *asked)
    context.store.record_tasks([composed.whole])
    context.store.record([trial], run=context.run, move="compose")
    verdict = trial.verdict
    assert verdict is not None
    context.progress.end(WHOLE, verdict.correct, verdict.status.value)
    context.folder.log(f"{WHOLE}: {verdict.status.value} {verdict.message}")
    return trial


def composition(decomposition: Decomposition, serving: Sequence[Trial], plans: Plans, chip: Chip) -> Composition:
    """What runs where each call has its winner, in the plan that this is timed in."""
    chosen = [plans.of(winner)[0] for winner in serving]
    return Composition.of_target(decomposition, chosen, assembled(chosen, chip))


def assembled(plans: Sequence[Launchable], chip: Chip) -> dict[str, bytes]:
    """The cubins of plans that have a time, by hash: the assembler has taken their kernels before."""
    cubins = cubins_of(plans, chip)
    assert not isinstance(cubins, Verdict), cubins
    return cubins
