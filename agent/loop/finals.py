"""What the tasks of a run have found is measured again, in fresh processes, before it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.console import count
from evaluator.replay import Composition
from evaluator.timing import PROCESSES, remeasured
from knowledge_base.records import Trial
from knowledge_base.snf.task import Task

from .compose import WHOLE, Composed, assembled, composition
from .conclude import keep
from .context import RunContext
from .summary import TaskResult
from .task_work import TaskWork


def finals(
    context: RunContext, works: Sequence[TaskWork], results: Sequence[TaskResult], composed: Composed | None
) -> tuple[list[TaskResult], Composed | None]:
    """The results, in the order of ``works``, and the composition with times of fresh processes, if there is a GPU.

    A kernel that is not right in one of those is no winner: its task has none then, and there is no composition.
    """
    if context.runner is None:
        return list(results), composed
    kernels = [(trial, work.task) for work in works for trial in work.winners if not _measured(trial)]
    wanted = [(trial, _compiled(context, trial, task)) for trial, task in kernels]
    if composed is not None:
        composed = replace(composed, trial=_known(context, composed))
        if not _measured(composed.trial):
            parts = (composed.decomposition, composed.serving, context.plans, context.chip)
            wanted.append((composed.trial, composition(*parts)))
    if not wanted:
        return list(results), composed
    what = [count(len(kernels), "kernel")] if kernels else []
    what += [WHOLE] if len(wanted) > len(kernels) else []
    context.progress.say(f"measuring {' and '.join(what)} in fresh processes")
    again = remeasured(
        wanted, context.runner, context.seed,
        lambda now: context.progress.step(WHOLE, 0.05, 1.0, f"measuring, {now}"),
    )  # fmt: skip
    new: dict[str, Trial] = {trial.key: trial for trial in again}
    context.store.record([new[trial.key] for trial, _ in kernels], run=context.run, move="final")
    results = [_with_times(context, work, result, new) for work, result in zip(works, results, strict=True)]
    if composed is None or not all(result.correct for result in results):
        return results, None
    return results, replace(composed, trial=new.get(composed.trial.key, composed.trial))


def _compiled(context: RunContext, trial: Trial, task: Task) -> Composition:
    plan = context.plans.of(trial)[0]
    return Composition.of_task(task, plan, assembled([plan], context.chip))


def _known(context: RunContext, composed: Composed) -> Trial:
    """The composition with the time that an earlier run measured for it, if one did."""
    trial = composed.trial
    place = (composed.whole.identity, trial.candidate.digest, trial.chip, trial.shape, trial.evaluator)
    before = [one for one in context.store.of_candidate(*place) if one.key == trial.key and _measured(one)]
    return trial.fuller(measurements=before[0].measurements) if before else trial


def _measured(trial: Trial) -> bool:
    time = trial.timed("measured")
    return time is not None and time.processes >= PROCESSES


def _with_times(context: RunContext, work: TaskWork, result: TaskResult, new: dict[str, Trial]) -> TaskResult:
    if work.general is not None:
        work.general = new.get(work.general.key, work.general)
    if work.special is not None:
        work.special = new.get(work.special.key, work.special)
    wrong = next((trial for trial in work.winners if not trial.correct), None)
    if wrong is not None and wrong.verdict is not None:
        message = wrong.verdict.message
        return replace(result, status=wrong.status, message=message, trial=None, time=None, folder="")
    for trial in work.winners:
        if trial.key in new:
            keep(context, work.task, trial)
    if result.trial is None:
        return result
    winner = new.get(result.trial.key, result.trial)
    return replace(result, trial=winner, time=work.time(winner))
