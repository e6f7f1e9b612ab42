"""What can be wrong with a module: operations we lack, text that no module has."""

from __future__ import annotations

from .ir import Location


class TileIRError(ValueError):
    """Base of what can be wrong with a module.  ``location`` is the Python place and ``line`` its line, where known."""

    def __init__(self, message: str, *, op: str = "", location: Location | None = None, line: int | None = None):
        super().__init__(f"{message} ({location})" if location else message)
        self.op, self.location = op, location
        self.line = location.line if location else line


class Unsupported(TileIRError):
    """An operation, attribute or type that the emulator does not know, or cannot do; ``op`` names the operation."""

    error_class = "emulator-lacks-op"


class TooLarge(Unsupported):
    """A module of more text than is read."""

    error_class = "kernel-too-large"


def out_of_memory(error: Exception) -> bool:
    """Whether this process has no more memory, or may not have more: Python's, numpy's and torch's ways to say so."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


class OutOfMemory(Unsupported):
    """An operation that takes more memory than there is, or than this process may have."""

    error_class = "emulator-memory"


class InvalidTileIR(TileIRError):
    """Text that no Tile IR module has."""


class Unverified(InvalidTileIR):
    """Bytecode that the disassembler's verifier refuses."""
