"""The time that a GPU's clock gives: the timer of runs with a card.

The samples of :class:`Measured` come from one process, its runner's: they rank configurations.  Samples of several
processes are put together by :func:`measured`.  docs/measuring.md has the method.
"""

from __future__ import annotations

import os

from evaluator.replay import AnyRunner, Composition, cubins_of
from kernels_generated.runtime import Launchable
from knowledge_base.chips import Chip, chip
from knowledge_base.records import PACKING, TOO_FAST, Kind, Measurement, Trial, Verdict
from knowledge_base.snf.task import Task

from .intervals import Samples, median
from .model import floor_us

ROUNDS = 2  # there and back, for one look: 16 samples
LOOKS = 3  # at a time whose interval is too wide; then it is unstable
UNSTABLE = 0.05  # an interval wider than this, ÷ the time
QUESTION_S = 60.0  # after which a runner is ended: a thousand samples of honest kernels take less


class Measured:
    """The time on the runner's card, of samples whose results were right before and after.

    ``seed``: of the inputs; default: from the operating system.
    """

    kind: Kind = "measured"

    def __init__(self, runner: AnyRunner, seed: int | None = None) -> None:
        self._runner = runner
        self._seed = int.from_bytes(os.urandom(6)) if seed is None else seed

    def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement | None:
        """Raises Rejected where a result is wrong on the card, or the kernel faults or hangs there.

        None where the assembler has no cubin for the chip.
        """
        on = chip(trial.chip)
        cubins = cubins_of([plan], on)
        if isinstance(cubins, Verdict):
            return None
        samples: list[float] = []
        composition = Composition.of_task(task, plan, cubins)
        packing = look_at_packing(self._runner, composition, on, self._seed)
        for _ in range(LOOKS):
            samples += look(self._runner, composition, on, self._seed)
            found = measured([samples], task, trial.shape, on, [packing])
            if found.status != "unstable":
                break
        return found


def look(runner: AnyRunner, composition: Composition, on: Chip, seed: int) -> list[float]:
    """µs of a composition's samples in the runner's process, at its own sizes.

    Raises Rejected where a result is wrong on the card, or the kernel faults or hangs there.
    """
    samples: list[float]
    (samples,) = runner.call("raced", [composition], on, seed, ROUNDS, seconds=QUESTION_S)
    return samples


def look_at_packing(runner: AnyRunner, composition: Composition, on: Chip, seed: int) -> list[float]:
    """µs of the samples of what prepares a composition's weights; none where nothing does.  Raises as :func:`look`."""
    if not any(plan.plan.packing for plan in composition.plans):
        return []
    samples: list[float] = runner.call("packed", composition, on, seed, ROUNDS, seconds=QUESTION_S)
    return samples


def measured(samples: Samples, task: Task, sizes: dict[str, int], on: Chip, packing: Samples = ()) -> Measurement:
    """The time that samples of one process or several say, µs.

    packing: samples of what prepares the weights, of the same processes, where something does.
    terms: the ends of its interval, of how many processes, and the time of packing.  unstable: the interval is wider
    than UNSTABLE; quarantined: it is faster than light.
    """
    prepared = {PACKING: round(median(packing).value, 3)} if any(packing) else {}
    found = median(samples)
    floor = floor_us(task, sizes, on)
    status = "stable" if found.width <= UNSTABLE else "unstable"
    if found.value < TOO_FAST * floor:
        status = "quarantined"
    return Measurement(
        kind="measured",
        chip=on.name,
        us=round(found.value, 3),
        floor_us=round(floor, 3),
        terms={
            "low": round(found.low, 3),
            "high": round(found.high, 3),
            "processes": float(len(samples)),
            **prepared,
        },
        samples=tuple(round(sample, 3) for one in samples for sample in one),
        status=status,
    )
