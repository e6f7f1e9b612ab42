"""What every proposer is: something that, given a task and what is known so far, hands back candidate files.

A proposer never judges: it returns sources, the evaluator says what they are worth.  Proposers are interchangeable, so
the loop knows only this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from knowledge_base.chips import Chip
from knowledge_base.records import Candidate, Verdict
from knowledge_base.snf.task import Task


@dataclass(frozen=True)
class ProposalRequest:
    """What a proposer may look at.

    chip: the hardware the kernels are for; None if none is chosen.
    feedback: verdicts on this proposer's earlier candidates for the task, oldest first.
    rules, examples: texts retrieved for the task; a proposer that cannot read ignores them.
    """

    task: Task
    chip: Chip | None = None
    feedback: tuple[Verdict, ...] = ()
    rules: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


class Proposer(Protocol):
    """``name`` is what ``--proposer`` and the knowledge base call it."""

    @property
    def name(self) -> str: ...

    def propose(self, request: ProposalRequest) -> list[Candidate]:
        """Candidates for the request's task, best guess first; empty when there is nothing (more) to try."""
        ...
