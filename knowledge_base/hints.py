"""The error table: what went wrong, in one word, and one piece of advice that is always the same.

``seed/errors.jsonl`` has a line per class: the verdicts it belongs to, patterns of messages (those of cuTile's front
end, the assembler, the tracer, the emulator and the judge), and a hint.  A pattern's named groups can be used in the
hint; of a group ``shape`` with numbers in it, ``shape_pow2`` is the same with each rounded up to a power of two.

The first line whose status and pattern fit decides, so special patterns stand before general ones.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("seed") / "errors.jsonl"


@dataclass(frozen=True)
class ErrorClass:
    """One line of the table.  ``example`` is a message that it recognises."""

    name: str
    statuses: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    hint: str
    example: str

    def match(self, message: str) -> re.Match[str] | None:
        return next((found for pattern in self.patterns if (found := pattern.search(message))), None)


@functools.cache
def table() -> tuple[ErrorClass, ...]:
    """All error classes in order."""
    rows = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines() if line.strip()]
    return tuple(
        ErrorClass(
            r["class"], tuple(r["statuses"]), tuple(re.compile(p) for p in r["patterns"]), r["hint"], r["example"]
        )
        for r in rows
    )


def classify(status: str, message: str, error_class: str = "") -> tuple[str, str]:
    """(error class, hint) for a verdict.

    ``status`` is a Status or its value.  ``error_class``: what the finder already knows; it decides where the table has
    it (a finder's general class, front-end or launch-raised, is not there), and is kept where nothing fits.
    ("", "") is the answer for a correct verdict and an unknown failure.
    """
    status = str(status)
    if status == "correct":
        return "", ""
    named = next((row for row in table() if row.name == error_class), None)
    if named is not None:
        return named.name, _hint(named, named.match(message))
    for row in table():
        if status in row.statuses and (found := row.match(message)):
            return row.name, _hint(row, found)
    return error_class, ""


def _hint(row: ErrorClass, found: re.Match[str] | None) -> str:
    groups = {k: v.strip() for k, v in (found.groupdict() if found else {}).items() if v is not None}
    groups |= {f"{k}_pow2": re.sub(r"\d+", lambda m: str(_next_power(int(m[0]))), v) for k, v in groups.items()}
    try:
        return row.hint.format(**groups)
    except KeyError:  # another pattern of the class matched, or none: say it without the particulars
        return re.sub(r"\s*\(?`?\{\w+\}`?\)?", "", row.hint).replace("{{", "{").replace("}}", "}")


def _next_power(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1
