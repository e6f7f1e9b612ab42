"""What every proposer is: something that, given a task and what is known so far, hands back candidate files.

A proposer never judges: it returns sources, the evaluator says what they are worth.  Proposers are interchangeable, so
the loop knows only this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from knowledge_base.chips import Chip
from knowledge_base.records import Candidate, Kind, Measurement, Move, Trial
from knowledge_base.snf.task import Task
from knowledge_base.store import Store


@dataclass(frozen=True)
class ProposalRequest:
    """What a proposer may look at.

    chip: the hardware the kernels are for; None if none is chosen.
    known: the fastest correct trials of the task from earlier runs, each of another candidate, best first.
    tried: this run's trials for the task, oldest first: at least one of every candidate that was proposed before, with
    its source, and with what became of it: a verdict, a time, or both.
    label: what people see the task called in this run.
    kind: of the times that this run compares by.
    part: of a run's budget, which this task may use up while others are at work.
    """

    task: Task
    chip: Chip | None = None
    known: tuple[Trial, ...] = ()
    tried: tuple[Trial, ...] = ()
    label: str = ""
    kind: Kind = "modelled"
    part: float = 1.0

    @property
    def best(self) -> tuple[Trial, Measurement] | None:
        """The fastest kernel on the chip that serves every size, with its time; None before there is one."""
        times = [
            (trial, time)
            for trial in (*self.known, *self.tried)
            if trial.general and trial.shape == self.task.sizes and (self.chip is None or trial.chip == self.chip.name)
            if (time := trial.timed(self.kind)) is not None
        ]
        return min(times, key=lambda pair: pair[1].us, default=None)


@dataclass(frozen=True)
class Proposal:
    """A candidate, and what its author was asked for."""

    candidate: Candidate
    move: Move = Move.FRESH


@dataclass(frozen=True)
class Offer:
    """What a proposer hands back for a request, best guess first.

    over: why it has no more to say, for people; empty where it is worth asking again, even if nothing came this time.
    """

    proposals: tuple[Proposal, ...] = ()
    over: str = ""


@dataclass(frozen=True)
class Workplace:
    """What a run gives its proposers.

    folder: for what they write for people; each task's SNF lies there (:func:`snf_file`).  say: tells the user.
    stop: true ends them.  left: seconds of the run's time that are left; infinite without a limit.
    seed: of what they leave to chance.
    """

    run: str
    store: Store
    folder: Path
    say: Callable[[str], None]
    stop: Callable[[], bool]
    left: Callable[[], float]
    seed: int = 0


def snf_file(label: str) -> str:
    """The name of a task's SNF file in the workplace's folder."""
    return f"{label.replace(' ', '-')}.snf"


class Proposer(Protocol):
    """``name`` is what ``--proposer`` and the knowledge base call it.

    ``learns``: it goes on from what became of its answers, so each of them is judged, slow ones too.
    """

    @property
    def name(self) -> str: ...

    @property
    def learns(self) -> bool: ...

    def propose(self, request: ProposalRequest) -> Offer:
        """Candidates for the request's task.

        It is asked until it has no more, or the run's rounds or time are over, or nothing has become better for a
        while; also after a candidate was found correct.
        """
        ...

    def hear(self, task: Task, trial: Trial) -> None:
        """Told at once what became of a configuration of one of its candidates; the next request says so, too."""
        ...

    def reflect(self, request: ProposalRequest) -> None:
        """Told once, after a task's last round, how it went; whoever learns may put what he learned into the base."""
        ...
