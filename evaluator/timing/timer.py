"""What gives a trial its time: a model, a table of times that are known, a clock on a card.

A search, a ranking and a run compare times of one kind alone: their timer's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from evaluator.plans import Plans
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import chip
from knowledge_base.content import content_key
from knowledge_base.records import Kind, Measurement, Trial
from knowledge_base.snf.task import Task

from .model import modelled


class Timer(Protocol):
    """Gives trials times of one kind."""

    @property
    def kind(self) -> Kind:
        """The kind of every time it gives."""

    def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement | None:
        """The time of a compiled trial of ``task`` at the trial's shape on its chip, in ``plan``, its first one.

        None where it has none to give: no block fits an SM, no such time is known.
        """


class Modelled:
    """The modelled time, from the plan, its Tile IR and the evidence of its cubins (:mod:`.model`)."""

    kind: Kind = "modelled"

    def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement | None:
        evidence = {e.kernel: e for e in trial.evidence}
        answer = modelled(task, trial.shape, plan.plan, plan.kernels, evidence, chip(trial.chip))
        return answer if math.isfinite(answer.us) else None


MODEL = Modelled()


class Known:
    """Times that are known already: a candidate's rows in a table, for experiments on measured spaces and for tests.

    ``trials``: those with times; which version of the evaluator recorded them makes no difference.
    """

    def __init__(self, trials: Iterable[Trial], kind: Kind = "measured") -> None:
        self.kind: Kind = kind
        self._times: dict[str, Measurement] = {}
        for trial in trials:
            time = trial.timed(kind)
            if time is not None:
                key = _place(trial)
                self._times[key] = min(self._times.get(key, time), time)

    def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement | None:
        return self._times.get(_place(trial))


def timed(trial: Trial, task: Task, plans: Plans, timer: Timer = MODEL) -> Trial:
    """The trial with the timer's time, where its plan is at hand and there is one."""
    found = plans.of(trial)
    time = timer.time(trial, task, found[0]) if found else None
    return trial if time is None else trial.fuller(measurements=(*trial.measurements, time))


def _place(trial: Trial) -> str:
    """What a time is of: candidate × configuration × chip × shape."""
    return content_key("time", trial.task, trial.candidate.digest, trial.configuration, trial.chip, trial.shape)
