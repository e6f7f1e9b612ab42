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
    """An operation, attribute or type that the emulator does not know; ``op`` names the operation."""


class InvalidTileIR(TileIRError):
    """Text that no Tile IR module has."""


class Unverified(InvalidTileIR):
    """Bytecode that the disassembler's verifier refuses."""
