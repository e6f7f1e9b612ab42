"""A pool of judge processes, so that tasks are judged at once, and the GPU that confirms what they call correct.

The loop itself never imports torch.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from evaluator.confinement import containment
from evaluator.judging import JudgeProcess
from evaluator.plans import Plans
from evaluator.replay import AnyRunner, confirmed
from knowledge_base.chips import Chip
from knowledge_base.records import Trial
from knowledge_base.snf.task import Decomposition, Task


class Judges:
    """Up to ``count`` judge processes; a context manager.  A call takes one that is free, or waits for it.

    runner: a GPU's, which the pool ends with its own processes; what is correct is confirmed there.

    One is there from the start, and imports torch while the loop reads and searches; the others are started when they
    are needed.  Calls raise EnvironmentLacks where a process cannot start, and all of them once the pool was stopped.
    """

    def __init__(self, count: int, runner: AnyRunner | None = None) -> None:
        self._count, self._stopped = count, False
        self._runner = runner
        self._lock = threading.Lock()
        self._free: queue.SimpleQueue[JudgeProcess] = queue.SimpleQueue()
        self._all = [JudgeProcess()]
        if not containment().landlock:
            # Where a candidate could write the judge's files, no candidate runs before all of them are read.
            self._all += [JudgeProcess() for _ in range(count - 1)]
            for process in self._all:
                process.wait()
        for process in self._all:
            self._free.put(process)

    def judge(self, trial: Trial, task: Task, chip: Chip, plans: Plans, seed: int) -> Trial:
        """As :func:`evaluator.judging.judgement.judge`, then as :func:`evaluator.replay.confirm.confirmed`; blocks."""
        with self._one() as process:
            judged = process.judge(trial, task, chip, plans=plans, seed=seed)
            if self._runner is None:
                return judged
            return confirmed(judged, task, chip, plans, self._runner, process, seed)

    def judge_composed(
        self,
        trial: Trial,
        decomposition: Decomposition,
        winners: Mapping[str, Sequence[Trial]],
        plans: Plans,
        chip: Chip,
        seed: int,
    ) -> Trial:
        """As :func:`evaluator.judging.composed.judge_composed`; blocks."""
        with self._one() as process:
            return process.judge_composed(trial, decomposition, winners, plans, chip, seed=seed)

    def stop(self) -> None:
        """Ends the processes at once, with what they started.  May be called twice, from any thread."""
        with self._lock:
            self._stopped = True
            for process in self._all:
                process.kill()
            if self._runner is not None:
                self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def _one(self) -> Iterator[JudgeProcess]:
        try:
            process = self._free.get_nowait()
        except queue.Empty:
            process = self._another() or self._free.get()
        try:
            yield process
        finally:
            self._free.put(process)

    def _another(self) -> JudgeProcess | None:
        """A new process; None where there are as many as there may be."""
        with self._lock:
            if self._stopped or len(self._all) >= self._count:
                return None
            self._all.append(JudgeProcess())
            return self._all[-1]
