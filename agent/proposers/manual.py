"""The proposer ``manual``: a person or a coding agent writes the kernel.

For each task it writes what is wanted to ``prompts/<task>/prompt.md`` in the run's folder (what a language model would
be told), and waits until ``answer.py`` appears beside it.  What became of an answer is in ``verdict.md``, right ones
too, and it waits for another one until one is correct at every size.
Ctrl-C is fine at any time: ``--resume`` goes on where it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.files import write_at_once
from knowledge_base.records import Candidate, Move, Trial
from knowledge_base.snf.task import Task
from prompts import Prompt, outcome, said, write

from .base import Offer, Proposal, ProposalRequest, Workplace, snf_file
from .briefs import answers_of, brief

POLL_S = 0.2

WHERE = """\

# Where your answer goes

Write the file, without anything around it, to

    {answer}

It is taken as soon as it is there and no longer changes; verdict.md beside it then says what became of it. To try it
before:

    agent check {answer} --task {snf} --gpu {chip}
"""
TAKEN = "# taken\n\nYour answer is being searched and judged.\n"


@dataclass
class Manual:
    """Waits for a person's answers."""

    place: Workplace
    name: str = "manual"
    learns: bool = True
    _seen: dict[str, str] = field(default_factory=dict)  # a task's folder → the answer that was taken last
    _asked: dict[str, ProposalRequest] = field(default_factory=dict)  # a task's folder → the last request

    def propose(self, request: ProposalRequest) -> Offer:
        """Waits for an answer that it has not taken yet; over if told to stop, and once a general kernel is found."""
        if any(trial.general for trial in request.tried):
            return Offer(over="a kernel serves every size")
        task = request.task
        folder = self.folder(task)
        answer = folder / "answer.py"
        self._asked[folder.name] = request
        asked = self.prompt(request)
        write_at_once(folder / "prompt.md", self.page(asked, request, answer))
        self.place.say(f"waiting for {answer} (see prompt.md beside it)")
        last = answers_of(request, self.name)[-1:]
        move = Move.REPAIR if last else Move.FRESH
        while not self.place.stop():
            source = _settled(answer)
            if source and source != self._seen.get(folder.name):
                self._seen[folder.name] = source
                write_at_once(folder / "verdict.md", TAKEN)
                parent = last[0].candidate.digest if last else ""
                made = Candidate(
                    source=source, task=task.identity, proposer=self.name, parent=parent, prompt=asked.digest,
                    note=str(answer),
                )  # fmt: skip
                return Offer((Proposal(made, move),))
            time.sleep(POLL_S)
        return Offer(over="stopped")

    def hear(self, task: Task, trial: Trial) -> None:
        """Writes what became of an answer beside it."""
        folder = self.folder(task)
        request = self._asked.get(folder.name)
        if request is not None:
            told = brief(replace(request, tried=(*request.tried, trial)), self.place.store, self.name)
            text = f"# {outcome(trial)}\n\n{said(told.answers[-1], told)}".rstrip() + "\n"
            write_at_once(folder / "verdict.md", text)

    def reflect(self, request: ProposalRequest) -> None:
        """A person who learned a rule keeps it."""

    def prompt(self, request: ProposalRequest) -> Prompt:
        """What a language model would be told."""
        told = brief(request, self.place.store, self.name)
        if told.answers:
            told = replace(told, move=Move.REPAIR, about=(told.answers[-1].trial.candidate.digest,))
        return write(told)

    def page(self, asked: Prompt, request: ProposalRequest, answer: Path) -> str:
        """That, and where the answer goes."""
        snf = self.place.folder / snf_file(request.label)
        where = WHERE.format(answer=answer, snf=snf, chip=request.chip.name if request.chip else "auto")
        return "\n".join(message["content"] for message in asked.messages) + where

    def folder(self, task: Task) -> Path:
        """Where a task's prompt, answer and verdict lie."""
        return self.place.folder / "-".join([task.name, *(f"{n}{v}" for n, v in task.graph.dims)])


def _settled(answer: Path) -> str:
    """The file's text once it is no longer being written; empty if it is not there."""
    try:
        first = answer.stat()
        time.sleep(POLL_S)
        if answer.stat().st_mtime_ns != first.st_mtime_ns:
            return ""
        return answer.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
