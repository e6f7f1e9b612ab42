"""What a run found, as data: its document is what is printed, stored and shown again (:mod:`.report`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernels_generated.runtime.plan import Launchable
from knowledge_base import errors
from knowledge_base.records import Incomparable, Measurement, Trial, in_sequence
from knowledge_base.rules import Lesson
from knowledge_base.snf.task import Task

from .conclude import operations
from .model_use import ModelUse


@dataclass(frozen=True)
class Effort:
    """searched of configurations: how many of the AXES' combinations of the winner's file were compiled.

    of_all, span: the same of all the task's files.  pruned: not compiled, as they could not win.  new: compiled or
    pruned by this run.  The rest was not looked at.  reused: all was known already.
    """

    searched: int = 0
    configurations: int = 0
    files: int = 0
    of_all: int = 0
    span: int = 0
    pruned: int = 0
    new: int = 0
    seconds: float = 0.0
    reused: bool = False


@dataclass(frozen=True)
class TaskResult:
    """One task of the target: its winner, or why it has none.

    label: the task's name, with what tells it from others of that name.  calls: how often the target makes it.
    floor_us: of one call, in µs.  status: correct | the last verdict's | unfinished (budget, interruption).
    trial, time, plans: the winner, its time of the kind that the run compares by, its launch plans.  share: of the
    target's time.  folder: where the winner lies, in the run's.  over: why its proposer was asked no more.
    """

    label: str
    task: Task
    calls: int
    floor_us: float
    status: str
    message: str = ""
    trial: Trial | None = None
    time: Measurement | None = None
    plans: tuple[Launchable, ...] = ()
    share: float | None = None
    rejected: tuple[Trial, ...] = ()
    effort: Effort = field(default_factory=Effort)
    folder: str = ""
    over: str = ""

    @property
    def correct(self) -> bool:
        return self.status == "correct"

    @property
    def fusion(self) -> str:
        """The ops that became one task: ``linear+gelu``; of a long chain the telling ones: ``matmul+softmax``."""
        ops = operations(self.task)
        telling = [op for op in ops if op not in _ARITHMETIC]
        return "+".join(telling if telling and len(ops) > 3 else ops)

    def document(self) -> dict[str, Any]:
        """The winner's document (:meth:`Trial.document`), and what the task adds to it."""
        winner = self.trial.document(self.plans) if self.trial is not None else {"kernel": "", "error": None}
        return winner | {
            "name": self.label,
            "identity": self.task.identity,
            "shape": self.task.sizes,
            "ops": operations(self.task),
            "fusion": self.fusion,
            "calls": self.calls,
            "share": self.share,
            "status": self.status,
            "message": self.message,
            "correct": self.correct,
            "kind": self.time.kind if self.time is not None else "",
            "us": self.time.us if self.time is not None else None,
            "floor_us": self.floor_us,
            "interval_us": self.time.interval if self.time is not None else None,
            "packing_us": self.time.packing_us if self.time is not None else None,
            "processes": self.time.processes if self.time is not None else 0,
            "stability": self.time.status if self.time is not None else "",
            "rejected": [trial.brief() for trial in self.rejected],
            "effort": asdict(self.effort),
            "folder": self.folder,
            "over": self.over,
        }


_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "neg", "minimum", "maximum", "where"})


@dataclass(frozen=True)
class RunSummary:
    """A whole run.  ``plans``: per fusion plan its number of tasks and calls and its modelled floor in µs."""

    id: str
    target: str
    chip: str
    device: str
    proposer: str
    why: str  # of the proposer
    status: str  # done | incomplete | interrupted
    plan: str
    plans: Mapping[str, Mapping[str, float]]
    tasks: tuple[TaskResult, ...]
    composed: Trial | None  # the target made of its tasks' kernels; None if it was not judged
    seconds: float
    folder: str
    notes: tuple[str, ...] = ()
    asked: ModelUse | None = None  # what a language model was asked; None if none was
    lesson: Lesson | None = None  # what it measured taught; None where it measured nothing new

    @property
    def exit_code(self) -> int:
        if self.status == "interrupted":
            return errors.EXIT_INTERRUPTED
        return errors.EXIT_DONE if self.status == "done" else errors.EXIT_REJECTED

    @property
    def total(self) -> Measurement | None:
        """The target's time, every call by its task's winner; None where one has none, or where kinds differ."""
        times = [(task.time, task.calls) for task in self.tasks if task.time is not None]
        try:
            return in_sequence(times) if len(times) == len(self.tasks) and times else None
        except Incomparable:
            return None

    def document(self) -> dict[str, Any]:
        """The JSON document of ``--json``, and what the knowledge base keeps."""
        whole = self.total
        fields = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("tasks", "composed", "asked", "lesson")
        }
        return fields | {
            "asked": asdict(self.asked) if self.asked is not None else {},
            "lesson": asdict(self.lesson) if self.lesson is not None else {},
            "tasks": [task.document() for task in self.tasks],
            "composed": self.composed.document() if self.composed is not None else {},
            "total_us": whole.us if whole is not None else None,
            "total_floor_us": sum(task.floor_us * task.calls for task in self.tasks) if self.tasks else None,
            "exit_code": self.exit_code,
        }
