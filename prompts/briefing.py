"""All that a prompt is made of: the task, the chip, the goal, and what became of earlier answers."""

from __future__ import annotations

from dataclasses import dataclass

from knowledge_base.advice import Advice
from knowledge_base.chips import Chip
from knowledge_base.records import Measurement, Move, Trial
from knowledge_base.snf.task import Task

NOTHING_KNOWN = Advice()


@dataclass(frozen=True)
class Answer:
    """A model's earlier answer: the trial that decided about it, and all of its configurations that were looked at.

    total: how many configurations its AXES make.
    """

    trial: Trial
    configurations: tuple[Trial, ...] = ()
    total: int = 0


@dataclass(frozen=True)
class Briefing:
    """What a model is told.

    floor_us: the task's speed of light on the chip at its sample sizes, in µs.
    rms_factor, largest_factor: how far from float64 a result may be, in multiples of PyTorch's own error.
    advice: what the knowledge base has to say about the task on the chip.
    best: the fastest correct trial that is known, from wherever, and its time; None before there is one.
    answers: the model's own earlier answers, oldest first, each with what became of it.
    move, about: what is asked for, and of which candidates (digests): answers, the best, or the advice's example.
    another: somebody else is asked for a fresh kernel at the same time.
    problem: why the last answer could not be read as a file; empty if it could, and in a first prompt.
    """

    task: Task
    chip: Chip
    floor_us: float
    rms_factor: float
    largest_factor: float
    advice: Advice = NOTHING_KNOWN
    best: tuple[Trial, Measurement] | None = None
    answers: tuple[Answer, ...] = ()
    move: Move = Move.FRESH
    about: tuple[str, ...] = ()
    another: bool = False
    problem: str = ""
