"""What the tasks of a run share."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.progress import Progress
from agent.proposers import Proposer
from evaluator.plans import Plans
from evaluator.replay import AnyRunner
from evaluator.timing import Timer
from knowledge_base.chips import Chip
from knowledge_base.rules import Space
from knowledge_base.store import Store

if TYPE_CHECKING:
    from .assay import Assemblers, Elsewhere
    from .judges import Judges
    from .rundir import RunFolder


TURN_S = 0.2  # that a task waits for a slot before it looks whether the run was interrupted


class RunStopped(Exception):
    """The run's time is up, or the user stopped it: the task stays unfinished."""


@dataclass(frozen=True)
class RunContext:
    """What all tasks of a run share.  ``deadline``: monotonic seconds after which nothing new starts."""

    run: str
    store: Store
    folder: RunFolder
    judges: Judges
    plans: Plans  # of all trials of the run
    proposers: tuple[Proposer, ...]  # one after another, each until it has no more or its rounds are over
    timer: Timer  # times of its kind are what the run compares by
    runner: AnyRunner | None  # the GPU's, where the run has one
    chip: Chip
    evaluator: str
    seed: int
    rounds: int  # of each proposer, for each task
    cores: int  # for the assemblers of all tasks
    assemblers: Assemblers  # one for each core
    elsewhere: Elsewhere | None  # a cluster's, where the run has one
    search_seconds: float  # that searching may take on all cores; by the model each task has a share, as of the floor
    progress: Progress
    spaces: tuple[Space, ...] = ()  # what was measured before, of any work
    deadline: float | None = None
    at_once: int = 1  # tasks that compute; others wait for their proposer's answers, or for a slot
    slots: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(1))  # one for each of them
    unfinished: dict[str, float] = field(default_factory=dict)  # by label: weight in what is shared by the tasks
    starts_alone: bool = False  # it starts from its own kernels alone, so that a replay goes as the recorded run went
    stopping: threading.Event = field(default_factory=threading.Event)

    def check_time(self) -> None:
        """Raises RunStopped when the run's time is up or it was interrupted."""
        self.check_stopping()
        if self.left < 0:
            raise RunStopped

    def check_stopping(self) -> None:
        """Raises RunStopped when the run was interrupted; a search minds its time itself and keeps what it has."""
        if self.stopping.is_set():
            raise RunStopped

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Holds a slot, for work that keeps a core busy; raises RunStopped if the run is interrupted before."""
        while not self.slots.acquire(timeout=TURN_S):  # in short waits, so that an interruption is heard
            self.check_stopping()
        try:
            yield
        finally:
            self.slots.release()

    def part(self, label: str) -> float:
        """A task's part of what the unfinished tasks share, by weight."""
        return self.unfinished[label] / sum(tuple(self.unfinished.values()))  # others leave meanwhile

    @property
    def jobs(self) -> int:
        """Assemblers at once, for one of the tasks that are under way now."""
        return max(1, self.cores // max(1, min(self.at_once, len(self.unfinished))))

    @property
    def left(self) -> float:
        """Seconds until the deadline; infinite without one."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()
