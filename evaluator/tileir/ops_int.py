"""Tile IR's integer operations as functions on stored tiles: ``fn(op, *operands) -> result``.

Integers are signless and wrap around; signedness is an attribute of the operation. Tiles are torch's signed integers,
so unsigned order is signed order with the top bit flipped, and unsigned division widens (or uses numpy's uint64).
What the IR leaves undefined is defined here and never traps: a quotient by zero is all ones and its remainder the
dividend (as in RISC-V), the most negative number over −1 wraps, a shift by the width or more shifts everything out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from . import dtypes
from .ir import Op, TileType

Function = Callable[..., Tensor]

_MIN: Final = {t: torch.iinfo(t).min for t in (torch.int8, torch.int16, torch.int32, torch.int64)}
_WIDTH: Final = {torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}


def _elem(kind: object) -> str:
    assert isinstance(kind, TileType)
    return str(kind.elem)


def _unsigned(op: Op) -> bool:
    return bool(op.attrs["signedness"] == "unsigned")


def _plain(function: Function, on_bits: Function) -> Function:
    """Wrap-around arithmetic; on i1 it is the bit operation that addition modulo 2 makes of it."""

    def apply(op: Op, *operands: Tensor) -> Tensor:
        return on_bits(*operands) if operands[0].dtype == torch.bool else function(*operands)

    return apply


def _widen(x: Tensor, unsigned: bool) -> Tensor:
    """i1…i32 as int64 with the value that the signedness gives the bits."""
    if x.dtype == torch.bool:
        wide = x.to(torch.int64)
        return wide if unsigned else -wide
    wide = x.to(torch.int64)
    return wide & ((1 << _WIDTH[x.dtype]) - 1) if unsigned else wide


def _flip(x: Tensor) -> Tensor:
    """Unsigned order as signed order."""
    return x ^ _MIN[x.dtype]


def _ordered(a: Tensor, b: Tensor, unsigned: bool) -> tuple[Tensor, Tensor]:
    """Operands whose torch order is the order that the signedness asks for."""
    if a.dtype == torch.bool:
        return (a, b) if unsigned else (~a, ~b)  # a signed i1 true is −1
    return (_flip(a), _flip(b)) if unsigned else (a, b)


_COMPARE: Final[dict[str, Function]] = {
    "less_than": torch.lt,
    "less_than_or_equal": torch.le,
    "greater_than": torch.gt,
    "greater_than_or_equal": torch.ge,
}


def cmpi(op: Op, a: Tensor, b: Tensor) -> Tensor:
    predicate = op.attrs["predicate"]
    if predicate == "equal":
        return a == b
    if predicate == "not_equal":
        return a != b
    return _COMPARE[predicate](*_ordered(a, b, _unsigned(op)))


def _extremum(function: Function, on_bits: Function, on_signed_bits: Function) -> Function:
    def apply(op: Op, a: Tensor, b: Tensor) -> Tensor:
        unsigned = _unsigned(op)
        if a.dtype == torch.bool:
            return (on_bits if unsigned else on_signed_bits)(a, b)
        if not unsigned:
            return function(a, b)
        return _flip(function(_flip(a), _flip(b)))

    return apply


def _floor_mode(rounding: str, negative: Tensor, inexact: Tensor) -> Tensor | None:
    """What to add to a truncated quotient: floor takes one off below zero, ceil adds one above."""
    if rounding == "negative_inf":
        return -(inexact & negative).to(torch.int64)
    if rounding == "positive_inf":
        return (inexact & ~negative).to(torch.int64)
    return None


def _divide_signed(a: Tensor, b: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
    """int64 quotient and remainder; the remainder belongs to the truncated quotient (C's)."""
    by_zero, by_minus_one = b == 0, b == -1
    safe = torch.where(by_zero | by_minus_one, 1, b)  # both would trap: x86 faults on INT64_MIN / −1
    quotient = torch.div(a, safe, rounding_mode="trunc")
    remainder = a - quotient * safe
    step = _floor_mode(rounding, (a < 0) != (safe < 0), remainder != 0)
    if step is not None:
        quotient = quotient + step
    quotient = torch.where(by_minus_one, -a, quotient)
    return torch.where(by_zero, -1, quotient), torch.where(by_zero, a, remainder)


def _divide_u64(a: Tensor, b: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
    a, b = torch.broadcast_tensors(a, b)
    left = np.asarray(a.numpy()).view(np.uint64) if a.dim() else np.asarray(a.numpy()).reshape(1).view(np.uint64)
    right = np.asarray(b.numpy()).view(np.uint64) if b.dim() else np.asarray(b.numpy()).reshape(1).view(np.uint64)
    by_zero = right == 0
    quotient, remainder = np.divmod(left, np.where(by_zero, np.uint64(1), right))
    if rounding == "positive_inf":
        quotient = quotient + (remainder != 0)
    quotient = np.where(by_zero, np.uint64(0xFFFF_FFFF_FFFF_FFFF), quotient)
    remainder = np.where(by_zero, left, remainder)
    return tuple(torch.from_numpy(x.view(np.int64)).reshape(a.shape) for x in (quotient, remainder))  # type: ignore[return-value]


def _divmod(op: Op, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    unsigned, rounding = _unsigned(op), op.attrs.get("rounding", "zero")
    if unsigned and a.dtype == torch.int64:
        return _divide_u64(a, b, rounding)
    return _divide_signed(_widen(a, unsigned), _widen(b, unsigned), rounding)


def _narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (x & 1).to(torch.bool) if dtype == torch.bool else x.to(dtype)


def divi(op: Op, a: Tensor, b: Tensor) -> Tensor:
    """Quotient toward zero, or floor or ceiling by ``rounding``."""
    return _narrow(_divmod(op, a, b)[0], a.dtype)


def remi(op: Op, a: Tensor, b: Tensor) -> Tensor:
    """C's remainder: it has the dividend's sign."""
    return _narrow(_divmod(op, a, b)[1], a.dtype)


def _amount(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The shift amount limited to the width, and where it was too large (amounts are unsigned)."""
    width = _WIDTH[a.dtype]
    return b.clamp(0, width - 1), (b < 0) | (b >= width)


def shli(op: Op, a: Tensor, b: Tensor) -> Tensor:
    if a.dtype == torch.bool:
        return a & ~b
    amount, beyond = _amount(a, b)
    return torch.where(beyond, 0, a << amount)


def shri(op: Op, a: Tensor, b: Tensor) -> Tensor:
    unsigned = _unsigned(op)
    if a.dtype == torch.bool:
        return a & ~b if unsigned else a.clone()
    amount, beyond = _amount(a, b)
    if not unsigned:
        return torch.where(beyond, a >> (_WIDTH[a.dtype] - 1), a >> amount)
    # Shift arithmetically, then clear the copies of the sign: the mask is −1 << (width − amount), built in two steps.
    copies = torch.where(amount == 0, 0, (_MIN[a.dtype] >> (amount - 1).clamp(min=0)))
    return torch.where(beyond, 0, (a >> amount) & ~copies)


def mulhii(op: Op, a: Tensor, b: Tensor) -> Tensor:
    """The upper half of the double-width unsigned product."""
    if a.dtype != torch.int64:
        width = dtypes.BITS[_elem(op.result_types[0])]
        # 32×32 bits may pass 2**63, but the bits that wrap are above the ones kept after masking.
        product = _widen(a, unsigned=True) * _widen(b, unsigned=True)
        return _narrow(product >> width, a.dtype)
    low, half = 0xFFFF_FFFF, 32
    a1, a0 = (a >> half) & low, a & low
    b1, b0 = (b >> half) & low, b & low
    cross = a1 * b0 + ((a0 * b0) >> half & low)
    other = a0 * b1 + (cross & low)
    return a1 * b1 + (cross >> half & low) + (other >> half & low)


def exti(op: Op, x: Tensor) -> Tensor:
    wide = _widen(x, _unsigned(op))
    return _narrow(wide, dtypes.storage(_elem(op.result_types[0])))


def trunci(op: Op, x: Tensor) -> Tensor:
    return _narrow(x, dtypes.storage(_elem(op.result_types[0])))


INT_OPS: Final[dict[str, Function]] = {
    "addi": _plain(torch.add, torch.bitwise_xor),
    "subi": _plain(torch.sub, torch.bitwise_xor),
    "muli": _plain(torch.mul, torch.bitwise_and),
    "negi": _plain(torch.neg, torch.clone),
    "absi": _plain(torch.abs, torch.clone),
    "mulhii": mulhii,
    "divi": divi,
    "remi": remi,
    "shli": shli,
    "shri": shri,
    "andi": lambda op, a, b: a & b,
    "ori": lambda op, a, b: a | b,
    "xori": lambda op, a, b: a ^ b,
    "maxi": _extremum(torch.maximum, torch.bitwise_or, torch.bitwise_and),
    "mini": _extremum(torch.minimum, torch.bitwise_and, torch.bitwise_or),
    "cmpi": cmpi,
    "exti": exti,
    "trunci": trunci,
}
