"""A pool of judge processes, so that tasks are judged at once; the loop never imports torch."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Mapping
from typing import Self

from evaluator.confinement import containment
from evaluator.judging import JudgeProcess
from evaluator.plans import Plans
from knowledge_base.chips import Chip
from knowledge_base.records import Trial
from knowledge_base.snf.task import Decomposition, Task


class Judges:
    """``count`` judge processes; a context manager.  A call takes one that is free, or waits for it.

    Calls raise EnvironmentLacks where a process cannot start, and all of them once the pool was stopped.
    """

    def __init__(self, count: int) -> None:
        self._all = [JudgeProcess() for _ in range(count)]  # each imports torch while the loop reads and searches
        self._free: queue.SimpleQueue[JudgeProcess] = queue.SimpleQueue()
        for process in self._all:
            self._free.put(process)
        if not containment().landlock:
            # Where a candidate could write the judge's files, no candidate runs before all of them are read.
            for process in self._all:
                process.wait()

    def judge(self, trial: Trial, task: Task, chip: Chip, plans: Plans, seed: int) -> Trial:
        """As :func:`evaluator.judging.judgement.judge`; blocks."""
        with self._one() as process:
            return process.judge(trial, task, chip, plans=plans, seed=seed)

    def judge_composed(
        self,
        trial: Trial,
        decomposition: Decomposition,
        winners: Mapping[str, Trial],
        plans: Plans,
        chip: Chip,
        seed: int,
    ) -> Trial:
        """As :func:`evaluator.judging.composed.judge_composed`; blocks."""
        with self._one() as process:
            return process.judge_composed(trial, decomposition, winners, plans, chip, seed=seed)

    def stop(self) -> None:
        """Ends the processes at once, with what they started.  May be called twice, from any thread."""
        for process in self._all:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def _one(self) -> Iterator[JudgeProcess]:
        process = self._free.get()
        try:
            yield process
        finally:
            self._free.put(process)
