"""Scalar integers of Tile IR, computed in Python: sizes, indices, loop bounds, for walking a kernel without running it.

Not the emulator's arithmetic: nothing wraps around, as sizes do not, and an unknown operand is an unknown result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from evaluator.tileir import ir


def is_scalar(op: ir.Op) -> bool:
    """Whether the walk computes ``op``: integers without shape, and questions about views and the grid."""
    return bool(op.results) and op.name in SCALAR_OPS and all(
        isinstance(t, ir.TileType) and t.shape == () and str(t.elem).startswith("i") for t in op.result_types
    )  # fmt: skip


def _divide(attrs: Mapping[str, object], a: int, b: int) -> int | None:
    if b == 0:
        return None
    if attrs["rounding"] == "positive_inf":
        return -(-a // b)
    if attrs["rounding"] == "negative_inf":
        return a // b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(_: Mapping[str, object], a: int, b: int) -> int | None:
    return None if b == 0 else int(math.fmod(a, b))


_COMPARE = {
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less_than": lambda a, b: a < b,
    "less_than_or_equal": lambda a, b: a <= b,
    "greater_than": lambda a, b: a > b,
    "greater_than_or_equal": lambda a, b: a >= b,
}

# By name: (attributes, operands) → value.  Those that the walker answers itself are here so that it knows them.
SCALAR_OPS: dict[str, Callable[..., int | bool | None]] = {
    "constant": lambda attrs: None,
    "get_tile_block_id": lambda attrs: None,
    "get_num_tile_blocks": lambda attrs: None,
    "get_index_space_shape": lambda attrs: None,
    "get_tensor_shape": lambda attrs: None,
    "assume": lambda attrs, a: a,
    "reshape": lambda attrs, a: a,
    "broadcast": lambda attrs, a: a,
    "exti": lambda attrs, a: a,
    "trunci": lambda attrs, a: a,
    "addi": lambda attrs, a, b: a + b,
    "subi": lambda attrs, a, b: a - b,
    "muli": lambda attrs, a, b: a * b,
    "divi": _divide,
    "remi": _remainder,
    "mini": lambda attrs, a, b: min(a, b),
    "maxi": lambda attrs, a, b: max(a, b),
    "negi": lambda attrs, a: -a,
    "absi": lambda attrs, a: abs(a),
    "andi": lambda attrs, a, b: a & b,
    "ori": lambda attrs, a, b: a | b,
    "xori": lambda attrs, a, b: a ^ b,
    "shli": lambda attrs, a, b: a << min(b, 63),
    "shri": lambda attrs, a, b: a >> min(b, 63),
    "select": lambda attrs, c, a, b: a if c else b,
    "cmpi": lambda attrs, a, b: _COMPARE[attrs["predicate"]](a, b),
}
