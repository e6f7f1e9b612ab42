"""Changes to a file, as models write them, and the file with them made.

Two forms: blocks of SEARCH and REPLACE, and hunks of a unified diff, whose line numbers are not believed.  A change is
made where the lines that it replaces stand, which must be in one place alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SEARCH = re.compile(r"<{5,9} ?SEARCH\s*")
MIDDLE = re.compile(r"={5,9}\s*")
REPLACE = re.compile(r">{5,9} ?REPLACE\s*")

MOST = 100  # changes of an answer


@dataclass(frozen=True)
class Edit:
    """Lines, and those that take their place."""

    old: tuple[str, ...]
    new: tuple[str, ...]


def is_edit(text: str) -> bool:
    """Whether a text has marks that no Python file has."""
    return any(SEARCH.fullmatch(line) or line.startswith("@@") for line in text.split("\n"))


def searches(text: str) -> Iterator[Edit]:
    """The blocks of SEARCH and REPLACE in a text; one without its end is none."""
    old: list[str] | None = None
    new: list[str] | None = None
    for line in text.split("\n"):
        if SEARCH.fullmatch(line):
            old, new = [], None
        elif old is not None and new is None and MIDDLE.fullmatch(line):
            new = []
        elif old is not None and new is not None and REPLACE.fullmatch(line):
            yield _edit(old, new)
            old = new = None
        elif new is not None:
            new.append(line)
        elif old is not None:
            old.append(line)


def diffs(text: str, is_diff: bool) -> Iterator[Edit]:
    """The hunks of a unified diff in a text.  ``is_diff``: it is one; without marks of hunks it is a single one."""
    inside = is_diff and not re.search(r"^@@", text, re.MULTILINE)
    old: list[str] = []
    new: list[str] = []
    for line in (*text.split("\n"), "@@"):
        if line.startswith(("--- ", "+++ ")) and not (old or new):
            continue
        if line.startswith("@@") or (inside and line[:1] not in (" ", "+", "-", "\\", "")):
            if old != new:
                yield _edit(old, new)
            old, new, inside = [], [], line.startswith("@@")
        elif inside and line[:1] != "\\":
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])


def applied(edits: Iterable[Edit], base: str) -> tuple[str, str]:
    """(the file with all changes, ""), or ("", which one can't be made, for its author)."""
    lines = base.rstrip("\n").split("\n")
    for number, edit in enumerate(edits, 1):
        if number > MOST:
            return "", f"Your last answer holds more than {MOST} changes."
        places = _places(edit.old, lines)
        if len(places) != 1:
            said = next((line.strip() for line in edit.old if line.strip()), "")
            where = "nowhere" if not places else f"in {len(places)} places"
            return "", f"Change {number} of your last answer can't be made: `{said}` and what follows stands {where}."
        start, indent = places[0]
        new = [indent + line if line.strip() else line for line in edit.new]
        lines[start : start + len(edit.old)] = new
    return "\n".join(lines) + "\n", ""


# ---------------------------------------------------------------------------------------------------- parts


def _edit(old: list[str], new: list[str]) -> Edit:
    """Without the blank lines at the end of both, which are the text's more than the change's."""
    while old and new and not old[-1].strip() and not new[-1].strip():
        old, new = old[:-1], new[:-1]
    return Edit(tuple(old), tuple(new))


def _places(old: Sequence[str], lines: Sequence[str]) -> list[tuple[int, str]]:
    """(where the lines stand, what they are indented by there beyond what they say); exactly if they do anywhere."""
    if not any(line.strip() for line in old):
        return []
    starts = range(len(lines) - len(old) + 1)
    exact = [i for i in starts if list(lines[i : i + len(old)]) == list(old)]
    if exact:
        return [(i, "") for i in exact]
    found = []
    for i in starts:
        indent = _indent(old, lines[i : i + len(old)])
        if indent is not None:
            found.append((i, indent))
    return found


def _indent(old: Sequence[str], there: Sequence[str]) -> str | None:
    """What ``there`` is indented by beyond ``old``, the same in each line; None if they differ in more than that."""
    indents = set()
    for said, line in zip(old, there, strict=True):
        said, line = said.rstrip(), line.rstrip()
        if not line.endswith(said) or line[: len(line) - len(said)].strip():
            return None
        if said:
            indents.add(line[: len(line) - len(said)])
    return indents.pop() if len(indents) == 1 else None
