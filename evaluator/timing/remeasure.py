"""The time of what has won: samples of several fresh processes.

A process differs from the next in where its memory lies and in what its GPU context holds, so samples of one say
nothing of others: a search ranks by them, and what it found is measured again here before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from evaluator.judging import Rejected, finished
from evaluator.replay import AnyRunner, Composition
from knowledge_base.chips import chip
from knowledge_base.records import Measurement, Trial, Verdict

from .clock import look, look_at_packing, measured

PROCESSES = 5
MOST = 10  # where an interval is too wide


class Sampled(Protocol):
    """Something of which fresh processes take samples; ``open``: as long as more of them are to."""

    @property
    def name(self) -> str: ...

    @property
    def open(self) -> bool: ...

    def sample(self, process: AnyRunner, seed: int) -> None: ...


def in_fresh_processes(
    works: Sequence[Sampled], runner: AnyRunner, seed: int, say: Callable[[str], None] = lambda _: None
) -> None:
    """Has each sampled in PROCESSES new processes; what is open then in as many again, at most MOST in all.

    The processes start together, and measure one after another once all are there: nothing else happens on the GPU.
    Each gives its memory back when it is done: large tasks take most of a GPU's.
    runner: says how they are made; it rests meanwhile.  Raises EnvironmentLacks where the GPU cannot be used.
    """
    number = 0
    runner.rest()
    while number < MOST and (under_way := [one for one in works if one.open]):
        with ExitStack() as stack:
            processes = [stack.enter_context(runner.another()) for _ in range(PROCESSES)]
            for process in processes:
                _ = process.description  # waits until it has its device
            for process in processes:
                number += 1
                with process:
                    for one in under_way:
                        say(f"process {number}: {one.name}")
                        one.sample(process, seed + number)


def remeasured(
    trials: Sequence[tuple[Trial, Composition]],
    runner: AnyRunner,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """The trials, each with a time of PROCESSES new processes, or the verdict of one that is not right in one of them.

    Each with what it runs.  A time whose interval is too wide is measured in as many again, then it is ``unstable``.
    Raises EnvironmentLacks where the GPU cannot be used.
    """
    finals = [_Final(trial, composition) for trial, composition in trials]
    in_fresh_processes(finals, runner, seed, say)
    return [one.result for one in finals]


@dataclass
class _Final:
    """A trial that is measured: what runs, the samples of each process so far, why no more are taken."""

    trial: Trial
    composition: Composition
    samples: list[list[float]] = field(default_factory=list)
    packing: list[list[float]] = field(default_factory=list)  # of what prepares its weights
    rejected: Verdict | None = None

    @property
    def name(self) -> str:
        return self.composition.whole.name

    @property
    def open(self) -> bool:
        if self.rejected is not None:
            return False
        return len(self.samples) < PROCESSES or self.time.status == "unstable"

    @property
    def time(self) -> Measurement:
        on = chip(self.trial.chip)
        return measured(self.samples, self.composition.whole, self.trial.shape, on, self.packing)

    @property
    def result(self) -> Trial:
        if self.rejected is not None:
            return self.trial.fuller(verdict=finished(self.rejected, self.trial.candidate.source))
        return self.trial.fuller(measurements=(*self.trial.measurements, self.time))

    def sample(self, process: AnyRunner, seed: int) -> None:
        if self.rejected is not None:
            return
        on = chip(self.trial.chip)
        try:
            packing = look_at_packing(process, self.composition, on, seed)
            self.samples.append(look(process, self.composition, on, seed))
            self.packing.append(packing)
        except Rejected as rejected:
            self.rejected = rejected.verdict
