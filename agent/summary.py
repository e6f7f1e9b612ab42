"""What a run found, as data: the table, the JSON document, report.md and the stored summary are all made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from knowledge_base import errors


@dataclass(frozen=True)
class TaskResult:
    """One task of the target.  Times in µs on the run's chip, for one call; ``kind`` says measured or modelled.

    status: correct (it has a kernel) | the last verdict's status | unfinished (budget, interruption).
    error: the kernel's RMS error over PyTorch's own, on normal inputs; None where PyTorch is exact.
    searched, configurations: how many of the AXES' combinations were compiled, of how many.
    """

    name: str
    identity: str
    ops: tuple[str, ...]
    sizes: Mapping[str, int]
    calls: int
    status: str
    message: str = ""
    kernel: str = ""  # digest
    proposer: str = ""
    note: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    us: float | None = None
    floor_us: float | None = None
    error: float | None = None
    share: float | None = None
    evidence: tuple[Mapping[str, Any], ...] = ()
    guards: tuple[tuple[str, ...], ...] = ()  # per plan
    searched: int = 0
    configurations: int = 0
    rejected: tuple[Mapping[str, Any], ...] = ()  # candidates that were tried and failed
    reused: bool = False  # everything about it was known already
    seconds: float = 0.0
    folder: str = ""

    @property
    def correct(self) -> bool:
        return self.status == "correct"

    @property
    def fusion(self) -> str:
        """The ops that became one task: ``linear+gelu``; of a long chain the telling ones: ``matmul+softmax``."""
        telling = [op for op in self.ops if op not in _ARITHMETIC]
        return "+".join(telling if telling and len(self.ops) > 3 else self.ops)


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
    composed: Mapping[str, Any]  # the verdict on the target made of its tasks' kernels; empty if not judged
    seconds: float
    folder: str
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        if self.status == "interrupted":
            return errors.EXIT_INTERRUPTED
        return errors.EXIT_DONE if self.status == "done" else errors.EXIT_REJECTED

    @property
    def total_us(self) -> float | None:
        """The target's time: every call's winner; None where one has none, or where modelled stand beside measured."""
        times = [t.us * t.calls for t in self.tasks if t.us is not None]
        alike = len({t.kind for t in self.tasks}) == 1
        return sum(times) if len(times) == len(self.tasks) and alike else None

    @property
    def total_floor_us(self) -> float | None:
        floors = [t.floor_us * t.calls for t in self.tasks if t.floor_us is not None]
        return sum(floors) if len(floors) == len(self.tasks) and floors else None

    def document(self) -> dict[str, Any]:
        """The JSON document of ``--json``."""
        return {
            **asdict(self),
            "tasks": [asdict(t) | {"fusion": t.fusion, "correct": t.correct} for t in self.tasks],
            "total_us": self.total_us,
            "total_floor_us": self.total_floor_us,
            "exit_code": self.exit_code,
        }
