"""Text files that others look for while they are written."""

from __future__ import annotations

from pathlib import Path


def write_at_once(path: Path, text: str) -> Path:
    """Writes (or replaces) a file so that whoever reads it meanwhile has the old text or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    return path
