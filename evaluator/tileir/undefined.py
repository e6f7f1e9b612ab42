"""Operands for which an operation is undefined: division by zero, shifts by the width, conversions out of range, tiles
beyond a tile, assumptions that do not hold.

A scalar so used is a defect.  An element of a tile may be meant to be thrown away (padding, a masked row), so tiles
only give a note, and an assumption too; what is made of it is no value (:func:`.launch.run`, ``undefined``).  Each
check gives a mask of bad elements, or None where the operation is defined for all operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def _outside(whole: ir.Type, part: ir.Type, indices: Sequence[Tensor]) -> Tensor:
    """Where a sub-tile of this number lies beyond the tile."""
    assert isinstance(whole, ir.TileType)
    assert isinstance(part, ir.TileType)
    bad = torch.zeros(1, dtype=torch.bool)
    for size, width, index in zip(whole.shape, part.shape, indices, strict=True):
        bad = bad | (index < 0) | (index >= max(size // width, 1))
    return bad


def _extraction(op: ir.Op, x: Tensor, *indices: Tensor) -> Tensor:
    return _outside(op.operand_types[0], op.result_types[0], indices)


def _insertion(op: ir.Op, x: Tensor, into: Tensor, *indices: Tensor) -> Tensor:
    return _outside(op.operand_types[1], op.operand_types[0], indices)


def _assumption(op: ir.Op, x: Tensor) -> Tensor | None:
    kind, assumed = op.operand_types[0], op.attrs["assume"]
    if not isinstance(kind, ir.TileType) or isinstance(kind.elem, ir.PtrElem) or kind.elem == "i1":
        return None
    bad = torch.zeros_like(x, dtype=torch.bool)
    if assumed.kind == "div_by":
        bad |= x % assumed.divisor != 0
    if assumed.low is not None:
        bad |= x < assumed.low
    if assumed.high is not None:
        bad |= x > assumed.high
    return bad


# operation: (kind of finding, what is wrong, check)
CHECKS: dict[str, tuple[str, str, Callable[..., Tensor | None]]] = {
    "divi": ("divide-by-zero", "division by zero, or of the least integer by -1", _division),
    "remi": ("divide-by-zero", "remainder by zero, or of the least integer by -1", _division),
    "shli": ("shift", "a shift by a negative number or by the width or more", _shift),
    "shri": ("shift", "a shift by a negative number or by the width or more", _shift),
    "extract": ("sub-tile", "a sub-tile beyond its tile", _extraction),
    "insert": ("sub-tile", "a sub-tile beyond its tile", _insertion),
    "assume": ("assumption", "a value that is not as the kernel says it is", _assumption),
    "ftoi": ("float-to-int", "a number out of the integer type's range, or NaN", _conversion),
}
