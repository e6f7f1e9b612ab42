"""What the tasks of a run have found is measured again, in fresh processes, before it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.console import count
from evaluator.timing import PROCESSES, remeasured
from knowledge_base.records import Trial

from .compose import LABEL
from .conclude import keep
from .context import RunContext
from .summary import TaskResult
from .task_work import TaskWork


def finals(context: RunContext, works: Sequence[TaskWork], results: Sequence[TaskResult]) -> list[TaskResult]:
    """The results with times of fresh processes, where the run has a GPU; in the order of ``works``.

    A kernel that is not right in one of those is no winner: its task has none then.
    """
    if context.runner is None:
        return list(results)
    wanted = [(work, trial) for work in works for trial in work.winners if not _measured(trial)]
    if not wanted:
        return list(results)
    kernels = count(len(wanted), "kernel")
    context.progress.say(f"measuring {kernels} in fresh processes")
    again = remeasured(
        [(trial, work.task) for work, trial in wanted], context.plans, context.runner, context.seed,
        lambda now: context.progress.step(LABEL, 0.05, 1.0, f"measuring, {now}"),
    )  # fmt: skip
    new: dict[str, Trial] = {trial.key: trial for trial in again}
    context.store.record(again, run=context.run, move="final")
    return [_with_times(context, work, result, new) for work, result in zip(works, results, strict=True)]


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
