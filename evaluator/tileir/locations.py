"""Source locations of a disassembled module: aliases such as ``#loc12`` resolved to files, lines and call chains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PLACE = re.compile(r'(?:loc\()?"((?:[^"\\]|\\.)*)":(\d+):(\d+)\)?')
_DI = re.compile(r"#cuda_tile\.di_loc<(.*) in (#\w+)>")
_CALL = re.compile(r"(?:loc\()?callsite\((#?\w+|.*?) at (.*?)\)\)?")
_ALIAS = re.compile(r"(?:loc\()?(#\w+)\)?")
_NAME = re.compile(r'name = "([^"]*)"')
# cuTile's own helpers (astype, cdiv …) appear as callees; a user wants the line that called them.
_PACKAGE = ("cuda/tile/", "cuda\\tile\\")


@dataclass(frozen=True, slots=True)
class Location:
    """A place in Python source: line counted from 1, column from 0.  ``chain`` are the callers, innermost first."""

    file: str
    line: int
    column: int
    function: str = ""
    chain: tuple[Location, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def parse_location(key: str | None, table: Mapping[str, str]) -> Location | None:
    """The outermost place outside the cuda.tile package; its ``chain`` are the frames, innermost first."""
    frames = _frames(key, table, 0) if key else []
    if not frames:
        return None
    user = [f for f in frames if not any(p in f.file for p in _PACKAGE)] or frames
    best = user[-1]
    return Location(best.file, best.line, best.column, best.function, tuple(frames) if len(frames) > 1 else ())


def _frames(text: str, table: Mapping[str, str], depth: int) -> list[Location]:
    """Frames from the innermost to the outermost."""
    if depth > 64:  # a table that refers to itself: hostile or broken text
        return []
    text = text.strip()
    if m := _DI.fullmatch(text):
        name = _NAME.search(table.get(m[2], ""))
        return [
            Location(f.file, f.line, f.column, name[1] if name else "") for f in _frames(m[1], table, depth + 1)
        ]  # fmt: skip
    if m := _CALL.fullmatch(text):
        return _frames(m[1], table, depth + 1) + _frames(m[2], table, depth + 1)
    if m := _PLACE.fullmatch(text):
        return [Location(m[1], int(m[2]), int(m[3]))]
    if m := _ALIAS.fullmatch(text):
        return _frames(table[m[1]], table, depth + 1) if m[1] in table else []
    return []
