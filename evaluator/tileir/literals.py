"""The spelling of constants: numbers, nested lists, bit patterns, raw bytes, strings."""

from __future__ import annotations

import re

from . import ir
from .errors import InvalidTileIR


def literal(text: str, elem: str) -> ir.Dense:
    """A printed constant: a number, a nested list, or a string of raw bytes in hexadecimal."""
    if text.startswith('"'):
        return ir.Dense(raw=bytes.fromhex(text.strip('"')[2:]))
    if text.startswith("["):
        items = text.replace("[", " ").replace("]", " ").split(",")
        bits = any(i.strip().startswith("0x") for i in items)
        if not bits:
            return ir.Dense(tuple(_number(i.strip(), elem) for i in items))
        # A list may mix decimal numbers and bit patterns: keep each as a one-element literal's bits or value.
        return ir.Dense(tuple(_mixed(i.strip(), elem) for i in items))
    if text.startswith("0x") and not elem.startswith("i"):
        return ir.Dense(int(text, 16), bits=True)
    return ir.Dense(_number(text, elem))


def _mixed(text: str, elem: str) -> float:
    if not text.startswith("0x"):
        return float(_number(text, elem))
    return _float_of_bits(int(text, 16), elem)


# Exponent and fraction widths of the formats that have infinities or NaNs which a decimal can not spell.
_WIDTHS = {
    "f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "tf32": (8, 10), "f64": (11, 52),
    "f8E4M3FN": (4, 3), "f8E5M2": (5, 2),
}  # fmt: skip


def _float_of_bits(bits: int, elem: str) -> float:
    exponent, fraction = _WIDTHS.get(elem, (8, 0))
    if elem not in _WIDTHS or elem == "f8E4M3FN" or bits & ((1 << fraction) - 1):
        return float("nan")
    return float("-inf") if bits >> (exponent + fraction) & 1 else float("inf")


def _number(text: str, elem: str) -> int | float | bool:
    try:
        if elem == "i1":
            return {"true": True, "false": False}[text]
        return int(text) if elem.startswith("i") else float(text)
    except (ValueError, KeyError):
        raise InvalidTileIR(f"not a literal of {elem}: {text[:40]!r}") from None


def unescape(text: str) -> str:
    r"""A printed string's meaning: ``\0A`` and ``\C3\A9`` are bytes of UTF-8, ``\\`` a backslash."""
    raw = re.sub(
        rb"\\(\\|[0-9A-Fa-f]{2})",
        lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 16)]),
        text.encode(),
    )
    return raw.decode("utf-8", "replace")
