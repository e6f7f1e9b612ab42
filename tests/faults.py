"""Faulty kernels: a right one with some lines changed, and the line that its author must be shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

KERNELS = Path(__file__).parent / "evaluator" / "kernels"
# The tasks that the kernels compute, and their sizes: small ones, as each is judged several times.
TASKS: dict[str, tuple[str, dict[str, int]]] = {
    "add": ("add", {"M": 128, "N": 200}),
    "gelu": ("gelu", {"M": 128, "N": 200}),
    "softmax": ("softmax", {"M": 96, "N": 200}),
    "layernorm": ("layernorm", {"M": 96, "N": 200}),
    "linear": ("linear", {"M": 128, "N": 96, "K": 512}),
    "attention": ("attention_qkv", {"B": 1, "H": 2, "T": 96, "D": 64}),
    "embedding": ("embedding", {"B": 2, "T": 32, "V": 100, "P": 64, "C": 96}),
}


@dataclass(frozen=True)
class Fault:
    """The file kernels/``kernel``.py with ``changes`` (what is replaced, by what), or another ``text`` altogether.

    line: the text of the line that the verdict must quote; empty where the fault has none.
    """

    kernel: str
    changes: tuple[tuple[str, str], ...] = ()
    line: str = ""
    text: str = ""

    @property
    def task(self) -> Task:
        name, sizes = TASKS[self.kernel]
        return everyday(name, **sizes)

    @property
    def right(self) -> str:
        """The file as it should be."""
        return (KERNELS / f"{self.kernel}.py").read_text()

    @property
    def source(self) -> str:
        """The faulty file."""
        source = self.text or self.right
        for old, new in self.changes:
            assert old in source, old
            source = source.replace(old, new)
        return source
