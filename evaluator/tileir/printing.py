"""``print_tko``: printf formats applied to tiles; a tile prints as nested lists of its elements."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

_SPEC = re.compile(r"%([-+ #0]*)(\d+)?(?:\.(\d+))?(?:hh|h|ll|l|z|j|t)?([diouxXeEfFgGcsp%])")


def _element(flags: str, width: str | None, precision: str | None, letter: str, value: object) -> str:
    letter = {"i": "d", "u": "d", "p": "x"}.get(letter, letter)
    text = "%" + flags + (width or "") + (f".{precision}" if precision else "") + letter
    return text % (int(value) if letter in "doxX" else value)  # type: ignore[call-overload, operator]


def _tile(spec: tuple[str, str | None, str | None, str], value: np.ndarray) -> str:
    if value.ndim == 0:
        number = value.item()
        if spec[3] == "u" and number < 0:
            number += 1 << (8 * value.dtype.itemsize)
        return _element(*spec, number)
    return "[" + ", ".join(_tile(spec, v) for v in value) + "]"


def render(template: str, values: Sequence[np.ndarray]) -> str:
    """The text that printing ``values`` under a printf ``template`` gives."""
    rest = iter(values)

    def one(m: re.Match[str]) -> str:
        flags, width, precision, letter = m.groups()
        if letter == "%":
            return "%"
        return _tile((flags, width, precision, letter), np.asarray(next(rest)))

    return _SPEC.sub(one, template)
