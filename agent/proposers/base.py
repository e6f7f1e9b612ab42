"""What every proposer is: something that, given a task and what is known so far, hands back candidate files.

A proposer never judges: it returns sources, the evaluator says what they are worth.  Proposers are interchangeable, so
the loop knows only this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from knowledge_base.chips import Chip
from knowledge_base.records import Candidate, Trial
from knowledge_base.snf.task import Task


@dataclass(frozen=True)
class ProposalRequest:
    """What a proposer may look at.

    chip: the hardware the kernels are for; None if none is chosen.
    known: the fastest correct trials of the task from earlier runs, each of another candidate, best first.
    tried: this run's trials for the task, oldest first: at least one of every candidate that was proposed before, with
    its source, and with what became of it: a verdict, a time, or both.
    """

    task: Task
    chip: Chip | None = None
    known: tuple[Trial, ...] = ()
    tried: tuple[Trial, ...] = ()


class Proposer(Protocol):
    """``name`` is what ``--proposer`` and the knowledge base call it."""

    @property
    def name(self) -> str: ...

    def propose(self, request: ProposalRequest) -> list[Candidate]:
        """Candidates for the request's task, best guess first; empty when there is nothing (more) to try.

        It is asked until it has none, or the run's rounds or time are over; also after a candidate was found correct.
        """
        ...
