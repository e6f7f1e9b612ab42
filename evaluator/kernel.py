"""One kernel's Tile IR: the bytecode, and what is read from it, read once.

Everything that wants to know what a kernel does asks here; nothing else disassembles or parses.  The bytes come from a
candidate, so NVIDIA's disassembler and assembler work on them under the limits of :mod:`evaluator.confinement`.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

from evaluator.compile import Compiled, compile_kernels
from evaluator.kernel_counts import Counts
from evaluator.tileir import InvalidTileIR, TileIRError, Unsupported, Unverified, disassemble, ir, parse
from knowledge_base.hints import classify
from knowledge_base.records import Stage, Status, Verdict

if TYPE_CHECKING:
    from evaluator.tileir import Program

REMEMBERED = 512  # kernels; a search of 40 configurations of one candidate has 40 to 80


class Kernel:
    """What a bytecode holds.  Its parts are made when they are first asked for."""

    def __init__(self, bytecode: bytes) -> None:
        self.bytecode = bytecode

    @staticmethod
    @functools.lru_cache(maxsize=REMEMBERED)
    def of(bytecode: bytes) -> Kernel:
        """The kernel of this bytecode: the same one for the same bytes, while it is remembered."""
        return Kernel(bytecode)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the bytecode: how launch plans name it."""
        return hashlib.sha256(self.bytecode).hexdigest()

    @functools.cached_property
    def module(self) -> ir.Module:
        """The parsed Tile IR.  Raises TileIRError (see :func:`refusal`), EnvironmentLacks without the disassembler."""
        return parse(disassemble(self.bytecode))

    @functools.cached_property
    def program(self) -> Program:
        """The module ready to run on the emulator (imports torch).  Raises as :attr:`module` does, and Unsupported."""
        from evaluator.tileir import build

        return build(self.module)

    @functools.cached_property
    def counts(self) -> Counts:
        """The module's operations, bytes and flops per region: what the modelled time is made from."""
        return Counts(self.module)

    def compiled(self, arch: str) -> Compiled | Verdict:
        """The cubin for an architecture, from the user's cache where it is there; a Verdict where tileiras refuses."""
        return compile_kernels({self.digest: self.bytecode}, [arch], jobs=1)[self.digest, arch]


def refusal(error: TileIRError) -> Verdict:
    """The verdict on a candidate whose kernel cannot be read, or holds what the emulator cannot run."""
    if isinstance(error, Unsupported):
        status, stage, error_class = Status.UNSUPPORTED, Stage.EMULATE, error.error_class
    else:  # of what the verifier says the error table knows the class
        given = "" if isinstance(error, Unverified) or not isinstance(error, InvalidTileIR) else "ir-verification"
        status, stage, error_class = Status.COMPILE_ERROR, Stage.COMPILE, given
    message = str(error)
    error_class, hint = classify(status.value, message, error_class)
    return Verdict(status=status, stage=stage, error_class=error_class, message=message, hint=hint, line=error.line)
