"""Correctly rounded +, −, ×, ÷, √ and fused multiply-add in any direction, and flushing of subnormals.

For the operations that say ``rounding<...>`` or need a single rounding; to-nearest float32 arithmetic is torch's own
and does not come here. Inputs of up to 24 significand bits are computed in float64 *rounded to odd* (the inexact last
bit set), after which one more rounding in any direction is the rounding of the exact result (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE ToC 2008). float64 itself
has no wider type here and goes through exact rational numbers, element by element: slow, and rare (its fused
multiply-add to nearest is torch's, where that is fused).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from . import dtypes

SMALLEST_NORMAL_F32 = 2.0**-126
# The largest float32 below it: ``threshold`` keeps what is strictly greater.
_LARGEST_SUBNORMAL_F32 = SMALLEST_NORMAL_F32 - 2.0**-149

_NEAR_1 = {torch.float32: 2.0**-12, torch.float64: 2.0**-30}  # the square of 1 + this has a few bits too many


def flush(x: Tensor) -> Tensor:
    """float32 ``x`` with subnormals replaced by zeros of the same sign."""
    return torch.where(x.abs() < SMALLEST_NORMAL_F32, x * 0.0, x)


def flush_nonnegative(x: Tensor) -> Tensor:
    """:func:`flush` for ``x`` known to be NaN, +0 or positive; may work in place."""
    return torch.nn.functional.threshold(x, _LARGEST_SUBNORMAL_F32, 0.0, inplace=True)


@functools.cache
def addcmul_is_fused(dtype: torch.dtype) -> bool:
    """Whether torch's addcmul multiplies and adds with one rounding here (its AVX2 and AVX-512 builds do).

    dtype: float32 or float64; of others nothing is promised.

    Asked of the vectorised loop, its tail and the strided loop, on sums that cancel all but the product's last bits.
    """
    if dtype not in _NEAR_1:
        return False
    a = torch.arange(1, 48, dtype=dtype) * _NEAR_1[dtype] + 1.0
    lost = [float(Fraction(x) ** 2 - Fraction(x_x)) for x, x_x in zip(a.tolist(), (a * a).tolist(), strict=True)]
    exact = torch.tensor(lost, dtype=dtype)
    cases = [(a, exact), (a[:1], exact[:1]), (a[::3], exact[::3]), (a[:45].view(15, 3).T, exact[:45].view(15, 3).T)]
    return bool(exact.any()) and all(torch.equal(torch.addcmul(-(x * x), x, x), rest) for x, rest in cases)


def exact_integers_to_f64(x: Tensor, unsigned: bool, direction: str) -> Tensor:
    """64-bit integers as float64, rounded once in ``direction``; element by element."""
    wrap = 1 << 64
    values = [_round_fraction(Fraction(v % wrap if unsigned else v), direction, 0.0) for v in x.reshape(-1).tolist()]
    return torch.tensor(values, dtype=torch.float64).reshape(x.shape)


def exact_sqrt(x: Tensor) -> Tensor:
    """Correctly rounded √ of float32 or float64: numpy asks the hardware, torch's vectorised one can miss by an ulp."""
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))


def _odd(rounded: Tensor, error: Tensor) -> Tensor:
    """float64 nearest value ``rounded`` of the exact ``rounded + error``, turned into its rounding to odd."""
    bits = rounded.view(torch.int64)
    toward_zero = (error < 0) != (rounded < 0)
    # A zero can't be inexact here: sums of floats are exact when they underflow.
    odd = torch.where(toward_zero, bits - 1, bits) | 1
    inexact = (error != 0) & torch.isfinite(rounded) & ~torch.isnan(error)
    return torch.where(inexact, odd, bits).view(torch.float64)


def _sum_odd(a: Tensor, b: Tensor) -> Tensor:
    """a + b rounded to odd; the error is Knuth's TwoSum."""
    total = a + b
    shadow = total - a
    error = (a - (total - shadow)) + (b - shadow)
    return _odd(total, error)


def _exact_f64(x: float) -> Fraction | None:
    return Fraction(x) if math.isfinite(x) else None


def _round_fraction(value: Fraction, direction: str, zero: float) -> float:
    """Round a rational to float64; an exact zero becomes ``zero`` (its sign follows IEEE's rules for the operation)."""
    if value == 0:
        return zero
    try:
        nearest = float(value)  # CPython rounds int/int to nearest even
    except OverflowError:
        nearest = math.copysign(math.inf, value)
    if direction not in ("zero", "negative_inf", "positive_inf"):
        return nearest
    down = direction == "negative_inf" or (direction == "zero" and value > 0)
    if math.isinf(nearest):
        if (nearest > 0) == down:
            return math.copysign(math.nextafter(math.inf, 0.0), nearest)
        return nearest
    exact = Fraction(nearest)
    if down and exact > value:
        nearest = math.nextafter(nearest, -math.inf)
    elif not down and exact < value:
        nearest = math.nextafter(nearest, math.inf)
    return nearest if nearest else math.copysign(0.0, value)


def _exact_sqrt(x: float, direction: str) -> float:
    """√x of a finite positive float64, rounded in ``direction``."""
    nearest = math.sqrt(x)
    if direction not in ("zero", "negative_inf", "positive_inf"):
        return nearest
    square, value = Fraction(nearest) ** 2, Fraction(x)
    if direction == "positive_inf":
        return math.nextafter(nearest, math.inf) if square < value else nearest
    return math.nextafter(nearest, 0.0) if square > value else nearest


_RATIONAL: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}
_FLOAT: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
    "sqrt": lambda a: exact_sqrt(a),
}


def _elementwise_f64(name: str, direction: str, operands: tuple[Tensor, ...]) -> Tensor:
    """float64 arithmetic through rationals; special values and signs of zero are those of the hardware operation."""
    operands = torch.broadcast_tensors(*operands)
    plain = _FLOAT[name](*operands)
    flat = plain.reshape(-1).tolist()
    columns = [x.reshape(-1).tolist() for x in operands]
    for i, values in enumerate(zip(*columns, strict=True)):
        exact = [_exact_f64(v) for v in values]
        if any(e is None for e in exact) or (name == "div" and values[1] == 0.0):
            # a*b of finite numbers may overflow where c is infinite: the sum is c
            if name == "fma" and exact[0] is not None and exact[1] is not None:
                flat[i] = values[2]
            continue
        if name == "sqrt":
            flat[i] = _exact_sqrt(values[0], direction) if values[0] > 0 else flat[i]
            continue
        result = _RATIONAL[name](*exact)
        cancels = result == 0 and name in ("add", "sub", "fma")
        zero = _zero_of_sum(name, values, direction) if cancels else flat[i]
        flat[i] = _round_fraction(result, direction, zero)
    return torch.tensor(flat, dtype=torch.float64).reshape(plain.shape)


def _zero_of_sum(name: str, values: tuple[float, ...], direction: str) -> float:
    """The zero of an exactly cancelling sum: equal signs keep theirs, else +0, or −0 when rounding down (IEEE 6.3)."""
    if name == "fma":
        left = math.copysign(1.0, values[0]) * math.copysign(1.0, values[1])
        right, product_is_zero = math.copysign(1.0, values[2]), 0.0 in values[:2]
        both_zero = product_is_zero and values[2] == 0.0
    else:
        left = math.copysign(1.0, values[0])
        right = math.copysign(1.0, values[1]) * (-1.0 if name == "sub" else 1.0)
        both_zero = values[0] == 0.0 and values[1] == 0.0
    if both_zero and left == right:
        return math.copysign(0.0, left)
    return -0.0 if direction == "negative_inf" else 0.0


def _narrow(name: str, operands: tuple[Tensor, ...]) -> Tensor:
    """The float64 stand-in of the exact result for operands of at most 24 significand bits."""
    if name == "fma":
        a, b, c = operands
        return _sum_odd(a * b, c)  # the product of two 24-bit numbers is exact
    if name in ("add", "sub"):
        a, b = operands
        return _sum_odd(a, b if name == "add" else -b)
    # Exact products. A 24-bit quotient or root that is not exact is at least 2**-49 (relative) away from any 25-bit
    # number, so 53-bit nearest never lands on a value of the target or a midpoint of two unless it is exact.
    return _FLOAT[name](*operands)


def correctly_rounded(name: str, operands: tuple[Tensor, ...], element: str, direction: str) -> Tensor:
    """``name`` (add sub mul div fma sqrt) of tensors stored as ``element``, rounded once in ``direction``."""
    if element == "f64":
        return _elementwise_f64(name, direction, operands)
    wide = tuple(dtypes.decode(x, element).to(torch.float64) for x in operands)
    result = _narrow(name, wide)
    if direction == "negative_inf" and name in ("add", "sub", "fma"):
        # Opposite signs that cancel give −0 when rounding down; equal zeros keep their sign, as the nearest result has.
        result = torch.where((result == 0) & ~_positive_zeros(name, wide), -result.abs(), result)
    return dtypes.encode(result, element, direction)


def _positive_zeros(name: str, operands: tuple[Tensor, ...]) -> Tensor:
    """Where both terms of a sum are +0."""
    left = operands[0] * operands[1] if name == "fma" else operands[0]
    right = -operands[-1] if name == "sub" else operands[-1]
    return (left == 0) & (right == 0) & ~torch.signbit(left) & ~torch.signbit(right)
