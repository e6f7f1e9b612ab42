"""Tile IR element types on the CPU: how each is stored in a torch tensor, and how values round into it.

Pure functions on tensors and nothing else; the operations that use them are in ops_float, ops_int and ops_mma.

Storage: ``i1`` is bool, ``i8``…``i64`` are torch's signed integers (signedness belongs to the operations), ``f16``,
``bf16``, ``f32``, ``f64`` are native, ``tf32`` is a float32 that holds tf32-rounded values, the 8-bit floats and the
4-bit float are uint8 codes (one code a byte in registers; memory packs two 4-bit codes a byte), pointers are int64.

Formats: IEEE 754; OCP 8-bit Floating Point Specification 1.0 (f8E4M3FN, f8E5M2); OCP Microscaling Formats 1.0
(f8E8M0FNU, f4E2M1FN). Where those leave a choice (overflow, NaN) we take what PTX's ``cvt.satfinite`` does, as written
out for the host in CUDA's cuda_fp8.hpp and cuda_fp4.hpp: magnitudes beyond the largest finite value saturate, infinity
too; NaN becomes the positive canonical NaN, or the largest finite value in the format without NaN.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

Rounding = Literal[
    "nearest_even", "nearest_away", "zero", "negative_inf", "positive_inf", "nearest_int_to_zero", "approx", "full"
]


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format.

    ``fraction`` is the number of stored significand bits, ``min_exponent`` the exponent of the smallest normal number,
    ``max_finite`` the largest finite magnitude. ``saturates``: overflow gives ``max_finite``, not infinity.
    ``nan_code`` is the canonical NaN of a format stored as a code (None: it has no NaN, or torch knows the format).
    """

    fraction: int
    min_exponent: int
    max_finite: float
    saturates: bool = False
    nan_code: int | None = None


FORMATS: Final[dict[str, FloatFormat]] = {
    "f16": FloatFormat(10, -14, 65504.0),
    "bf16": FloatFormat(7, -126, float(torch.finfo(torch.bfloat16).max)),
    "tf32": FloatFormat(10, -126, (2.0 - 2.0**-10) * 2.0**127),
    "f32": FloatFormat(23, -126, float(np.finfo(np.float32).max)),
    "f8E4M3FN": FloatFormat(3, -6, 448.0, saturates=True, nan_code=0x7F),
    "f8E5M2": FloatFormat(2, -14, 57344.0, saturates=True, nan_code=0x7F),
    "f8E8M0FNU": FloatFormat(0, -127, 2.0**127, saturates=True, nan_code=0xFF),
    "f4E2M1FN": FloatFormat(1, 0, 6.0, saturates=True),
}

# What a load puts where a tile has no element, as codes: a conversion would saturate.  Found in the machine code that
# tileiras 13.4.92 makes of such loads (the NaN of f8E5M2 is 0x7E there, and 0x7F where a number is converted); it
# refuses what the format has not.
PADDING_CODES: Final[dict[str, dict[str, int]]] = {
    "f8E4M3FN": {"zero": 0x00, "neg_zero": 0x80, "nan": 0x7F},
    "f8E5M2": {"zero": 0x00, "neg_zero": 0x80, "nan": 0x7E, "pos_inf": 0x7C, "neg_inf": 0xFC},
    "f8E8M0FNU": {"zero": 0x00, "nan": 0xFF},
    "f4E2M1FN": {"zero": 0x0, "neg_zero": 0x8},
}

STORAGE: Final[dict[str, torch.dtype]] = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "f32": torch.float32,
    "f64": torch.float64,
    "f8E4M3FN": torch.uint8,
    "f8E5M2": torch.uint8,
    "f8E8M0FNU": torch.uint8,
    "f4E2M1FN": torch.uint8,
}

BITS: Final[dict[str, int]] = {
    "i1": 1,
    "i4": 4,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f32": 32,
    "f64": 64,
    "f8E4M3FN": 8,
    "f8E5M2": 8,
    "f8E8M0FNU": 8,
    "f4E2M1FN": 4,
}

NATIVE_FLOATS: Final = frozenset({"f16", "bf16", "f32", "f64"})
CODED_FLOATS: Final = frozenset({"f8E4M3FN", "f8E5M2", "f8E8M0FNU", "f4E2M1FN"})
INTEGERS: Final = frozenset({"i1", "i8", "i16", "i32", "i64"})


def is_float(element: str) -> bool:
    """Whether ``element`` is a floating-point type (tf32 and the coded types included)."""
    return element in FORMATS or element == "f64"


def storage(element: str) -> torch.dtype:
    """The torch dtype that holds tiles of ``element``; pointers are int64. KeyError for a type that can't be stored."""
    return torch.int64 if element.startswith("ptr") else STORAGE[element]


def decode(x: Tensor, element: str) -> Tensor:
    """The exact values of stored ``x`` as float32 (float64 when ``element`` is f64); a float32 tensor is not copied."""
    if element in CODED_FLOATS:
        return _decode_codes(x, element)
    return x if element == "f64" else x.to(torch.float32)


def encode(x: Tensor, element: str, rounding: str = "nearest_even") -> Tensor:
    """Round float32 or float64 ``x`` once into the storage of the floating-point type ``element``.

    ``rounding`` is one of Tile IR's words; ``approx`` and ``full`` permit any nearby value and round to nearest.
    """
    fast = _FAST_ENCODERS.get((x.dtype, element, rounding))
    if fast is not None:
        return fast(x)
    if element == "f64" or (element == "f32" and x.dtype == torch.float32):
        return x.to(storage(element))
    return _encode_exactly(x, element, rounding)


def round_integral(x: np.ndarray, rounding: str) -> np.ndarray:
    """Round each float64 to an integral float64 in the direction ``rounding``."""
    if rounding == "nearest_away":
        whole = np.trunc(x)
        return whole + np.copysign((np.abs(x - whole) >= 0.5).astype(np.float64), x)
    directed = {"zero": np.trunc, "nearest_int_to_zero": np.trunc, "negative_inf": np.floor, "positive_inf": np.ceil}
    result: np.ndarray = directed.get(rounding, np.rint)(x)
    return result


def quantize(x: np.ndarray, form: FloatFormat, rounding: str) -> np.ndarray:
    """The values of ``form`` that float64 ``x`` round to, as float64 (exact: every format here is narrower)."""
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(x)
        step = np.maximum(exponent - 1, form.min_exponent) - form.fraction
        rounded = np.ldexp(round_integral(np.ldexp(x, -step), rounding), step)
    rounded = np.where(np.isfinite(x), rounded, x)
    if form.saturates:
        return np.clip(rounded, -form.max_finite, form.max_finite)
    # An overflow goes to infinity unless the direction points back to the finite numbers; infinity itself stays.
    back = {"zero": (True, True), "negative_inf": (True, False), "positive_inf": (False, True)}
    high, low = back.get(rounding, (False, False))
    over = np.isfinite(x) & (np.abs(rounded) > form.max_finite)
    limit = np.where(rounded > 0, form.max_finite if high else np.inf, -form.max_finite if low else -np.inf)
    return np.where(over, limit, rounded)


def _encode_exactly(x: Tensor, element: str, rounding: str) -> Tensor:
    """The general way, through float64: right for every source, format and direction, but many passes."""
    form = FORMATS[element]
    values = x.to(torch.float64).numpy()
    if element == "f8E8M0FNU":  # no sign and no zero: magnitudes, and nothing is below 2**-127
        nearest = rounding not in ("zero", "positive_inf", "negative_inf")
        magnitude = quantize(np.abs(values), form, "nearest_away" if nearest else rounding)
        values = np.maximum(magnitude, 2.0**form.min_exponent)
    else:
        values = quantize(values, form, rounding)
    if element not in CODED_FLOATS:
        return torch.from_numpy(np.asarray(values)).to(storage(element))
    return torch.from_numpy(np.asarray(_codes(values, form, element)))


def _codes(values: np.ndarray, form: FloatFormat, element: str) -> np.ndarray:
    """The codes (uint8) of float64 ``values`` that are exact in ``form``, NaN aside."""
    nan = np.isnan(values)
    magnitude = np.where(nan, form.max_finite, np.abs(values))
    _, exponent = np.frexp(magnitude)
    # frexp gives zero the exponent 0; it belongs to the lowest binade
    binade = (
        np.maximum(np.where(magnitude == 0, form.min_exponent, exponent - 1), form.min_exponent) - form.min_exponent
    )
    significand = np.ldexp(magnitude, form.fraction - form.min_exponent - binade).astype(np.int64)
    # Consecutive binades follow each other without a gap, so the exponent field is a plain sum.
    code = (binade << form.fraction) + significand
    if element == "f8E8M0FNU":
        return np.where(nan, 0xFF, code - 1).astype(np.uint8)
    code |= np.signbit(values).astype(np.int64) << (BITS[element] - 1)
    quiet = code & ~(1 << (BITS[element] - 1)) if form.nan_code is None else form.nan_code
    return np.where(nan, quiet, code).astype(np.uint8)


@functools.cache
def _decode_table(element: str) -> Tensor:
    """float32 values of all codes of ``element``, 256 entries (a 4-bit format's high nibble is ignored)."""
    form = FORMATS[element]
    if element == "f8E8M0FNU":
        return torch.tensor([2.0 ** (code - 127) for code in range(255)] + [float("nan")], dtype=torch.float32)
    sign_bit = 1 << (BITS[element] - 1)
    values = []
    for code in range(256):
        field, fraction = divmod(code & (sign_bit - 1), 1 << form.fraction)
        significand = fraction + ((1 << form.fraction) if field else 0)
        magnitude = significand * 2.0 ** (max(field, 1) - 1 + form.min_exponent - form.fraction)
        if magnitude > form.max_finite:
            # E5M2 keeps IEEE's infinity; all other codes beyond the largest number are NaN.
            magnitude = float("inf") if element == "f8E5M2" and fraction == 0 else float("nan")
        values.append(-magnitude if code & sign_bit else magnitude)
    return torch.tensor(values, dtype=torch.float32)


def _decode_codes(x: Tensor, element: str) -> Tensor:
    if element == "f8E4M3FN":
        return x.view(torch.float8_e4m3fn).to(torch.float32)
    if element == "f8E5M2":
        return x.view(torch.float8_e5m2).to(torch.float32)
    return _decode_table(element)[x.to(torch.int64)]


def _round_tf32(x: Tensor, bias: int, tie_to_even: bool) -> Tensor:
    """float32 ``x`` with the low 13 significand bits rounded away, by integer arithmetic on the bit pattern."""
    bits = x.view(torch.int32)
    rounded = bits + bias
    if tie_to_even:
        rounded = rounded + ((bits >> 13) & 1)
    return torch.where(torch.isnan(x), x, (rounded & ~0x1FFF).view(torch.float32))


def _encode_f8(x: Tensor, dtype: torch.dtype, limit: float) -> Tensor:
    codes = x.clamp(-limit, limit).to(dtype).view(torch.uint8)
    return torch.where(torch.isnan(x), 0x7F, codes)


def _f64_to_bf16(x: Tensor) -> Tensor:
    """Through float32 rounded to odd, so that the second rounding is the only one that counts."""
    single = x.to(torch.float32)
    back = single.to(torch.float64)
    bits = single.view(torch.int32)
    odd = torch.where(back.abs() > x.abs(), bits - 1, bits) | 1
    inexact = (back != x) & torch.isfinite(single)
    return torch.where(inexact, odd, bits).view(torch.float32).to(torch.bfloat16)


def _f64_to_f16(x: Tensor) -> Tensor:
    # numpy rounds float64 to float16 once; torch goes through float32.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return torch.from_numpy(np.asarray(x.numpy().astype(np.float16)))


_F32 = torch.float32
_FAST_ENCODERS = {
    (torch.float64, "f32", "nearest_even"): lambda x: x.to(_F32),
    (torch.float64, "f16", "nearest_even"): _f64_to_f16,
    (torch.float64, "bf16", "nearest_even"): _f64_to_bf16,
    (_F32, "f32", "nearest_even"): lambda x: x,
    (_F32, "f16", "nearest_even"): lambda x: x.to(torch.float16),
    (_F32, "bf16", "nearest_even"): lambda x: x.to(torch.bfloat16),
    (_F32, "tf32", "nearest_even"): lambda x: _round_tf32(x, 0xFFF, tie_to_even=True),
    (_F32, "tf32", "nearest_away"): lambda x: _round_tf32(x, 0x1000, tie_to_even=False),
    (_F32, "tf32", "zero"): lambda x: _round_tf32(x, 0, tie_to_even=False),
    (_F32, "f8E4M3FN", "nearest_even"): lambda x: _encode_f8(x, torch.float8_e4m3fn, 448.0),
    (_F32, "f8E5M2", "nearest_even"): lambda x: _encode_f8(x, torch.float8_e5m2, 57344.0),
}
