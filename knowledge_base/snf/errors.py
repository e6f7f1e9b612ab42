"""SnfError: what is wrong in an SNF text, where, and the nearest valid spelling."""

from __future__ import annotations

from knowledge_base.errors import UserError


class SnfError(UserError):
    """``line`` and ``column`` count from 1, in characters; ``reason`` is the bare sentence, ``mend`` what to do."""

    def __init__(self, name: str, line: int, column: int, reason: str, mend: str = "", source: str = "") -> None:
        self.name, self.line, self.column, self.reason = name, line, column, reason
        shown = ""
        if source.strip():
            # A long line is shown around the place: terminals wrap, and the caret must stay under its character.
            start = max(0, column - 60) if len(source) > 100 else 0
            shown = f"\n    {source[start : start + 100]}\n    {' ' * (column - 1 - start)}^"
        super().__init__(f"{name}:{line}:{column}: {reason}{shown}", mend)
