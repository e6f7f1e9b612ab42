"""The errors of operations that a kernel lets the hardware approximate: ``rounding<approx|full>``, ``flush_to_zero``.

Computed accurately here, they would look better than they are.  So each result is moved by a part of the error that
NVIDIA documents, of either sign: which part is told by the bits of the operands, so that equal operands give equal
results, as on the hardware, and drawn operands give drawn errors.  The judge's limits then say whether an
approximation is good enough where it stands.

Bounds: PTX ISA 9.0, "Floating Point Instructions" (tanh.approx, ex2.approx, div.approx, div.full, sqrt.approx,
rsqrt.approx, all of f32).  exp is ex2 of x log2(e), which is rounded to float32 first.

Of tanh.approx all float32 were tried on an H200 (November 2026): it is within 2^-16.4 there, and ±1 from 8 on.  The
bound here is the documented one, for every chip; that it ends in ±1 is taken from the H200, as a GELU of large negative
numbers hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .rounding import SMALLEST_NORMAL_F32

ULP: Final = 2.0**-23  # of a result, relative to it, at most
SATURATED: Final = 8.0  # from which on tanh.approx is 1
LARGE: Final = 2.0**126  # a divisor beyond it gives 0, or NaN for an infinite dividend: div.approx

Bound = Callable[..., Tensor | float]

# (operation, rounding) -> the largest error relative to the result; None: where subnormals are flushed.
BOUNDS: Final[dict[tuple[str, str | None], Bound]] = {
    ("tanh", "approx"): lambda x: 2.0**-11,
    ("exp", "approx"): lambda x: 2 * ULP + x.abs() * (1.25 * 2.0**-24),
    ("exp2", None): lambda x: 2 * ULP,
    ("divf", "approx"): lambda a, b: 2 * ULP,
    ("divf", "full"): lambda a, b: 2 * ULP,
    ("sqrt", "approx"): lambda x: ULP,
    ("rsqrt", None): lambda x: 2.0**-22.9,
}


def approximated(name: str, rounding: str | None, operands: tuple[Tensor, ...], result: Tensor) -> Tensor:
    """``result``, which the operation has for these operands, with its error; as it is where it has none.

    float32 alone is approximated; zeros, infinities, NaN and the powers 0 are exact, and no tanh is above 1.
    """
    bound = BOUNDS.get((name, rounding))
    if bound is None or result.dtype != torch.float32:
        return result
    moved = result + result * (_part(operands) * bound(*operands))
    moved = torch.where(torch.isfinite(moved), moved, result)  # also where the bound is infinite: exp of -inf
    if name in ("exp", "exp2"):
        moved = torch.where(operands[0].abs() < SMALLEST_NORMAL_F32, result, moved)
    if name == "tanh":
        moved = torch.where(operands[0].abs() >= SATURATED, result.sign(), moved.clamp(-1.0, 1.0))
    if (name, rounding) == ("divf", "approx"):
        a, b = operands
        beyond = (b.abs() > LARGE) & torch.isfinite(b)
        moved = torch.where(beyond, torch.where(torch.isinf(a), torch.nan, 0.0 * result.sign()), moved)
    return moved


def _part(operands: tuple[Tensor, ...]) -> Tensor:
    """A number in [-1, 1) for each tuple of operands, even over their bits (multiply and xor-shift, twice)."""
    mixed: Tensor | int = 0x2545F491
    for x in operands:
        mixed = (x.contiguous().view(torch.int32) ^ mixed) * -1640531535  # 2**32 / golden ratio, odd
        mixed = (mixed ^ _shifted(mixed, 15)) * -2048144777
    assert isinstance(mixed, Tensor)
    return (mixed ^ _shifted(mixed, 13)).to(torch.float32) * 2.0**-31


def _shifted(x: Tensor, bits: int) -> Tensor:
    """``x``, i32, shifted right, zeros coming in."""
    return (x >> bits) & (2 ** (32 - bits) - 1)
