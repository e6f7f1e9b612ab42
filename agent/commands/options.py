"""What people type after an option, read: ``--shape B=2,T=128``, ``--axes TM=64,persistent=True``, a level."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from evaluator.confinement import containment
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.records import Level


def sizes(texts: Sequence[str] | None) -> dict[str, int]:
    """``B=2,T=128`` → {"B": 2, "T": 128}, of all that was given; nothing → {}.  Raises UserError."""
    found: dict[str, int] = {}
    for name, value in _pairs(texts, "--shape", "B=2,T=128"):
        try:
            found[name] = int(value.replace("_", ""))
        except ValueError:
            raise UserError(f"--shape: {name}={value!r} is no whole number", "Write --shape B=2,T=128.") from None
        if found[name] < 1:
            raise UserError(f"--shape: {name}={found[name]}, but every size is at least 1")
    return found


def typed(sizes: Mapping[str, int]) -> str:
    """{"B": 2, "T": 128} → ``B=2,T=128``."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def axes(texts: Sequence[str] | None) -> dict[str, Any]:
    """``TM=64,mode=fast`` → {"TM": 64, "mode": "fast"}: literals as Python reads them, else text.  Raises UserError."""
    found: dict[str, Any] = {}
    for name, value in _pairs(texts, "--axes", "TM=64,TN=128"):
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def require_sandbox(level: str | None) -> None:
    """Raises UserError where ``level`` is none, and EnvironmentLacks where less than it holds candidates here."""
    if level is None:
        return

    names = [one.value for one in Level]
    if level not in names:
        raise UserError(f"--require-sandbox: there is no level {level!r}", f"Levels: {', '.join(names)}.")
    held = containment()
    if not held.level.reaches(Level(level)):
        mend = held.mend or "docs/judging.md says what each level takes."
        raise EnvironmentLacks(f"candidates are contained at level {held.level.value}, not {level}: {held.why}", mend)


def _pairs(texts: Sequence[str] | None, option: str, example: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part in ",".join(texts or ()).split(","):
        if not part.strip():
            continue
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier() or not value:
            raise UserError(f"{option}: {part.strip()!r} is not NAME=VALUE", f"Write {option} {example}.")
        if name in (n for n, _ in pairs):
            raise UserError(f"{option}: {name} is given twice")
        pairs.append((name, value))
    return pairs
