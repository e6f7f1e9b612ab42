"""Timing on a device: contestants take turns, each sample with other inputs, poisoned results and a cold L2.

A contestant has SETS sets of inputs and one recorded graph with a sample of each, so that within a graph no inputs are
met twice.  Before a sample its outputs and workspaces are poisoned, then L2 is flushed; the two events of the clock
stand around the work alone.  Between graphs, cache lines that a kernel marked persisting lose that mark.  Turns go
forwards, then backwards (A B B A), so that a drift of clocks meets all alike.

What is timed is the plan and the cubins that were checked, in the memory in which they were: on every set the results
are right before the timing, and after it they are the same bits (right again, where atomics add floats in any order),
with inputs and guard zones as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from evaluator.judging import (
    POISON_A,
    Case,
    Errors,
    Expected,
    Failure,
    Rejected,
    accept,
    adds_in_any_order,
    dims,
    measure,
    reject,
    same_bits,
    text,
    wrong,
)
from kernels_generated.runtime import DriverError
from knowledge_base.chips import Chip
from knowledge_base.records import Status
from knowledge_base.snf.graph import shape_at
from knowledge_base.snf.task import Task

from .card import Card, Part, Placed
from .composition import Composition
from .device import Device, Sample

SETS = 4  # of inputs
FLUSH = 2  # times the bytes of L2 are written between two samples


class Unrecordable(Exception):
    """The number of a contestant, and what it raised while its graph was recorded."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(number, error)
        self.number, self.error = number, error


class Contestant(Protocol):
    """Something that is timed."""

    def samples(self) -> Sequence[Sample]:
        """One for each set of inputs.  Both halves put work on the device's stream and wait for nothing."""

    def check(self) -> None:
        """After the timing.  Raises Rejected where results are not what they have to be."""


class PlanContestant:
    """A composition at its own sizes.  ``answers``: the expected results on each set of inputs.

    Making it runs the plans on every set and raises Rejected where a result is not right.
    """

    def __init__(
        self, device: Device, card: Card, composition: Composition, chip: Chip, answers: Iterable[Expected]
    ) -> None:
        self._composition = composition
        self._answers = tuple(answers)
        whole = composition.whole
        steps = []
        for call, plan in zip(composition.calls, composition.plans, strict=True):
            at = call.sizes_at(whole.sizes)
            tensors = (*call.task.inputs, *call.task.outputs)
            shapes = {t.name: shape_at(t.shape, at) for t in tensors}
            names = {t.name: n for t, n in zip(tensors, (*call.arguments, *call.results), strict=True)}
            steps.append(Part(plan.plan, dims(at, chip), shapes, names))
        self._placed = [card.place(steps) for _ in self._answers]
        for placed, answer in zip(self._placed, self._answers, strict=True):
            for name, given in answer.inputs.items():
                placed.views[name].copy_(given.reshape(placed.views[name].shape))
        kept = {*self._answers[0].inputs, *self._placed[0].packed}
        self._written = [name for name in self._placed[0].views if name not in kept]
        for placed in self._placed:
            placed.poison(POISON_A.output, placed.packed)
            placed.pack()
        for before, work in self.samples():
            before()
            work()
        device.synchronize(device.stream)
        self._right()
        self._first = [[value.clone() for value in self._made(placed)] for placed in self._placed]

    def samples(self) -> Sequence[Sample]:
        return [(lambda placed=placed: placed.poison(POISON_A.output, self._written), placed.run)  # type: ignore[misc]
                for placed in self._placed]  # fmt: skip

    def packing(self) -> Contestant:
        """What prepares the weights, alone: :meth:`samples` are without it."""
        return _Packing(self._placed, self)

    def check(self) -> None:
        sizes = text(self._composition.whole.sizes)
        for placed, answer, first in zip(self._placed, self._answers, self._first, strict=True):
            placed.check_guards()
            for name, given in answer.inputs.items():
                if not same_bits(placed.views[name].reshape(given.shape), given):
                    message = f"after it was timed, {name}, which it may only read, is not what it was"
                    raise reject(Status.UNSAFE, "input-modified", message)
            if all(same_bits(now, then) for now, then in zip(self._made(placed), first, strict=True)):
                continue
            if not adds_in_any_order(self._composition.plans):
                message = f"after it was timed, a result is not what it was before ({sizes})"
                raise reject(Status.UNSAFE, "not-deterministic", message)
            self._right()

    def _made(self, placed: Placed) -> list[torch.Tensor]:
        return [placed.views[name] for name in self._composition.outputs]

    def _right(self) -> None:
        check_right(self._composition.whole, self._answers, [self._made(placed) for placed in self._placed])


class _Packing:
    """The preparing of a contestant's weights, which are right when ``whole`` is."""

    def __init__(self, placed: Sequence[Placed], whole: PlanContestant) -> None:
        self._placed, self._whole = placed, whole

    def samples(self) -> Sequence[Sample]:
        return [(lambda one=one: one.poison(POISON_A.output, one.packed), one.pack)  # type: ignore[misc]
                for one in self._placed]  # fmt: skip

    def check(self) -> None:
        for before, work in self._whole.samples():
            before()
            work()
        self._whole.check()


def check_right(task: Task, answers: Sequence[Expected], made: Sequence[Sequence[torch.Tensor]]) -> None:
    """Raises Rejected where a result is not within the judge's limits.  ``made``: of each answer's inputs, in order."""
    ops = frozenset(node.op for node in task.graph.nodes)
    measured: dict[str, list[tuple[Case, Errors]]] = {}
    for answer, results in zip(answers, made, strict=True):
        for number, (t, got, eager) in enumerate(zip(task.outputs, results, answer.eager, strict=True)):
            shaped = got.reshape(shape_at(t.shape, task.sizes))
            reference = answer.nearest(number, shaped)
            case = Case(t.name, t.dtype, "normal", dict(task.sizes), shaped, reference, eager)
            errors = measure(case)
            if isinstance(errors, Failure):
                raise Rejected(wrong(errors, None, ops))
            measured.setdefault(t.name, []).append((case, errors))
    accept(measured, ops)


def race(device: Device, contestants: Sequence[Contestant], rounds: int) -> list[list[float]]:
    """µs of each contestant's samples, in order of time: 2 · rounds · SETS of them.

    The i-th samples of two contestants were taken next to each other.  Raises Rejected where one is not right when it
    is over, Unrecordable where one cannot be recorded.
    """
    flush = device.empty(FLUSH * device.l2_bytes)

    def cold(sample: Sample) -> Sample:
        before, work = sample

        def prepare() -> None:
            before()
            device.fill(flush.data_ptr(), b"\1\0\0\0", flush.numel() // 4, device.stream)

        return prepare, work

    recorded = []
    for number, one in enumerate(contestants):
        try:
            recorded.append(device.record([cold(sample) for sample in one.samples()]))
        except DriverError:
            raise
        except Exception as error:
            raise Unrecordable(number, error) from error
    for graph in recorded:  # brings the graphs to the device, and its clocks up
        graph.run()
    times: list[list[float]] = [[] for _ in contestants]
    for turn in range(2 * rounds):
        order = range(len(recorded))
        for number in order if turn % 2 == 0 else reversed(order):
            device.forget_persisting()
            times[number] += recorded[number].run()
    for contestant in contestants:
        contestant.check()
    return times
