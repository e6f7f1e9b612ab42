"""The synthesizer: cuTile kernels from a task's graph, without a language model.

It is the proposer that works offline, and the floor that a model has to beat.  The graph decides what is written, no
list of known tasks: :mod:`.primitives` spells the graph out, :mod:`.schedule` cuts it into kernels, :mod:`.kernels`,
:mod:`.matmul` and :mod:`.attention` write them with :mod:`.writer`, :mod:`.source` prints the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.proposers.base import Offer, Proposal, ProposalRequest
from knowledge_base.chips import Chip
from knowledge_base.records import Candidate, Trial
from knowledge_base.snf.task import Task

from .variants import variants

__all__ = ["Synthesizer", "synthesize"]


def synthesize(task: Task, chip: Chip | None = None, approximate: bool = True) -> list[Candidate]:
    """Candidate files for ``task``: first a general one, then those that hold at some sizes only (by ValueError).

    chip: chooses the order of configurations; any chip may run any candidate.  approximate: whether the hardware's
    approximations may be used where 16 bits of a result are kept.
    """
    return [
        Candidate(source=source, task=task.identity, proposer="synthesizer", note=note)
        for source, note in variants(task, chip, approximate)
    ]


@dataclass(frozen=True)
class Synthesizer:
    """The proposer ``synthesizer``: all its ideas come at once; where an approximation was too coarse, once more."""

    name: str = "synthesizer"
    learns: bool = False

    def propose(self, request: ProposalRequest) -> Offer:
        tried = {trial.candidate.digest for trial in request.tried}
        wrong = any(trial.candidate.proposer == self.name and trial.status == "wrong" for trial in request.tried)
        made = synthesize(request.task, request.chip, approximate=not wrong)
        left = [candidate for candidate in made if candidate.digest not in tried]
        return Offer(tuple(map(Proposal, left)), "" if left else "all that the synthesizer writes was tried")

    def hear(self, task: Task, trial: Trial) -> None:
        """It learns nothing."""

    def reflect(self, request: ProposalRequest) -> None:
        """Nothing, nor does it here."""
