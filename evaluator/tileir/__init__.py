"""CUDA Tile IR on the CPU: parser, lockstep machine, sanitizer.

    program = evaluator.kernel.Kernel.of(bytecode).program
    report = run(program, (8, 1, 1), [Array(x, "f32", 0, (1024,), (1,)), Scalar("i32", 1024)])

Candidate Python plays no part here: the input is Tile IR bytecode, the memory is the caller's torch tensors.
Names are loaded when they are first used, so that importing a part without torch (the parser's) stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import InvalidTileIR, TileIRError, Unsupported
    from .launch import Argument, ArgumentError, Array, RunReport, Scalar, run
    from .machine import StepLimit
    from .program import Program
    from .sanitizer import Sanitizer, Violation

_HOME = {
    "errors": ("InvalidTileIR", "TileIRError", "Unsupported"),
    "launch": ("Argument", "ArgumentError", "Array", "RunReport", "Scalar", "run"),
    "machine": ("StepLimit",),
    "program": ("Program",),
    "sanitizer": ("Violation", "Sanitizer"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Argument",
    "ArgumentError",
    "Array",
    "InvalidTileIR",
    "Program",
    "RunReport",
    "Sanitizer",
    "Scalar",
    "StepLimit",
    "TileIRError",
    "Unsupported",
    "Violation",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(importlib.import_module(f".{_MODULE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
