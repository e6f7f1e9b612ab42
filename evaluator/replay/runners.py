"""The GPUs of one host as one: a runner for each, and a call takes one that is free."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from knowledge_base.chips import Chip, devices_of
from knowledge_base.errors import EnvironmentLacks

from .runner import CUDA, DOCTOR, AnyRunner, Runner


def runner_for(chip: Chip) -> AnyRunner:
    """A runner on each GPU of this machine that is ``chip``, as one.  Raises EnvironmentLacks where there is none."""
    numbers = devices_of(chip)
    if not numbers:
        raise EnvironmentLacks(f"this machine has no {chip.product}", DOCTOR)
    if len(numbers) == 1:
        return Runner(CUDA, *numbers)
    return Runners([partial(Runner, CUDA, number) for number in numbers])


class Runners:
    """Each of ``makes`` makes the runner of another GPU; all of one kind, so that their times compare.

    Threads share it: as many calls are answered at once as there are GPUs.
    """

    def __init__(self, makes: Sequence[Callable[[], Runner]]) -> None:
        self._makes = itertools.cycle(makes)
        self._all = [make() for make in makes]
        self._free: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        for runner in self._all:
            self._free.put(runner)

    @property
    def description(self) -> Mapping[str, str]:
        """The first one's, once all have their devices."""
        first, *_ = [runner.description for runner in self._all]
        return first

    def call(self, question: str, *arguments: Any, seconds: float) -> Any:
        """As :meth:`.runner.Runner.call`, by one that is free."""
        runner = self._free.get()
        try:
            return runner.call(question, *arguments, seconds=seconds)
        finally:
            self._free.put(runner)

    def rest(self) -> None:
        for runner in self._all:
            runner.rest()

    def another(self) -> AnyRunner:
        """A new runner, on the next GPU in turn."""
        return next(self._makes)()

    def close(self) -> None:
        for runner in self._all:
            runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
