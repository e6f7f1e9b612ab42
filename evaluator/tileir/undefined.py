"""Operands for which an operation is undefined: division by zero, shifts by the width, conversions out of range.

A scalar so used is a defect.  An element of a tile may be meant to be thrown away (padding, a masked row), so tiles
only give a note.  Each check gives a mask of bad elements, or None where the operation is defined for all operands.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import dtypes, ir


def _division(op: ir.Op, a: Tensor, b: Tensor) -> Tensor:
    bad = b == 0
    if op.attrs["signedness"] == "signed" and a.dtype != torch.bool:
        bad = bad | ((b == -1) & (a == torch.iinfo(a.dtype).min))
    return bad


def _shift(op: ir.Op, a: Tensor, b: Tensor) -> Tensor:
    return (b < 0) | (b >= 8 * b.dtype.itemsize)


def _conversion(op: ir.Op, x: Tensor) -> Tensor | None:
    source, target = op.operand_types[0], op.result_types[0]
    assert isinstance(source, ir.TileType)
    assert isinstance(target, ir.TileType)
    if op.attrs["saturating"] or target.elem == "i1":
        return None
    bits = dtypes.BITS[str(target.elem)]
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if op.attrs["signedness"] == "signed" else (0.0, 2.0**bits)
    value = dtypes.decode(x, str(source.elem))
    return ~((value > low - 1) & (value < high)) if bits < 32 else ~((value >= low) & (value < high))


# operation: (kind of finding, what is wrong, check)
CHECKS: dict[str, tuple[str, str, Callable[..., Tensor | None]]] = {
    "divi": ("divide-by-zero", "division by zero, or of the least integer by -1", _division),
    "remi": ("divide-by-zero", "remainder by zero, or of the least integer by -1", _division),
    "shli": ("shift", "a shift by a negative number or by the width or more", _shift),
    "shri": ("shift", "a shift by a negative number or by the width or more", _shift),
    "ftoi": ("float-to-int", "a number out of the integer type's range, or NaN", _conversion),
}
