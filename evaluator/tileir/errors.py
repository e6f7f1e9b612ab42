"""What can be wrong with a module: operations we lack, text that no module has."""

from __future__ import annotations

from .ir import Location


class TileIRError(ValueError):
    """Base of what can be wrong with a module.  ``location`` is the Python place, where known."""

    def __init__(self, message: str, *, op: str = "", location: Location | None = None):
        super().__init__(f"{message} ({location})" if location else message)
        self.op, self.location = op, location


class Unsupported(TileIRError):
    """An operation, attribute or type that the emulator does not know; ``op`` names the operation."""


class InvalidTileIR(TileIRError):
    """Text that no Tile IR module has: malformed, or refused by the disassembler's verifier."""
