"""Contestants beside our own plans: baselines, on the same inputs, held to the same limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from evaluator.baselines import BASELINES, Lacking
from evaluator.judging import Expected, Rejected, reject, same_bits
from knowledge_base.records import Status
from knowledge_base.snf.task import Task

from .device import Device, Sample
from .stopwatch import Unrecordable, check_right, race
from .wire import Spoiled


class Called:
    """A function of a task's inputs, each set of which is a copy of its own.  ``answers``: what they should give.

    Making it calls the function on every set, once alone and once recorded.  Raises Rejected where a result is not
    right, what the function raises, and Unrecordable.
    """

    def __init__(
        self, device: Device, task: Task, function: Callable[..., Sequence[torch.Tensor]], answers: Sequence[Expected]
    ) -> None:
        self._task, self._function, self._answers = task, function, answers
        self._given = [tuple(answer.inputs[t.name].clone() for t in task.inputs) for answer in answers]
        self._made: list[Sequence[torch.Tensor]] = [()] * len(answers)
        for number in range(len(answers)):  # what compiles or tunes does it now
            self._call(number)
        device.synchronize(device.stream)
        self.check()
        race(device, [self], rounds=0)

    def samples(self) -> Sequence[Sample]:
        return [(lambda: None, lambda number=number: self._call(number)) for number in range(len(self._answers))]  # type: ignore[misc]

    def check(self) -> None:
        check_right(self._task, self._answers, self._made)
        for answer, given in zip(self._answers, self._given, strict=True):
            for tensor, value in zip(self._task.inputs, given, strict=True):
                if not same_bits(value, answer.inputs[tensor.name]):
                    raise reject(Status.UNSAFE, "input-modified", f"it changes {tensor.name}, which it may only read")

    def _call(self, number: int) -> None:
        with torch.no_grad():
            self._made[number] = self._function(*self._given[number])


def baseline(name: str, device: Device, task: Task, answers: Sequence[Expected]) -> Called | str | None:
    """The baseline for the task at its own sizes; None where it has nothing for it, or why it cannot be timed.

    Raises Spoiled, with the name and why.
    """
    try:
        function = BASELINES[name](task, device.place)
        return None if function is None else Called(device, task, function, answers)
    except Lacking as error:
        return str(error)
    except ImportError as error:
        return f"not installed ({error.name})"
    except Rejected as rejected:
        return f"not right: {rejected.verdict.message}"
    except Unrecordable as error:
        raise spoiled(name, error) from error
    except Exception as error:  # of someone else's code: whatever it is, the others are timed
        return f"fails: {_said(error)}"


def spoiled(name: str, unrecordable: Unrecordable) -> Spoiled:
    return Spoiled(name, f"cannot be recorded: {_said(unrecordable.error)}")


def _said(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:200]}"
