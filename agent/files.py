"""Text files that others look for while they are written."""

from __future__ import annotations

import contextlib
from pathlib import Path

from knowledge_base.errors import UserError

SQLITE = b"SQLite format 3\0"  # how a database begins: https://www.sqlite.org/fileformat.html


def write_at_once(path: Path, text: str) -> Path:
    """Writes (or replaces) a file so that whoever reads it meanwhile has the old text or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    return path


def no_base(path: Path) -> Path:
    """``path``, which is to be written.  Raises UserError where a database lies there: a slip that loses all of it."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            raise UserError(f"{path} is a database, which would be lost", "Name another file.")
    return path
