"""Tile IR arithmetic that cuTile's front end can't spell, or leaves undefined: the op functions called directly.

What the front end does emit is tested through real kernels in test_tileir_values.py; here are the remaining attribute
combinations, in the stored form (first axis: lanes). The judges are Python's integers, floats and fractions.
"""

from __future__ import annotations

import itertools
import math
import operator
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from evaluator.tileir.ir import Op, TileType
from evaluator.tileir.ops_float import FLOAT_OPS
from evaluator.tileir.ops_int import INT_OPS
from evaluator.tileir.ops_mma import MMA_OPS
from evaluator.tileir.rounding import addcmul_is_fused

ALL = {**FLOAT_OPS, **INT_OPS, **MMA_OPS}
INTEGERS = {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}


def apply(name: str, sources: list[str], result: str, *tiles: torch.Tensor, **attrs: Any) -> torch.Tensor:
    """Operation ``name`` on stored tiles of elements ``sources``."""
    kinds = tuple(TileType((), s) for s in sources)
    op = Op(name, (0,), tuple(range(len(tiles))), attrs, kinds, (TileType((), result),))
    return ALL[name](op, *tiles)


@pytest.mark.parametrize("ordering", ["ordered", "unordered"])
def test_every_float_comparison_is_what_its_predicate_and_its_ordering_say(ordering: str) -> None:
    compare: dict[str, Callable[[float, float], bool]] = {
        "equal": operator.eq,
        "not_equal": operator.ne,
        "less_than": operator.lt,
        "less_than_or_equal": operator.le,
        "greater_than": operator.gt,
        "greater_than_or_equal": operator.ge,
    }
    values = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
    a, b = (torch.tensor([list(c)]) for c in zip(*itertools.product(values, values), strict=True))
    for predicate, judge in compare.items():
        got = apply("cmpf", ["f32", "f32"], "i1", a, b, predicate=predicate, ordering=ordering)[0].tolist()
        for x, y, g in zip(a[0].tolist(), b[0].tolist(), got, strict=True):
            nan = math.isnan(x) or math.isnan(y)
            assert g == ((ordering == "unordered") if nan else judge(x, y)), (predicate, x, y)


def samples(element: str, count: int, seed: int) -> torch.Tensor:
    width = int(element[1:])
    rng = random.Random(seed)
    values = [rng.getrandbits(rng.randint(1, width)) for _ in range(count)]
    values[:6] = [0, 1, 2, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1]
    rng.shuffle(values)
    signed = [v - (1 << width) if v >> (width - 1) else v for v in values]
    return torch.tensor([signed], dtype=INTEGERS[element])


def unsigned(x: int, width: int) -> int:
    return x & ((1 << width) - 1)


def signed(x: int, width: int) -> int:
    x = unsigned(x, width)
    return x - (1 << width) if x >> (width - 1) else x


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("signedness", ["signed", "unsigned"])
def test_division_in_all_roundings_including_by_zero(element: str, signedness: str) -> None:
    width = int(element[1:])
    a, b = samples(element, 400, 1), samples(element, 400, 2)
    read = signed if signedness == "signed" else unsigned
    for rounding in ("zero", "negative_inf", "positive_inf"):
        got = apply("divi", [element] * 2, element, a, b, signedness=signedness, rounding=rounding)[0].tolist()
        rest = apply("remi", [element] * 2, element, a, b, signedness=signedness)[0].tolist()
        for x, y, q, r in zip(a[0].tolist(), b[0].tolist(), got, rest, strict=True):
            n, d = read(x, width), read(y, width)
            if d == 0:  # undefined in the IR; all ones and the dividend here
                assert (q, r) == (-1, x)
                continue
            exact = Fraction(n, d)
            want = {"zero": math.trunc, "negative_inf": math.floor, "positive_inf": math.ceil}[rounding](exact)
            assert q == signed(want, width), (n, d, rounding)
            assert r == signed(n - d * math.trunc(exact), width), (n, d)


@pytest.mark.parametrize("element", INTEGERS)
def test_shifts_by_the_width_or_more_shift_everything_out(element: str) -> None:
    width = int(element[1:])
    a = samples(element, 256, 3)
    b = torch.tensor([[random.Random(i).choice([0, 1, width - 1, width, width + 1, -1, 100]) for i in range(256)]])
    b = b.to(INTEGERS[element])
    left = apply("shli", [element] * 2, element, a, b)[0].tolist()
    logical = apply("shri", [element] * 2, element, a, b, signedness="unsigned")[0].tolist()
    arithmetic = apply("shri", [element] * 2, element, a, b, signedness="signed")[0].tolist()
    for x, y, shifted, u, s in zip(a[0].tolist(), b[0].tolist(), left, logical, arithmetic, strict=True):
        amount = unsigned(y, width)
        assert shifted == signed(x << min(amount, width), width)
        assert u == signed(unsigned(x, width) >> amount, width)
        assert s == x >> amount


@pytest.mark.parametrize("element", INTEGERS)
def test_the_high_half_of_products_is_unsigned(element: str) -> None:
    width = int(element[1:])
    a, b = samples(element, 400, 4), samples(element, 400, 5)
    got = apply("mulhii", [element] * 2, element, a, b)[0].tolist()
    want = [
        signed((unsigned(x, width) * unsigned(y, width)) >> width, width)
        for x, y in zip(a[0].tolist(), b[0].tolist(), strict=True)
    ]
    assert got == want


def test_one_bit_integers_are_zero_and_minus_one_where_signed() -> None:
    a, b = torch.tensor([[True, True, False, False]]), torch.tensor([[True, False, True, False]])
    two = ["i1", "i1"]

    def bits(name: str, **attrs: Any) -> list[bool]:
        result: list[bool] = apply(name, two, "i1", a, b, **attrs)[0].tolist()
        return result

    assert bits("addi") == bits("subi") == [False, True, True, False]
    assert bits("muli") == [True, False, False, False]
    assert bits("cmpi", predicate="less_than", signedness="unsigned") == [False, False, True, False]
    assert bits("cmpi", predicate="less_than", signedness="signed") == [False, True, False, False]
    assert bits("maxi", signedness="unsigned") == [True, True, True, False]
    assert bits("maxi", signedness="signed") == [True, False, False, False]
    assert bits("mini", signedness="unsigned") == [True, False, False, False]
    assert bits("mini", signedness="signed") == [True, True, True, False]
    assert apply("exti", ["i1"], "i8", a, signedness="signed")[0].tolist() == [-1, -1, 0, 0]
    assert apply("exti", ["i1"], "i64", a, signedness="unsigned")[0].tolist() == [1, 1, 0, 0]
    assert apply("itof", ["i1"], "f32", a, signedness="signed")[0].tolist() == [-1.0, -1.0, 0.0, 0.0]
    assert apply("itof", ["i1"], "bf16", a, signedness="unsigned")[0].tolist() == [1.0, 1.0, 0.0, 0.0]
    got = apply("trunci", ["i32"], "i1", torch.tensor([[2, 3, -1, 0]], dtype=torch.int32))
    assert got[0].tolist() == [False, True, True, False]


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("signedness", ["signed", "unsigned"])
def test_floats_beyond_an_integer_type_clamp_and_nan_is_zero(element: str, signedness: str) -> None:
    width = int(element[1:])
    low, high = (0, (1 << width) - 1) if signedness == "unsigned" else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    edges = [
        float(low),
        float(high),
        float(high) / 2,
        low * 1.5,
        high * 1.5,
        math.inf,
        -math.inf,
        1e30,
        -1e30,
        -0.9,
        2.9,
    ]
    edges += [math.nextafter(float(high), 0), math.nextafter(float(low), 0), 2.0**62 + 2.0**11, -1.5]
    for source, dtype in (("f64", torch.float64), ("f32", torch.float32)):
        x = torch.tensor([edges], dtype=torch.float64).to(dtype)
        got = apply("ftoi", [source], element, x, signedness=signedness)[0].tolist()
        for v, g in zip(x[0].double().tolist(), got, strict=True):
            want = (high if v > 0 else low) if math.isinf(v) else min(max(math.trunc(v), low), high)
            assert g == signed(want, width), (v, source)
        nan = torch.full((1, 3), math.nan, dtype=dtype)
        assert apply("ftoi", [source], element, nan, signedness=signedness)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("direction", ["nearest_even", "zero", "negative_inf", "positive_inf"])
@pytest.mark.parametrize("signedness", ["signed", "unsigned"])
def test_sixty_four_bit_integers_round_once_in_every_direction(signedness: str, direction: str) -> None:
    a = samples("i64", 600, 6)
    ties = [(1 << 63) - (1 << k) - 1 for k in range(8, 60)] + [(1 << 53) + 1, (1 << 54) + 2, -(1 << 53) - 1]
    a = torch.cat((a, torch.tensor([ties])), 1)
    for target, dtype in (("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16)):
        got = apply("itof", ["i64"], target, a, signedness=signedness, rounding=direction)[0]
        towards = {"positive_inf": -math.inf, "negative_inf": math.inf}
        for x, y in zip(a[0].tolist(), got, strict=True):
            exact = unsigned(x, 64) if signedness == "unsigned" else x
            value = Fraction(y.item())
            down = direction == "negative_inf" or (direction == "zero" and exact > 0)
            if direction == "nearest_even":
                for side in (-math.inf, math.inf):
                    neighbour = Fraction(torch.nextafter(y, torch.tensor(side, dtype=dtype)).item())
                    assert abs(value - exact) <= abs(neighbour - exact), (exact, y)
                continue
            assert (value <= exact) if down else (value >= exact), (exact, y, target)
            side = towards["negative_inf"] if down else towards["positive_inf"]
            if value != exact:
                neighbour = Fraction(torch.nextafter(y, torch.tensor(side, dtype=dtype)).item())
                assert (neighbour > exact) if down else (neighbour < exact), (exact, y, target)


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["addf", "mulf", "divf", "fma", "sqrt"])
@pytest.mark.parametrize("direction", ["nearest_even", "zero", "negative_inf", "positive_inf"])
def test_half_precision_arithmetic_is_the_correct_rounding_of_the_exact_result(
    element: str, name: str, direction: str
) -> None:
    """Nearest too: float32 arithmetic rounded once more gives the same for these (their precision is small enough)."""
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[element]
    rng = random.Random(7)
    tiles = [
        torch.tensor([[math.ldexp(rng.uniform(1, 2), rng.randint(-6, 6)) for _ in range(400)]]).to(dtype)
        for _ in range({"fma": 3, "sqrt": 1}.get(name, 2))
    ]
    if name in ("addf", "fma"):
        tiles[-1] = -tiles[-1]
    got = apply(name, [element] * len(tiles), element, *tiles, rounding=direction, flush_to_zero=False)[0]
    assert got.dtype == dtype
    for *values, y in zip(*(t[0].tolist() for t in tiles), got, strict=True):
        terms = [Fraction(v) for v in values]

        def side(candidate: float, terms: list[Fraction] = terms) -> int:
            """Whether the exact result is above (1), at (0) or below (−1) ``candidate``."""
            c = Fraction(candidate)
            if name == "sqrt":
                return (terms[0] > c * c) - (terms[0] < c * c) if c >= 0 else 1
            exact = {
                "addf": lambda: terms[0] + terms[1],
                "mulf": lambda: terms[0] * terms[1],
                "divf": lambda: terms[0] / terms[1],
                "fma": lambda: terms[0] * terms[1] + terms[-1],
            }[name]()
            return (exact > c) - (exact < c)

        up = torch.nextafter(y, torch.tensor(math.inf, dtype=dtype)).item()
        down = torch.nextafter(y, torch.tensor(-math.inf, dtype=dtype)).item()
        y = y.item()
        if direction == "nearest_even":
            assert side((y + up) / 2) <= 0 <= side((y + down) / 2), (values, y)
        elif direction == "positive_inf" or (direction == "zero" and side(0.0) < 0):
            assert side(y) <= 0 < side(down), (values, y)
        else:
            assert side(y) >= 0 > side(up), (values, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torchs_multiply_add_counts_as_fused_only_where_it_rounds_once(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    addcmul_is_fused.cache_clear()
    try:
        fused = addcmul_is_fused(dtype)
        a, b, c = (torch.randn(1000, dtype=dtype) for _ in range(3))
        terms = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in terms]
        once = torch.tensor(exact, dtype=torch.float64).to(dtype)  # of float32 rounded twice: the same, but for chance
        assert not fused or torch.equal(torch.addcmul(c, a, b), once)
        addcmul_is_fused.cache_clear()
        monkeypatch.setattr(torch, "addcmul", lambda c, a, b: a * b + c)
        assert not addcmul_is_fused(dtype)
    finally:
        addcmul_is_fused.cache_clear()


@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "f64"])
def test_the_float_remainder_truncates_and_has_the_dividend_s_sign(element: str) -> None:
    """Python's % is built from it in a way that would hide a floored remainder."""
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}[element]
    rng = random.Random(8)
    a = [math.ldexp(rng.uniform(-2, 2), rng.randint(-3, 12)) for _ in range(300)] + [-0.0, 0.0, 5.0, -6.0, 3.0]
    b = [math.ldexp(rng.uniform(-2, 2), rng.randint(-3, 3)) for _ in range(300)] + [3.0, -3.0, math.inf, 3.0, -math.inf]
    x, y = torch.tensor([a], dtype=torch.float64).to(dtype), torch.tensor([b], dtype=torch.float64).to(dtype)
    got = apply("remf", [element] * 2, element, x, y)[0].double().tolist()
    want = [math.fmod(p, q) for p, q in zip(x[0].double().tolist(), y[0].double().tolist(), strict=True)]
    assert got == want
    assert [math.copysign(1, g) for g in got] == [math.copysign(1, w) for w in want]
    ones = torch.ones(1, 3, dtype=dtype)
    for p, q in ((1.0, 0.0), (math.inf, 1.0), (math.nan, 1.0), (1.0, math.nan)):
        assert apply("remf", [element] * 2, element, ones * p, ones * q).isnan().all()


def test_integers_beyond_an_eight_bit_float_become_infinity_or_nan() -> None:
    x = torch.tensor([[448, 464, 465, 10**6, -465, -(2**31)]], dtype=torch.int32)
    got = apply("itof", ["i32"], "f8E4M3FN", x, signedness="signed")[0].tolist()
    assert got == [0x7E, 0x7E, 0x7F, 0x7F, 0x7F, 0x7F]
    x = torch.tensor([[57344, 61439, 61440, -61439, -61440, 2**31 - 1]], dtype=torch.int32)
    got = apply("itof", ["i32"], "f8E5M2", x, signedness="signed")[0].tolist()
    assert got == [0x7B, 0x7B, 0x7C, 0xFB, 0xFC, 0x7C]


def test_integer_powers_keep_the_parity_of_the_exponent() -> None:
    x = torch.tensor([[2.0, -2.0, -1.0, -1.0, 0.0, -0.0, 10.0, 1.5]])
    n = torch.tensor([[10, 3, 2**31 - 1, -(2**31), 0, -1, 38, -2]], dtype=torch.int32)
    got = apply("fpowi", ["f32", "i32"], "f32", x, n)[0].tolist()
    assert got == [1024.0, -8.0, -1.0, 1.0, 1.0, -math.inf, float(np.float32(1e38)), float(np.float32(4 / 9))]


def test_matrix_products_take_any_mixture_of_uniform_and_varying_operands() -> None:
    rng = np.random.default_rng(9)
    for batch, lanes in itertools.product(((), (3,)), itertools.product((1, 4), repeat=3)):
        shapes = [(n, *batch, *s) for n, s in zip(lanes, ((4, 8), (8, 2), (4, 2)), strict=True)]
        a, b, c = (rng.integers(-4, 5, s).astype(np.float32) for s in shapes)
        got = apply("mmaf", ["f32"] * 3, "f32", *map(torch.from_numpy, (a, b, c)), fast_acc=False)
        np.testing.assert_array_equal(got.numpy(), a @ b + c)
        turned = torch.from_numpy(np.ascontiguousarray(b.swapaxes(-1, -2))).mT  # a permuted tile is not contiguous
        got = apply("mmaf", ["f32"] * 3, "f32", torch.from_numpy(a), turned, torch.from_numpy(c), fast_acc=False)
        np.testing.assert_array_equal(got.numpy(), a @ b + c)


def test_a_long_inner_dimension_of_integers_stays_exact() -> None:
    a, b = torch.full((1, 2, 4096), -1, dtype=torch.int8), torch.full((1, 4096, 2), -1, dtype=torch.int8)
    c = torch.full((1, 2, 2), 2**31 - 1, dtype=torch.int32)
    got = apply("mmai", ["i8", "i8", "i32"], "i32", a, b, c, lhs_signedness="unsigned", rhs_signedness="unsigned")
    assert got.unique().tolist() == [signed(4096 * 255 * 255 + 2**31 - 1, 32)]


def test_four_bit_floats_and_scales_multiply_by_their_values() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values += [-v for v in values]
    a = codes.repeat(2).reshape(1, 1, 32)
    b = torch.full((1, 32, 1), 2, dtype=torch.uint8)  # the value 1
    b[:, 8:16] = b[:, 24:] = 0  # leave the positive half
    scale_a, scale_b = (
        torch.tensor([[[128, 126]]], dtype=torch.uint8),
        torch.tensor([[[127], [130]]], dtype=torch.uint8),
    )
    kinds = ["f4E2M1FN", "f4E2M1FN", "f32", "f8E8M0FNU", "f8E8M0FNU"]
    got = apply("mmaf_scaled", kinds, "f32", a, b, torch.ones(1, 1, 1), scale_a, scale_b)
    assert got.item() == 1 + sum(values[:8]) * 2 + sum(values[:8]) * 0.5 * 8
