"""Tile IR's floating-point operations as functions on stored tiles: ``fn(op, *operands) -> result``.

A reader can check each entry of ``FLOAT_OPS`` against the dialect's specification. Shapes are the operands' own (the
lane axis first, broadcasting over it), so the same functions serve inside reduce and scan regions. Rounding happens
after every operation, into the element type; f16 and bf16 compute in float32. Transcendental functions are
float32-accurate; what a kernel lets the hardware approximate has its error (:mod:`.approximation`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from . import dtypes
from .approximation import approximated
from .ir import Elem, Op, TileType
from .rounding import addcmul_is_fused, correctly_rounded, exact_integers_to_f64, exact_sqrt, flush, flush_nonnegative

Function = Callable[..., Tensor]

_TO_NEAREST: Final = frozenset({"nearest_even", "approx", "full"})
_INT_VIEW: Final = {torch.float32: torch.int32, torch.float64: torch.int64}


def _element(op: Op) -> Elem:
    kind = op.result_types[0]
    assert isinstance(kind, TileType)
    return kind.elem


def _source_element(op: Op) -> str:
    kind = op.operand_types[0]
    assert isinstance(kind, TileType)
    return str(kind.elem)


def _arithmetic(name: str, nearest: Function) -> Function:
    """An operation with ``rounding`` and ``flush_to_zero``; ``nearest`` is its plain form, one torch call."""

    def apply(op: Op, *operands: Tensor) -> Tensor:
        attrs = op.attrs
        rounding, flushes = attrs.get("rounding", "nearest_even"), attrs.get("flush_to_zero", False)
        if flushes:
            operands = tuple(flush(x) for x in operands)
        if rounding in _TO_NEAREST:
            result = approximated(op.name, rounding, operands, nearest(*operands))
        else:
            result = correctly_rounded(name, operands, str(_element(op)), rounding)
        return flush(result) if flushes else result

    return apply


def _sqrt(x: Tensor) -> Tensor:
    if x.dtype == torch.float64 or x.dtype == torch.float32:
        return exact_sqrt(x)
    return exact_sqrt(x.to(torch.float32)).to(x.dtype)


def fma(op: Op, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a·b + c with one rounding."""
    attrs = op.attrs
    rounding, flushes = attrs.get("rounding", "nearest_even"), attrs.get("flush_to_zero", False)
    if flushes:
        a, b, c = flush(a), flush(b), flush(c)
    if rounding in _TO_NEAREST and addcmul_is_fused(a.dtype):
        result = torch.addcmul(c, a, b)
    else:
        result = correctly_rounded("fma", (a, b, c), str(_element(op)), rounding)
    return flush(result) if flushes else result


def _extremum(torch_form: Function, numpy_form: np.ufunc, greater: bool) -> Function:
    """maxf or minf. Without ``propagate_nan`` a single NaN loses; +0 is greater than −0 either way."""

    def nearest(a: Tensor, b: Tensor, propagate: bool) -> Tensor:
        if a.dtype not in _INT_VIEW:
            return nearest(a.to(torch.float32), b.to(torch.float32), propagate).to(a.dtype)
        result = torch_form(a, b) if propagate else torch.from_numpy(np.asarray(numpy_form(a.numpy(), b.numpy())))
        return _order_zeros(a, b, result, greater)

    def apply(op: Op, a: Tensor, b: Tensor) -> Tensor:
        flushes = op.attrs.get("flush_to_zero", False)
        if flushes:
            a, b = flush(a), flush(b)
        return nearest(a, b, op.attrs.get("propagate_nan", False))

    return apply


def _has_negative_zero(x: Tensor, bits: torch.dtype) -> bool:
    # −0's bit pattern is the smallest integer of its width.
    return x.numel() > 0 and int(x.view(bits).amin()) == torch.iinfo(bits).min


def _order_zeros(a: Tensor, b: Tensor, result: Tensor, greater: bool) -> Tensor:
    """Hardware maxima return either zero of a pair; only tiles that hold a −0 pay for the correction."""
    bits = _INT_VIEW[a.dtype]
    suspicious = (result,) if greater else (a, b)
    if not any(_has_negative_zero(x, bits) for x in suspicious):
        return result
    left, right = a.view(bits), b.view(bits)
    # Equal values have equal bits, or are zeros, whose signs combine: plus wins a maximum, minus a minimum.
    merged = (left & right if greater else left | right).view(a.dtype)
    return torch.where(a == b, merged, result)


_ORDERED: Final[dict[str, Function]] = {
    "equal": torch.eq,
    "not_equal": lambda a, b: (a < b) | (a > b),
    "less_than": torch.lt,
    "less_than_or_equal": torch.le,
    "greater_than": torch.gt,
    "greater_than_or_equal": torch.ge,
}
# Unordered (true on NaN) is the negation of the opposite ordered comparison.
_UNORDERED: Final[dict[str, Function]] = {
    "equal": lambda a, b: ~((a < b) | (a > b)),
    "not_equal": torch.ne,
    "less_than": lambda a, b: ~(a >= b),
    "less_than_or_equal": lambda a, b: ~(a > b),
    "greater_than": lambda a, b: ~(a <= b),
    "greater_than_or_equal": lambda a, b: ~(a < b),
}


def cmpf(op: Op, a: Tensor, b: Tensor) -> Tensor:
    table = _ORDERED if op.attrs["ordering"] == "ordered" else _UNORDERED
    return table[op.attrs["predicate"]](a, b)


def _unary(function: Function, nonnegative: bool = False) -> Function:
    """A function that is accurate or approximate; ``nonnegative`` says that its results are never below zero."""

    def apply(op: Op, x: Tensor) -> Tensor:
        if not op.attrs.get("flush_to_zero", False):
            return approximated(op.name, op.attrs.get("rounding", "full"), (x,), function(x))
        if nonnegative:  # exp2 of a subnormal and of zero are both 1: only the result matters
            return flush_nonnegative(approximated(op.name, None, (x,), function(x)))
        return flush(approximated(op.name, None, (x,), function(flush(x))))

    return apply


def _binary(function: Function) -> Function:
    def apply(op: Op, a: Tensor, b: Tensor) -> Tensor:
        return function(a, b)

    return apply


def fpowi(op: Op, x: Tensor, n: Tensor) -> Tensor:
    """x to an integer power, through float64 so that large exponents keep their parity."""
    power = torch.pow(x.to(torch.float64), n.to(torch.float64))
    return dtypes.encode(power, str(_element(op)))


def ftof(op: Op, x: Tensor) -> Tensor:
    """Between floating-point types: decoded exactly, rounded once."""
    return dtypes.encode(
        dtypes.decode(x, _source_element(op)), str(_element(op)), op.attrs.get("rounding", "nearest_even")
    )


def ftoi(op: Op, x: Tensor) -> Tensor:
    """To an integer, toward zero. Out of range clamps and NaN gives 0, as the hardware does (the IR leaves it open)."""
    element, unsigned = str(_element(op)), op.attrs["signedness"] == "unsigned"
    value = dtypes.decode(x, _source_element(op))
    if element == "i1":
        return value != 0
    width = dtypes.BITS[element]
    exact = torch.nan_to_num(value.to(torch.float64), nan=0.0, posinf=2.0**70, neginf=-(2.0**70)).trunc()
    if unsigned and width == 64:
        return _to_u64(exact)
    low, high = (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    if width < 64:
        return exact.clamp(low, high).to(torch.int64).to(dtypes.storage(element))
    clamped = exact.clamp(-(2.0**63), 2.0**62).to(torch.int64)  # 2**63 − 1 is no float64: the top goes separately
    top = (exact.clamp(2.0**62, 2.0**63 - 2.0**10) - 2.0**62).to(torch.int64)
    return torch.where(exact >= 2.0**63, high, clamped + top)


def _to_u64(exact: Tensor) -> Tensor:
    """float64 whole numbers as bits of an unsigned 64-bit integer, clamped."""
    clamped = exact.clamp(0.0, 2.0**64 - 2.0**11)
    upper = clamped >= 2.0**63
    bits = torch.where(upper, clamped - 2.0**63, clamped).to(torch.int64)
    bits = torch.where(upper, bits | torch.iinfo(torch.int64).min, bits)
    return torch.where(exact >= 2.0**64, -1, bits)


def itof(op: Op, x: Tensor) -> Tensor:
    """From an integer, rounded once in the given direction; out of range is infinity, or NaN in a type without."""
    element, rounding = str(_element(op)), op.attrs.get("rounding", "nearest_even")
    unsigned, width = op.attrs["signedness"] == "unsigned", dtypes.BITS[_source_element(op)]
    if x.dtype == torch.bool:
        x = x.to(torch.int32) if unsigned else -x.to(torch.int32)
    elif unsigned and width < 64:
        x = x.to(torch.int64) & ((1 << width) - 1)
    u64 = unsigned and width == 64
    if element in ("f32", "f64") and rounding in _TO_NEAREST and not u64:
        return x.to(dtypes.storage(element))
    if element == "f64":
        return exact_integers_to_f64(x, u64, rounding)
    wide = x.to(torch.int64)
    value = _exact_or_odd(wide)
    if u64:
        half = ((wide >> 1) & torch.iinfo(torch.int64).max) | (wide & 1)  # the lost bit stays as sticky
        value = torch.where(wide < 0, 2.0 * _exact_or_odd(half), value)
    result = dtypes.encode(value, element, rounding)
    return _unsaturated(result, value, element, rounding) if element in _BEYOND else result


# What an integer beyond an 8-bit float becomes: NaN in E4M3, which has no infinity, and infinity in E5M2. Between
# floating-point types such values saturate instead; the specification says it for integers only.
_BEYOND: Final = {"f8E4M3FN": 0x7F, "f8E5M2": 0x7C}


def _unsaturated(codes: Tensor, value: Tensor, element: str, rounding: str) -> Tensor:
    form = dataclasses.replace(dtypes.FORMATS[element], saturates=False)
    over = torch.from_numpy(np.isinf(dtypes.quantize(value.numpy(), form, rounding)))
    sign = codes & 0x80 if element == "f8E5M2" else 0
    return torch.where(over, _BEYOND[element] | sign, codes)


def _exact_or_odd(x: Tensor) -> Tensor:
    """int64 as float64: exact up to 2**53, beyond it with the low bits gathered into one sticky bit.

    Rounding the result to 24 bits or fewer, in any direction, is then rounding the integer.
    """
    mask = 0xFFF
    sticky = ((x & mask) != 0).to(torch.int64) << 11
    large = (x >= 1 << 53) | (x <= -(1 << 53))
    return torch.where(large, (x & ~mask) | sticky, x).to(torch.float64)


FLOAT_OPS: Final[dict[str, Function]] = {
    "addf": _arithmetic("add", torch.add),
    "subf": _arithmetic("sub", torch.sub),
    "mulf": _arithmetic("mul", torch.mul),
    "divf": _arithmetic("div", torch.div),
    "sqrt": _arithmetic("sqrt", _sqrt),
    "fma": fma,
    "remf": _binary(torch.fmod),
    "maxf": _extremum(torch.maximum, np.fmax, greater=True),
    "minf": _extremum(torch.minimum, np.fmin, greater=False),
    "absf": _unary(torch.abs),
    "negf": _unary(torch.neg),
    "floor": _unary(torch.floor),
    "ceil": _unary(torch.ceil),
    "exp": _unary(torch.exp),
    "exp2": _unary(torch.exp2, nonnegative=True),
    "log": _unary(torch.log),
    "log2": _unary(torch.log2),
    "rsqrt": _unary(torch.rsqrt),
    "sin": _unary(torch.sin),
    "cos": _unary(torch.cos),
    "tan": _unary(torch.tan),
    "sinh": _unary(torch.sinh),
    "cosh": _unary(torch.cosh),
    "tanh": _unary(torch.tanh),
    "atan2": _binary(torch.atan2),
    "fpowf": _binary(torch.pow),
    "fpowi": fpowi,
    "cmpf": cmpf,
    "ftof": ftof,
    "ftoi": ftoi,
    "itof": itof,
}
