"""CUDA Tile IR on the CPU: parser, lockstep machine, sanitizer.

    program = load(bytecode)
    report = run(program, (8, 1, 1), [Array(x, "f32", 0, (1024,), (1,)), Scalar("i32", 1024)])

Candidate Python plays no part here: the input is Tile IR bytecode, the memory is the caller's torch tensors.
"""

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
