"""Element types: every 8- and 16-bit code, and every rounding boundary, against arithmetic written from the formats.

The judge here is a sorted list of all values of a format, enumerated in exact binary from its definition: rounding is
looking up neighbours. Nothing of the code under test takes part.
"""

from __future__ import annotations

import functools
import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

from evaluator.tileir import dtypes

# name: exponent bits, fraction bits, bias, has infinity
MINI_FLOATS = {
    "f16": (5, 10, 15, True),
    "bf16": (8, 7, 127, True),
    "f8E4M3FN": (4, 3, 7, False),
    "f8E5M2": (5, 2, 15, True),
    "f4E2M1FN": (2, 1, 1, False),
}
DIRECTIONS = ("nearest_even", "nearest_away", "zero", "negative_inf", "positive_inf")


@functools.cache
def values_of(name: str) -> list[tuple[float, int]]:
    """(value, code) of every non-negative finite number, ascending; all are exact in float64."""
    exponent_bits, fraction_bits, bias, has_infinity = MINI_FLOATS[name]
    result = []
    for code in range(1 << (exponent_bits + fraction_bits)):
        exponent, fraction = code >> fraction_bits, code & ((1 << fraction_bits) - 1)
        if has_infinity and exponent == (1 << exponent_bits) - 1:
            continue
        if name == "f8E4M3FN" and code == 0x7F:
            continue
        if exponent == 0:
            value = Fraction(fraction, 1 << fraction_bits) * Fraction(2) ** (1 - bias)
        else:
            value = (1 + Fraction(fraction, 1 << fraction_bits)) * Fraction(2) ** (exponent - bias)
        result.append((float(value), code))
    return result


def stored_codes(tensor: torch.Tensor) -> np.ndarray:
    bits = tensor if tensor.dtype == torch.uint8 else tensor.view(torch.int16)
    return bits.numpy().astype(np.int64) & (0xFF if tensor.dtype == torch.uint8 else 0xFFFF)


def round_by_table(x: np.ndarray, name: str, direction: str) -> np.ndarray:
    """Codes that float64 ``x`` (finite) rounds to, by looking for the two neighbours in the table of all values."""
    exponent_bits, fraction_bits, _, _ = MINI_FLOATS[name]
    table = values_of(name)
    values = np.array([v for v, _ in table])
    saturates = name.startswith("f8") or name.startswith("f4")
    magnitude, negative = np.abs(x), np.signbit(x)
    # Beyond the largest number the next "value" is the one that the exponent range forbids.
    beyond = 2 * values[-1] - values[-2]
    grid = np.append(values, beyond)
    low = np.clip(np.searchsorted(grid, magnitude, side="right") - 1, 0, len(values) - 1)
    high = np.where(grid[low] == magnitude, low, low + 1)
    below, above = magnitude - grid[low], grid[high] - magnitude  # exact: neighbours share a binade's grid
    even_low = low % 2 == 0
    nearest_up = (above < below) | ((above == below) & ~even_low)
    up = {
        "nearest_even": nearest_up,
        "nearest_away": above <= below,
        "zero": np.zeros_like(negative),
        "negative_inf": negative,
        "positive_inf": ~negative,
    }[direction]
    index = np.where((low != high) & up, high, low)
    over = (index == len(values)) | ((magnitude >= beyond) & (up if not direction.startswith("nearest") else True))
    codes = np.minimum(index, len(values) - 1)
    if not saturates:
        codes = np.where(over, ((1 << exponent_bits) - 1) << fraction_bits, codes)
    return codes | (negative.astype(np.int64) << (exponent_bits + fraction_bits))


def boundary_points(name: str) -> np.ndarray:
    """All values, all midpoints between neighbours, their float64 neighbours, and points beyond the largest, ±."""
    values = np.array([v for v, _ in values_of(name)])
    middles = (values[1:] + values[:-1]) / 2
    edge = 2 * values[-1] - values[-2]
    points = np.concatenate([values, middles, [(values[-1] + edge) / 2, edge, edge * 1.5, edge * 64]])
    points = np.concatenate([points, np.nextafter(points, np.inf), np.nextafter(points, 0.0)])
    return np.concatenate([points, -points])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MINI_FLOATS)
def test_every_rounding_boundary_of_small_formats_rounds_as_the_table_of_values_says(name: str, direction: str) -> None:
    points = boundary_points(name)
    got = stored_codes(dtypes.encode(torch.from_numpy(points), name, direction))
    np.testing.assert_array_equal(got, round_by_table(points, name, direction))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MINI_FLOATS)
def test_float32_sources_round_the_same_way_as_float64_sources(name: str, direction: str) -> None:
    with np.errstate(over="ignore"):
        points = boundary_points(name).astype(np.float32)
    points = points[np.isfinite(points)]
    got = stored_codes(dtypes.encode(torch.from_numpy(points), name, direction))
    np.testing.assert_array_equal(got, round_by_table(points.astype(np.float64), name, direction))


@pytest.mark.parametrize("name", MINI_FLOATS)
def test_every_code_decodes_to_its_defined_value(name: str) -> None:
    exponent_bits, fraction_bits, _, _ = MINI_FLOATS[name]
    sign = 1 << (exponent_bits + fraction_bits)
    defined = {code: value for value, code in values_of(name)}
    dtype = dtypes.storage(name)
    codes = torch.arange(2 * sign)
    stored = codes.to(torch.uint8) if dtype == torch.uint8 else codes.to(torch.int16).view(dtype)
    decoded = dtypes.decode(stored, name).tolist()
    for code, got in enumerate(decoded):
        magnitude = defined.get(code % sign)
        if magnitude is not None:
            want = -magnitude if code >= sign else magnitude
            assert got == want, hex(code)
            assert math.copysign(1, got) == math.copysign(1, want), hex(code)
        elif MINI_FLOATS[name][3] and code % (1 << fraction_bits) == 0:
            assert got == (-math.inf if code >= sign else math.inf), hex(code)
        else:
            assert math.isnan(got), hex(code)


@pytest.mark.parametrize("name", MINI_FLOATS)
def test_encoding_what_was_decoded_gives_back_every_code(name: str) -> None:
    exponent_bits, fraction_bits, _, _ = MINI_FLOATS[name]
    table = values_of(name)
    sign = 1 << (exponent_bits + fraction_bits)
    codes = torch.tensor([c for _, c in table] + [c | sign for _, c in table])
    dtype = dtypes.storage(name)
    stored = codes.to(torch.uint8) if dtype == torch.uint8 else codes.to(torch.int16).view(dtype)
    again = dtypes.encode(dtypes.decode(stored, name), name)
    np.testing.assert_array_equal(stored_codes(again), codes.numpy())


def test_infinity_and_nan_enter_small_formats_as_cvt_satfinite_does() -> None:
    special = torch.tensor([math.inf, -math.inf, math.nan, -math.nan])
    for source in (special, special.double()):
        assert dtypes.encode(source, "f8E4M3FN").tolist() == [0x7E, 0xFE, 0x7F, 0x7F]
        assert dtypes.encode(source, "f8E5M2").tolist() == [0x7B, 0xFB, 0x7F, 0x7F]
        assert dtypes.encode(source, "f4E2M1FN").tolist() == [0x7, 0xF, 0x7, 0x7]
        assert dtypes.encode(source, "f8E8M0FNU", "zero").tolist() == [0xFE, 0xFE, 0xFF, 0xFF]
        for name in ("f16", "bf16"):
            got = dtypes.encode(source, name).float()
            assert got[:2].tolist() == [math.inf, -math.inf]
            assert torch.isnan(got[2:]).all()


def test_scale_codes_are_powers_of_two() -> None:
    codes = torch.arange(256).to(torch.uint8)
    decoded = dtypes.decode(codes, "f8E8M0FNU").tolist()
    assert decoded[:255] == [math.ldexp(1.0, c - 127) for c in range(255)]
    assert math.isnan(decoded[255])


@pytest.mark.parametrize("direction", ["zero", "positive_inf"])
def test_scales_round_to_the_power_of_two_below_or_above(direction: str) -> None:
    rng = random.Random(1)
    values = [math.ldexp(rng.uniform(1, 2), rng.randrange(-149, 128)) for _ in range(500)]
    values = [struct.unpack("<f", struct.pack("<f", v))[0] for v in values]
    values += [math.ldexp(1.0, e) for e in range(-149, 128)] + [0.0]
    got = dtypes.encode(torch.tensor(values, dtype=torch.float32), "f8E8M0FNU", direction).tolist()
    for value, code in zip(values, got, strict=True):
        want = 0
        for candidate in range(255):  # the last power not above, or the first not below
            power = Fraction(2) ** (candidate - 127)
            if direction == "zero":
                want = candidate if power <= Fraction(value) else want
            elif power >= Fraction(value):
                want = candidate
                break
            else:
                want = 254
        assert code == want, value


def tf32_by_integers(bits: int, direction: str) -> int:
    """Round a finite float32 bit pattern to 10 fraction bits with Python integers."""
    sign, magnitude = bits >> 31, bits & 0x7FFF_FFFF
    kept, rest = magnitude >> 13, magnitude & 0x1FFF
    up = {
        "nearest_even": rest > 0x1000 or (rest == 0x1000 and kept & 1 == 1),
        "nearest_away": rest >= 0x1000,
        "zero": False,
        "negative_inf": rest > 0 and sign == 1,
        "positive_inf": rest > 0 and sign == 0,
    }[direction]
    return (sign << 31) | ((kept + up) << 13)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tf32_rounds_float32_bit_patterns_like_integers_do(direction: str) -> None:
    rng = random.Random(7)
    patterns = [rng.getrandbits(32) for _ in range(4000)]
    patterns += [(rng.getrandbits(18) << 14 | tie) & 0xFFFF_FFFF for tie in (0x1000, 0x3000) for _ in range(500)]
    patterns += [0x0000_0001, 0x8000_0001, 0x7F7F_FFFF, 0xFF7F_FFFF, 0, 0x8000_0000]
    patterns = [p for p in patterns if (p >> 23) & 0xFF != 0xFF]
    x = torch.tensor(np.array(patterns, dtype=np.uint32).view(np.float32))
    got = dtypes.encode(x, "tf32", direction).numpy().view(np.uint32).tolist()
    assert got == [tf32_by_integers(p, direction) for p in patterns]


def test_tf32_keeps_infinities_and_nans() -> None:
    x = torch.tensor(np.array([0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF], dtype=np.uint32).view(np.float32))
    for direction in DIRECTIONS:
        got = dtypes.encode(x, "tf32", direction)
        assert got[:2].tolist() == [math.inf, -math.inf]
        assert torch.isnan(got[2:]).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_float64_narrows_to_float32_with_one_rounding(direction: str) -> None:
    rng = random.Random(3)
    points = [math.ldexp(rng.uniform(-2, 2), rng.randrange(-160, 130)) for _ in range(3000)]
    points += [(1 + (2 * k + 1) * 2.0**-24) * 2.0**e for k in range(40) for e in (-140, -126, 0, 127)]
    got = dtypes.encode(torch.tensor(points, dtype=torch.float64), "f32", direction).tolist()
    largest = float(np.finfo(np.float32).max)
    for x, y in zip(points, got, strict=True):
        with np.errstate(over="ignore"):
            nearest = np.float32(x)
        if direction == "nearest_even":
            assert y == float(nearest)
        elif direction != "nearest_away":
            down = direction == "negative_inf" or (direction == "zero" and x > 0)
            assert (y <= x) if down else (y >= x)
            toward = np.float32(math.inf if down else -math.inf)
            if math.isfinite(y):  # the next float32 on the other side has passed x (or is x)
                with np.errstate(over="ignore"):
                    step = float(np.nextafter(np.float32(y), toward))
                assert y == x or ((step > x) if down else (step < x))
            else:
                assert abs(x) > largest
