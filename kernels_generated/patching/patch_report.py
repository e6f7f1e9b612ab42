"""What was replaced in a model, as it is printed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

WIDTH = 80


@dataclass(frozen=True)
class PatchedModule:
    """One module that computes something.

    name: in the model.  kind: its class.  operator: what computes in its place; empty where nothing does.
    reason: why nothing does, or why it ran as before in the example all the same; empty otherwise.
    error: the root mean square of the difference to PyTorch on the example, relative; None where it did not run.
    """

    name: str
    kind: str
    operator: str
    reason: str
    error: float | None = None


@dataclass(frozen=True)
class Patched:
    """A patched model.  errors: how its outputs differ from those before, relative to their root mean square, by their
    paths; empty where that was not looked at.  limit: what they may differ by."""

    model: str
    modules: tuple[PatchedModule, ...]
    errors: Mapping[str, float]
    limit: float

    @property
    def replaced(self) -> tuple[PatchedModule, ...]:
        return tuple(one for one in self.modules if one.operator)

    @property
    def left(self) -> tuple[PatchedModule, ...]:
        return tuple(one for one in self.modules if not one.operator)

    def __str__(self) -> str:
        lines = [
            f"{self.model}: {len(self.replaced)} of {len(self.modules)} modules have generated kernels in their place"
        ]
        for group in _groups(self.replaced):
            first = group[0]
            errors = [one.error for one in group if one.error is not None]
            facts = [first.reason] if first.reason else []
            if errors:
                facts.insert(0, f"error {max(errors):.0e}" if max(errors) else "no error")
            lines += _item(group, f"{first.kind} → {first.operator}", facts)
        if self.left:
            lines.append("left as they are:")
        for group in _groups(self.left):
            lines += _item(group, group[0].kind, [group[0].reason])
        if not self.errors:
            lines.append("its outputs were not compared with those before")
        else:
            lines.append(
                f"its outputs differ by {max(self.errors.values()):.1e} from before (at most {self.limit:.0e})"
            )
        return "\n".join(lines)


def _groups(modules: Iterable[PatchedModule]) -> list[list[PatchedModule]]:
    """Modules of which the same is to be said, in the order of the first of each."""
    found: dict[tuple[str, ...], list[PatchedModule]] = {}
    for one in modules:
        found.setdefault((one.kind, one.operator, one.reason), []).append(one)
    return list(found.values())


def _item(group: list[PatchedModule], what: str, facts: list[str]) -> list[str]:
    shown = ", ".join(name or "the model itself" for name in _shortened([one.name for one in group]))
    text = f"{len(group):>4} {what}: {shown}" + "".join(f"; {fact}" for fact in facts)
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent=" " * 7, break_long_words=False)


def _shortened(names: Iterable[str]) -> list[str]:
    """``h.0.mlp`` to ``h.11.mlp`` are ``h.0-11.mlp``.

    Names that differ in their first number are one; a number at the end says which part it is, and stays.
    """
    alike: dict[tuple[str, str], list[int]] = {}
    for name in names:
        found = re.match(r"((?:[^.]*[^.\d][^.]*\.)*)(\d+)(\..*)", name)
        before, number, after = found.groups() if found else (name, "", "")
        alike.setdefault((before, after), []).extend([int(number)] if number else [])
    return [f"{before}{_spans(numbers)}{after}" for (before, after), numbers in alike.items()]


def _spans(numbers: list[int]) -> str:
    """``0-3,7`` of 0, 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)
