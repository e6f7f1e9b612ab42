"""CUDA Tile IR on the CPU: parser, lockstep machine, sanitizer.

    program = load(bytecode)
    report = run(program, (8, 1, 1), [Array(x, "f32", 0, (1024,), (1,)), Scalar("i32", 1024)])

Candidate Python plays no part here: the input is Tile IR bytecode, the memory is the caller's torch tensors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .execute import Argument, ArgumentError, Array, RunReport, Scalar, load, run
    from .machine import StepLimit
    from .program import Program
    from .sanitizer import Finding, Sanitizer
    from .text import InvalidTileIR, Unsupported

__all__ = [
    "Argument",
    "ArgumentError",
    "Array",
    "Finding",
    "InvalidTileIR",
    "Program",
    "RunReport",
    "Sanitizer",
    "Scalar",
    "StepLimit",
    "Unsupported",
    "load",
    "run",
]

_HOME = {
    "Argument": "execute",
    "ArgumentError": "execute",
    "Array": "execute",
    "RunReport": "execute",
    "Scalar": "execute",
    "load": "execute",
    "run": "execute",
    "StepLimit": "machine",
    "Program": "program",
    "Finding": "sanitizer",
    "Sanitizer": "sanitizer",
    "InvalidTileIR": "text",
    "Unsupported": "text",
}


def __getattr__(name: str) -> Any:
    # On first use: the machine needs torch, the parser (which the model of times uses) does not.
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(name)
