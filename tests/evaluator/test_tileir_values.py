"""Every Tile IR operation that cuTile's front end emits, computed by the emulator and by independent arithmetic.

Each test runs real cuTile kernels (front end, bytecode, disassembled text, emulator) and compares with numpy, Python's
integers and fractions, or mpmath: never with the code under test. A test says which operations it covers; the ``lab``
fixture then demands that the IR which ran really held them, and the last test that no emitted operation is uncovered.
"""

from __future__ import annotations

import itertools
import linecache
import math
import random
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

ct = pytest.importorskip("cuda.tile")
from evaluator import emulator  # noqa: E402
from evaluator.tileir import RunReport  # noqa: E402
from evaluator.tileir.arguments import pass_arguments  # noqa: E402
from evaluator.tileir.memory import Memory  # noqa: E402
from evaluator.tileir.program import walk  # noqa: E402

# What the front end of cuda-tile 1.7.0 emits: its calls of the bytecode encoders (encode_…Op).
EMITTED = frozenset(
    """
    assume make_token constant make_tensor_view make_partition_view get_tile_block_id store_view_tko load_view_tko
    get_index_space_shape get_num_tile_blocks join_tokens return reshape broadcast iota extract permute insert cat
    pack unpack bitcast offset store_ptr_tko load_ptr_tko int_to_ptr cmpi muli exti addi andi divi xori remi maxi
    mini subi ori trunci shli shri absi negi itof addf ftof mulf subf divf maxf fma exp2 negf cmpf remf minf ftoi
    floor exp fpowf fpowi tanh sin sqrt cos rsqrt tan sinh cosh log log2 atan2 absf ceil mmaf mmaf_scaled mmai yield
    for continue reduce scan if loop break select atomic_rmw_tko atomic_cas_tko atomic_red_view_tko
    make_strided_view make_gather_scatter_view print_tko assert gdc_wait_tko gdc_launch_dependents_tko
    """.split()  # noqa: SIM905
)
COVERED: dict[str, frozenset[str]] = {}


def covers(*ops: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Says that a test checks the values of these operations; :func:`lab` holds it to that."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        COVERED[test.__name__] = frozenset(ops)
        return test

    return mark


class Lab:
    """Runs kernels in the emulator and remembers which operations their IR held."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.expected: set[str] = set()

    def run(self, kernel: Any, *args: Any, grid: tuple[int, ...] = (1,)) -> RunReport:
        report = emulator.launch(grid, kernel, args)
        self.seen |= operations(kernel, args)
        return report

    def evaluate(self, expression: str, *inputs: torch.Tensor, out: torch.dtype) -> torch.Tensor:
        """``expression`` of the tiles a, b, c …, each the whole of a rank-1 input (a power of two long)."""
        result = torch.zeros(inputs[0].shape, dtype=out)
        self.run(elementwise(expression, len(inputs)), *inputs, result, inputs[0].numel())
        return result


def operations(kernel: Any, args: tuple[Any, ...]) -> set[str]:
    """The names of all operations in the IR of ``kernel`` for ``args``."""
    module = emulator.program_for(kernel, pass_arguments(kernel, args, Memory())).module
    ended = {"return"} if module.body.ops[-1].name == "return" else set()
    return {op.name for op in walk(module.body)} | ended


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    lab = Lab()
    yield lab
    promised = COVERED.get(request.function.__name__, frozenset()) | lab.expected
    assert promised <= lab.seen, f"the kernels of this test do not contain {sorted(promised - lab.seen)}"


_SOURCES = itertools.count()


def elementwise(expression: str, inputs: int) -> Any:
    """A kernel that stores ``expression`` of its inputs, from source that cuTile can read back."""
    names = "abcde"[:inputs]
    arrays = ", ".join(f"x{n}" for n in names)
    loads = "".join(f"    {n} = ct.load(x{n}, (0,), (N,))\n" for n in names)
    source = (
        f"import cuda.tile as ct\n@ct.kernel\ndef kernel({arrays}, out, N: ct.Constant[int]):\n"
        f"{loads}    ct.store(out, (0,), {expression})\n"
    )
    file = f"<elementwise {next(_SOURCES)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "elementwise"}
    exec(compile(source, file, "exec"), space)
    return space["kernel"]


# ----------------------------------------------------------------------------------------------- independent arithmetic

PRECISION = {torch.float16: (11, -14, 15), torch.bfloat16: (8, -126, 127)}
PRECISION |= {torch.float32: (24, -126, 127), torch.float64: (53, -1022, 1023)}
DIRECTION = {"RN": "nearest", "RZ": "zero", "RM": "down", "RP": "up"}


def rounded(value: Fraction, dtype: torch.dtype, direction: str = "RN") -> float:
    """``value`` (not zero) rounded once to ``dtype``, by integer arithmetic."""
    precision, lowest, highest = PRECISION[dtype]
    magnitude, negative = abs(value), value < 0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, lowest) - precision + 1)
    whole, rest = divmod(magnitude, step)
    twice = 2 * rest
    up = {
        "RN": twice > step or (twice == step and whole % 2 == 1),
        "RZ": False,
        "RM": rest > 0 and negative,
        "RP": rest > 0 and not negative,
    }[direction]
    result = (whole + up) * step
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** highest
    if result > largest:
        stays = direction == "RZ" or (direction == "RM" and not negative) or (direction == "RP" and negative)
        return math.copysign(float(largest) if stays else math.inf, value)
    return math.copysign(float(result), value)


def signed_zero_of(name: str, values: tuple[float, ...], direction: str) -> float:
    """The zero that an operation on ``values`` gives (IEEE 754, 6.3)."""
    sign = [math.copysign(1, v) for v in values]
    if name in ("mul", "div"):
        return math.copysign(0.0, sign[0] * sign[1])
    terms = {"add": sign, "sub": [sign[0], -sign[-1]], "fma": [sign[0] * sign[1 % len(sign)], sign[-1]]}[name]
    zeros = values[-1] == 0 and (values[0] == 0 or (name == "fma" and values[1] == 0))
    if zeros and terms[0] == terms[1]:
        return math.copysign(0.0, terms[0])
    return -0.0 if direction == "RM" else 0.0


FRACTIONS: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}
SPECIAL: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: c if math.isinf(c) and math.isfinite(a) and math.isfinite(b) else a * b + c,
}


def arithmetic(name: str, values: tuple[float, ...], dtype: torch.dtype, direction: str) -> float:
    """One element of an arithmetic operation, by fractions; infinities and NaNs by float64."""
    if not all(map(math.isfinite, values)) or (name == "div" and values[1] == 0):
        with np.errstate(all="ignore"):
            return float(SPECIAL[name](*map(np.float64, values)))
    exact = FRACTIONS[name](*map(Fraction, values))
    return rounded(exact, dtype, direction) if exact else signed_zero_of(name, values, direction)


def same(got: torch.Tensor, want: list[float], note: str = "") -> None:
    """Equal as floats of that type: NaN where NaN is due, and zeros of the right sign."""
    for i, (g, w) in enumerate(zip(got.double().reshape(-1).tolist(), want, strict=True)):
        equal = (math.isnan(g) and math.isnan(w)) or (g == w and math.copysign(1, g) == math.copysign(1, w))
        assert equal, f"element {i}: got {g!r}, want {w!r} {note}"


SPECIALS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1.5]


def float_samples(dtype: torch.dtype, count: int, seed: int, specials: bool = True) -> torch.Tensor:
    """Numbers of all sizes and many close to each other, subnormals among them, then the special values."""
    rng = random.Random(seed)
    wide = {torch.float16: 12, torch.bfloat16: 60, torch.float32: 60, torch.float64: 300}[dtype]
    values = [math.ldexp(rng.uniform(-2, 2), rng.choice([0, 0, 0, rng.randint(-wide, wide)])) for _ in range(count)]
    tiny = torch.finfo(dtype).smallest_normal
    values[:8] = [tiny * rng.uniform(-1, 1) for _ in range(8)]
    if specials:
        values[-64:] = [x for x, _ in itertools.product(SPECIALS, SPECIALS)]
        if seed % 2:
            values[-64:] = [y for _, y in itertools.product(SPECIALS, SPECIALS)]
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def rows(*tensors: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    return zip(*(t.double().tolist() if t.is_floating_point() else t.tolist() for t in tensors), strict=True)


# --------------------------------------------------------------------------------------------------------- float values

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SHORT = {"add": "addf", "sub": "subf", "mul": "mulf", "truediv": "divf"}
JUDGE = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}


@covers("addf", "subf", "mulf", "divf")
def test_arithmetic_rounds_to_nearest_even_in_every_float_type(lab: Lab) -> None:
    for dtype, name in itertools.product(FLOATS, SHORT):
        a, b = float_samples(dtype, 256, 0), float_samples(dtype, 256, 1)
        got = lab.evaluate(f"ct.{name}(a, b)", a, b, out=dtype)
        assert got.dtype == dtype
        same(got, [arithmetic(JUDGE[name], row, dtype, "RN") for row in rows(a, b)], f"{name} {dtype}")


@covers("addf", "subf", "mulf", "divf")
@pytest.mark.parametrize("direction", ["RZ", "RM", "RP"])
def test_arithmetic_rounds_in_the_direction_it_names(lab: Lab, direction: str) -> None:
    for dtype, name in itertools.product([torch.float32, torch.float64], SHORT):
        a, b = float_samples(dtype, 256, 2), float_samples(dtype, 256, 3)
        got = lab.evaluate(f"ct.{name}(a, b, rounding_mode=ct.RoundingMode.{direction})", a, b, out=dtype)
        same(got, [arithmetic(JUDGE[name], row, dtype, direction) for row in rows(a, b)], f"{name} {dtype}")


@covers("divf")
def test_approximate_and_full_division_stay_near_the_quotient(lab: Lab) -> None:
    a, b = float_samples(torch.float32, 256, 4, specials=False), torch.linspace(0.5, 3, 256)
    for mode in ("APPROX", "FULL"):
        got = lab.evaluate(f"ct.truediv(a, b, rounding_mode=ct.RoundingMode.{mode})", a, b, out=torch.float32)
        np.testing.assert_allclose(got.numpy(), a.numpy() / b.numpy(), rtol=3e-7, atol=1e-45)
        errs(got, a.double() / b.double(), 2 * 2.0**-23)


def errs(got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor | float) -> None:
    """Errors relative to ``exact`` are of both signs, near the bound, and within it but for float32's own rounding."""
    error = ((got.double() - exact) / exact)[exact.abs() > 1e-30]
    assert torch.all(error.abs() <= bound + 2.0**-23)
    assert (error / bound).min() < -0.6
    assert (error / bound).max() > 0.6


TINY = 2.0**-126


def flushed(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < TINY else x


@covers("addf", "subf", "mulf", "divf", "fma", "sqrt", "rsqrt", "exp2", "maxf", "minf")
def test_flush_to_zero_flushes_subnormal_inputs_and_results_to_zeros_of_their_sign(lab: Lab) -> None:
    tiny = [TINY, -TINY, TINY / 2, -TINY / 2, 2.0**-149, -(2.0**-149), 1.0, -0.0]
    a, b = (torch.tensor(c) for c in zip(*itertools.product(tiny, tiny), strict=True))
    for name in SHORT:
        got = lab.evaluate(f"ct.{name}(a, b, flush_to_zero=True)", a, b, out=torch.float32)
        want = [flushed(arithmetic(JUDGE[name], (flushed(x), flushed(y)), torch.float32, "RN")) for x, y in rows(a, b)]
        same(got, want, name)
    scaled = b * 0.5  # TINY/2 and below: flushed before a sum could make them normal again
    got = lab.evaluate(
        "ct.add(ct.mul(a, b, flush_to_zero=True), c, flush_to_zero=True)", a, b, scaled, out=torch.float32
    )
    want = []
    for x, y, z in rows(a, b, scaled):
        value = arithmetic("fma", (flushed(x), flushed(y), flushed(z)), torch.float32, "RN")
        want.append(flushed(value))
    same(got, want, "fma")
    got = lab.evaluate(
        "ct.exp2(a, flush_to_zero=True)", torch.tensor([-127.0, -126.0, -149.0, 2.0**-140]), out=torch.float32
    )
    same(got[[0, 2, 3]], [0.0, 0.0, 1.0], "exp2")
    near(got[1:2], [TINY], 4)
    positive = torch.tensor([TINY / 2, TINY, 4 * TINY, 0.0])
    got = lab.evaluate("ct.sqrt(a, flush_to_zero=True)", positive, out=torch.float32)
    same(got, [0.0, 2.0**-63, 2.0**-62, 0.0], "sqrt")
    got = lab.evaluate("ct.rsqrt(a, flush_to_zero=True)", positive, out=torch.float32)
    same(got[[0, 3]], [math.inf, math.inf], "rsqrt")
    near(got[1:3], [2.0**63, 2.0**62], 2)
    for name, pick in (("maximum", max), ("minimum", min)):
        x, y = torch.tensor([TINY / 2, -TINY / 2, 1.0, TINY]), torch.tensor([-1.0, 1.0, TINY / 2, TINY / 4])
        got = lab.evaluate(f"ct.{name}(a, b, flush_to_zero=True)", x, y, out=torch.float32)
        same(got, [pick(flushed(p), flushed(q)) for p, q in rows(x, y)], name)


@covers("fma")
def test_multiply_add_is_fused_and_rounds_once(lab: Lab) -> None:
    for dtype in FLOATS:
        a, b, c = (float_samples(dtype, 256, seed) for seed in (5, 6, 7))
        close = torch.arange(96, 160)  # sums that cancel all but the product's last bits
        c[close] = -(a[close] * b[close])
        got = lab.evaluate("a * b + c", a, b, c, out=dtype)
        same(got, [arithmetic("fma", row, dtype, "RN") for row in rows(a, b, c)], f"fma {dtype}")


@covers("fma")
@pytest.mark.parametrize("direction", ["RZ", "RM", "RP"])
def test_multiply_add_rounds_in_the_direction_that_both_parts_name(lab: Lab, direction: str) -> None:
    mode = f"rounding_mode=ct.RoundingMode.{direction}"
    for dtype in (torch.float32, torch.float64):
        a, b, c = (float_samples(dtype, 256, seed) for seed in (8, 9, 10))
        got = lab.evaluate(f"ct.add(ct.mul(a, b, {mode}), c, {mode})", a, b, c, out=dtype)
        same(got, [arithmetic("fma", row, dtype, direction) for row in rows(a, b, c)], f"fma {dtype}")


@covers("sqrt")
def test_square_root_is_correctly_rounded_in_every_direction(lab: Lab) -> None:
    modes = {"RN": FLOATS, "RZ": [torch.float32], "RM": [torch.float32], "RP": [torch.float32]}
    for direction, dtypes in modes.items():
        for dtype in dtypes:
            a = float_samples(dtype, 256, 11).abs()
            a[0], a[1] = -1.0, -0.0
            option = "" if direction == "RN" else f", rounding_mode=ct.RoundingMode.{direction}"
            got = lab.evaluate(f"ct.sqrt(a{option})", a, out=dtype)
            same(got, [exact_sqrt(x, dtype, direction) for (x,) in rows(a)], f"sqrt {dtype} {direction}")


def exact_sqrt(x: float, dtype: torch.dtype, direction: str) -> float:
    if x == 0 or not math.isfinite(x) or x < 0:
        return math.nan if x < 0 else x
    scale = 4**600  # an integer square root with hundreds of bits, its inexactness kept as one more bit
    scaled = Fraction(x) * scale * 4
    root = math.isqrt(scaled.numerator // scaled.denominator) * 2 + (math.isqrt(int(scaled)) ** 2 != scaled)
    return rounded(Fraction(root, 4 * 2**600), dtype, direction)


MP = {
    "exp": ("exp", mpmath.exp, (-80, 80)),
    "exp2": ("exp2", lambda x: mpmath.mpf(2) ** x, (-120, 120)),
    "log": ("log", mpmath.log, (1e-6, 1e6)),
    "log2": ("log2", lambda x: mpmath.log(x, 2), (1e-6, 1e6)),
    "sin": ("sin", mpmath.sin, (-20, 20)),
    "cos": ("cos", mpmath.cos, (-20, 20)),
    "tan": ("tan", mpmath.tan, (-20, 20)),
    "sinh": ("sinh", mpmath.sinh, (-9, 9)),
    "cosh": ("cosh", mpmath.cosh, (-9, 9)),
    "tanh": ("tanh", mpmath.tanh, (-9, 9)),
    "rsqrt": ("rsqrt", lambda x: 1 / mpmath.sqrt(x), (1e-6, 1e6)),
}


def near(got: torch.Tensor, exact: list[Any], ulps: float) -> None:
    """Within ``ulps`` units in the last place of the element type from the exact value."""
    precision, lowest, _ = PRECISION[got.dtype]
    for g, e in zip(got.double().tolist(), exact, strict=True):
        with mpmath.workprec(120):
            exponent = int(mpmath.floor(mpmath.log(abs(e), 2))) if e else lowest
            unit = mpmath.ldexp(mpmath.mpf(1), max(exponent, lowest) - precision + 1)
            assert abs(mpmath.mpf(g) - e) <= ulps * unit, (g, e)


@covers(*(op for op, _, _ in MP.values()))
@pytest.mark.parametrize("dtype", FLOATS)
def test_transcendental_functions_are_within_two_ulps_of_mpmath(lab: Lab, dtype: torch.dtype) -> None:
    rng = random.Random(12)
    for name, (_, function, (low, high)) in MP.items():
        if dtype == torch.float16:
            low, high = max(low, -9), min(high, 9)
        x = torch.tensor([rng.uniform(low, high) for _ in range(128)], dtype=torch.float64).to(dtype)
        got = lab.evaluate(f"ct.{name}(a)", x, out=dtype)
        with mpmath.workprec(160):
            exact = [function(mpmath.mpf(v)) for v in x.double().tolist()]
        # f16 and bf16 compute in f32 and round: half an ulp of the narrow type and a little
        near(got, exact, 2.0 if dtype in (torch.float32, torch.float64) else 0.51)


@covers("exp", "tanh")
def test_approximate_forms_of_exp_and_tanh_stay_near(lab: Lab) -> None:
    x = torch.linspace(-8, 8, 128)
    for name, function in (("exp", np.exp), ("tanh", np.tanh)):
        got = lab.evaluate(f"ct.{name}(a, rounding_mode=ct.RoundingMode.APPROX)", x, out=torch.float32)
        exact = torch.from_numpy(function(x.double().numpy()))
        if name == "exp":
            np.testing.assert_allclose(got.numpy(), exact.numpy(), rtol=1e-6)
            errs(got, exact, 2 * 2.0**-23 + x.double().abs() * 1.25 * 2.0**-24)
        else:
            assert got.abs().max() <= 1
            errs(got, exact, 2.0**-11)


@covers("exp2", "rsqrt", "sqrt")
def test_what_flushes_subnormals_or_is_approximate_errs_as_documented(lab: Lab) -> None:
    x = torch.linspace(0.01, 30, 256)
    errs(lab.evaluate("ct.exp2(a, flush_to_zero=True)", x, out=torch.float32), x.double().exp2(), 2 * 2.0**-23)
    errs(lab.evaluate("ct.rsqrt(a, flush_to_zero=True)", x, out=torch.float32), x.double().rsqrt(), 2.0**-22.9)
    got = lab.evaluate("ct.sqrt(a, rounding_mode=ct.RoundingMode.APPROX)", x, out=torch.float32)
    errs(got, x.double().sqrt(), 2.0**-23)


@covers("divf", "tanh")
def test_approximations_are_exact_where_they_must_be_and_the_same_for_the_same_operands(lab: Lab) -> None:
    mode = "rounding_mode=ct.RoundingMode.APPROX"
    x = torch.tensor([-0.0, math.inf, math.nan, 8.0, -1e30, 6.0, 0.7, 0.7])
    got = lab.evaluate(f"ct.tanh(a, {mode})", x, out=torch.float32)
    same(got[:5], [-0.0, 1.0, math.nan, 1.0, -1.0], "tanh")
    assert 0.999 < got[5] <= 1
    assert got[6] == got[7] != math.tanh(0.7)
    a = torch.tensor([1.0, 1.0, -1.0, math.inf, 0.0, 1.0, 3.0, 3.0])
    b = torch.tensor([0.0, math.inf, 2.0**127, 2.0**127, 2.0**127, math.nan, 7.0, 7.0])
    got = lab.evaluate(f"ct.truediv(a, b, {mode})", a, b, out=torch.float32)
    same(got[:6], [math.inf, 0.0, -0.0, math.nan, 0.0, math.nan], "quotient")
    assert got[6] == got[7]


@covers("exp", "exp2", "log", "log2", "sin", "rsqrt", "tanh")
def test_functions_of_special_values_are_those_of_the_c_standard(lab: Lab) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 200.0])
    nan, inf = math.nan, math.inf
    want = {
        "exp": [inf, 0.0, nan, 1.0, 1.0, None, None, inf],
        "exp2": [inf, 0.0, nan, 1.0, 1.0, 2.0, 0.5, inf],
        "log": [inf, nan, nan, -inf, -inf, 0.0, nan, None],
        "log2": [inf, nan, nan, -inf, -inf, 0.0, nan, None],
        "sin": [nan, nan, nan, 0.0, -0.0, None, None, None],
        "rsqrt": [0.0, nan, nan, inf, -inf, 1.0, nan, None],
        "tanh": [1.0, -1.0, nan, 0.0, -0.0, None, None, 1.0],
    }
    for name, values in want.items():
        got = lab.evaluate(f"ct.{name}(a)", x, out=torch.float32)
        known = [i for i, v in enumerate(values) if v is not None]
        same(got[known], [values[i] for i in known], name)


@covers("atan2", "fpowf")
def test_two_argument_functions_are_near_mpmath_and_exact_on_special_values(lab: Lab) -> None:
    rng = random.Random(13)
    a = torch.tensor([rng.uniform(-5, 5) for _ in range(128)])
    b = torch.tensor([rng.uniform(-5, 5) for _ in range(128)])
    got = lab.evaluate("ct.atan2(a, b)", a, b, out=torch.float32)
    near(got, [mpmath.atan2(mpmath.mpf(x), mpmath.mpf(y)) for x, y in rows(a, b)], 2)
    got = lab.evaluate("ct.pow(a, b)", a.abs(), b, out=torch.float32)
    with mpmath.workprec(120):
        near(got, [mpmath.mpf(x) ** mpmath.mpf(y) for x, y in rows(a.abs(), b)], 2)
    x = torch.tensor([0.0, -0.0, -2.0, 2.0, 0.0, math.inf, -2.0, -8.0])
    y = torch.tensor([-1.0, -1.0, 3.0, -math.inf, 0.0, -1.0, 2.0, 1.0 / 3.0])
    same(lab.evaluate("ct.pow(a, b)", x, y, out=torch.float32), [math.inf, -math.inf, -8, 0.0, 1, 0.0, 4, math.nan])
    y, x = torch.tensor([0.0, -0.0, 0.0, 1.0]), torch.tensor([-1.0, -1.0, 1.0, 0.0])
    want = [float(np.float32(v)) for v in (math.pi, -math.pi, 0.0, math.pi / 2)]
    same(lab.evaluate("ct.atan2(a, b)", y, x, out=torch.float32), want)


@covers("remf")
def test_remainder_of_floats_truncates_like_c_and_is_exact(lab: Lab) -> None:
    for dtype in FLOATS:
        a, b = float_samples(dtype, 256, 14), float_samples(dtype, 256, 15)
        b = torch.where(b == 0, 3.0, b).to(dtype)
        got = lab.evaluate("ct.mod(a, b)", a, b, out=dtype)
        want = [python_mod(x, y, dtype) for x, y in rows(a, b)]
        keep = [i for i, w in enumerate(want) if w is not None]
        same(got[keep], [want[i] for i in keep], f"mod {dtype}")


def python_mod(x: float, y: float, dtype: torch.dtype) -> float | None:
    """Python's % from C's remainder, as cuTile defines it; None where the added divisor needs a rounding of its own."""
    if math.isnan(x) or math.isnan(y) or math.isinf(x):
        return math.nan
    remainder = math.fmod(x, y)
    if remainder == 0 or (remainder < 0) == (y < 0):
        return remainder if remainder else None
    return rounded(Fraction(remainder) + Fraction(y), dtype) if math.isfinite(y) else None


@covers("floor", "ceil", "absf", "negf")
def test_exact_unary_functions_of_floats_keep_signs_of_zeros(lab: Lab) -> None:
    for dtype in FLOATS:
        a = float_samples(dtype, 256, 16)
        a[:4] = torch.tensor([-0.3, 0.3, -1.5, 2.5]).to(dtype)

        def whole(function: Callable[[float], int], x: float) -> float:
            return math.copysign(float(function(x)), x) if math.isfinite(x) else x

        values = [x for (x,) in rows(a)]
        same(lab.evaluate("ct.floor(a)", a, out=dtype), [whole(math.floor, x) for x in values])
        same(lab.evaluate("ct.ceil(a)", a, out=dtype), [whole(math.ceil, x) for x in values])
        same(lab.evaluate("abs(a)", a, out=dtype), [abs(x) for x in values])
        got = lab.evaluate("-a", a, out=dtype)
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        assert torch.equal(got.view(bits) ^ a.view(bits), torch.full((256,), torch.iinfo(bits).min, dtype=bits))


@covers("maxf", "minf")
def test_extrema_drop_a_single_nan_unless_told_to_propagate_and_order_signed_zeros(lab: Lab) -> None:
    def pick(x: float, y: float, greater: bool, propagate: bool) -> float:
        if math.isnan(x) or math.isnan(y):
            return math.nan if propagate or (math.isnan(x) and math.isnan(y)) else (y if math.isnan(x) else x)
        if x == y == 0:
            negative = [math.copysign(1, v) < 0 for v in (x, y)]
            return -0.0 if (all(negative) if greater else any(negative)) else 0.0
        return max(x, y) if greater else min(x, y)

    for dtype in FLOATS:
        a, b = float_samples(dtype, 256, 18), float_samples(dtype, 256, 17)
        for name, propagate in itertools.product(("maximum", "minimum"), (False, True)):
            got = lab.evaluate(f"ct.{name}(a, b, propagate_nan={propagate})", a, b, out=dtype)
            want = [pick(x, y, name == "maximum", propagate) for x, y in rows(a, b)]
            same(got, want, f"{name} {dtype} {propagate}")


@covers("cmpf", "select")
def test_comparisons_with_nan_are_false_except_not_equal(lab: Lab) -> None:
    symbols = {"<": float.__lt__, "<=": float.__le__, ">": float.__gt__, ">=": float.__ge__}
    symbols |= {"==": float.__eq__, "!=": float.__ne__}
    for dtype in FLOATS:
        a, b = float_samples(dtype, 128, 19), float_samples(dtype, 128, 20)
        for symbol, compare in symbols.items():
            got = lab.evaluate(f"ct.where(a {symbol} b, 1, 0)", a, b, out=torch.int32)
            assert got.tolist() == [int(compare(x, y)) for x, y in rows(a, b)], (symbol, dtype)
    x = torch.tensor([1.0, math.nan, math.inf, -math.nan])
    assert lab.evaluate("ct.where(ct.isnan(a), 1, 0)", x, out=torch.int32).tolist() == [0, 1, 0, 1]


# ------------------------------------------------------------------------------------------------------- integer values

SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


def bits_of(dtype: torch.dtype) -> int:
    return 1 if dtype == torch.bool else 8 * dtype.itemsize


def wrapped(value: int, dtype: torch.dtype) -> int:
    """``value`` modulo 2**width, as the integer type represents it."""
    width = bits_of(dtype)
    value &= (1 << width) - 1
    return value - (1 << width) if dtype in SIGNED and value >> (width - 1) else value


def int_samples(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Random bit patterns of random lengths, and the extreme values first."""
    rng, width = random.Random(seed), bits_of(dtype)
    patterns = [rng.getrandbits(rng.randint(1, width)) for _ in range(count)]
    patterns[:5] = [0, 1, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1]
    rng.shuffle(patterns)
    return int_tensor([wrapped(p, dtype) for p in patterns], dtype)


def int_tensor(values: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=str(dtype).removeprefix("torch.")))


def ints(tensor: torch.Tensor) -> list[int]:
    result: list[int] = tensor.numpy().tolist()
    return result


def check_ints(
    lab: Lab, expression: str, judge: Callable[..., int], inputs: list[torch.Tensor], out: torch.dtype
) -> None:
    got = ints(lab.evaluate(expression, *inputs, out=out))
    want = [wrapped(judge(*row), out) for row in zip(*(ints(x) for x in inputs), strict=True)]
    assert got == want, (expression, inputs[0].dtype, out)


@covers("addi", "subi", "muli", "andi", "ori", "xori", "negi")
@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
def test_integer_arithmetic_wraps_around(lab: Lab, dtype: torch.dtype) -> None:
    a, b = int_samples(dtype, 64, 21), int_samples(dtype, 64, 22)
    check_ints(lab, "a + b", lambda x, y: x + y, [a, b], dtype)
    check_ints(lab, "a - b", lambda x, y: x - y, [a, b], dtype)
    check_ints(lab, "a * b", lambda x, y: x * y, [a, b], dtype)
    check_ints(lab, "(a & b) ^ (a | 5)", lambda x, y: (x & y) ^ (x | 5), [a, b], dtype)
    check_ints(lab, "~a", lambda x: ~x, [a], dtype)
    check_ints(lab, "-a", lambda x: -x, [a], dtype)


@covers("absi")
@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_the_absolute_value_of_the_smallest_integer_is_itself(lab: Lab, dtype: torch.dtype) -> None:
    check_ints(lab, "abs(a)", abs, [int_samples(dtype, 64, 21)], dtype)


@covers("divi", "remi")
@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
def test_integer_division_rounds_as_named_and_the_remainder_is_c_s(lab: Lab, dtype: torch.dtype) -> None:
    a, b = int_samples(dtype, 64, 23), int_samples(dtype, 64, 24)
    b = int_tensor([3 if v == 0 else v for v in ints(b)], dtype)
    if dtype in SIGNED:
        check_ints(lab, "a // b", lambda x, y: x // y, [a, b], dtype)
        check_ints(lab, "a % b", lambda x, y: x % y, [a, b], dtype)
        check_ints(lab, "ct.cdiv(a, b)", lambda x, y: -(-x // y), [a, b], dtype)
    else:
        check_ints(lab, "a % b", lambda x, y: x % y, [a, b], dtype)
        check_ints(lab, "ct.cdiv(a, b)", lambda x, y: -(-x // y), [a, b], dtype)


@covers("divi", "remi")
def test_division_by_zero_and_of_the_smallest_by_minus_one_give_values_and_never_trap(lab: Lab) -> None:
    for dtype in SIGNED:
        low = torch.iinfo(dtype).min
        a, b = int_tensor([7, low, low, 0], dtype), int_tensor([0, -1, 0, 0], dtype)
        quotient = ints(lab.evaluate("ct.cdiv(a, b)", a, b, out=dtype))
        assert quotient[1] == low
        assert ints(lab.evaluate("a % b", a, b, out=dtype))[1] == 0


@covers("shli", "shri")
@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
def test_shifts_fill_with_the_sign_or_with_zero_by_signedness(lab: Lab, dtype: torch.dtype) -> None:
    a = int_samples(dtype, 64, 25)
    amounts = int_tensor([i % bits_of(dtype) for i in range(64)], dtype)
    check_ints(lab, "a << b", lambda x, s: x << s, [a, amounts], dtype)
    check_ints(lab, "a >> b", lambda x, s: x >> s, [a, amounts], dtype)


@covers("cmpi", "maxi", "mini")
@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
def test_order_of_integers_follows_their_signedness(lab: Lab, dtype: torch.dtype) -> None:
    a, b = int_samples(dtype, 64, 26), int_samples(dtype, 64, 27)
    b[::8] = a[::8]
    for symbol, compare in {
        "<": int.__lt__,
        "<=": int.__le__,
        ">": int.__gt__,
        ">=": int.__ge__,
        "==": int.__eq__,
        "!=": int.__ne__,
    }.items():
        check_ints(lab, f"ct.where(a {symbol} b, 1, 0)", lambda x, y, c=compare: int(c(x, y)), [a, b], torch.int32)
    check_ints(lab, "ct.maximum(a, b)", max, [a, b], dtype)
    check_ints(lab, "ct.minimum(a, b)", min, [a, b], dtype)


@covers("exti", "trunci")
def test_integer_casts_extend_by_the_source_s_signedness_and_truncate_bits(lab: Lab) -> None:
    for source, target in itertools.permutations(SIGNED + UNSIGNED, 2):
        name = str(target).removeprefix("torch.")
        check_ints(lab, f"ct.astype(a, ct.{name})", lambda x: x, [int_samples(source, 64, 28)], target)


@covers("cmpi", "andi", "ori", "xori", "exti", "select")
def test_booleans_are_one_bit_integers_that_extend_to_one(lab: Lab) -> None:
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    assert lab.evaluate("a & b", a, b, out=torch.bool).tolist() == [True, False, False, False]
    assert lab.evaluate("a | b", a, b, out=torch.bool).tolist() == [True, True, True, False]
    assert lab.evaluate("a ^ b", a, b, out=torch.bool).tolist() == [False, True, True, False]
    assert lab.evaluate("~a", a, out=torch.bool).tolist() == [False, False, True, True]
    assert lab.evaluate("ct.astype(a, ct.int32)", a, out=torch.int32).tolist() == [1, 1, 0, 0]
    assert lab.evaluate("ct.where(a != b, 7, ct.where(a, 1, 0))", a, b, out=torch.int32).tolist() == [1, 7, 7, 0]


# ---------------------------------------------------------------------------------------------------------------- casts


@covers("itof")
@pytest.mark.parametrize("source", SIGNED + UNSIGNED, ids=str)
def test_integers_become_floats_with_one_rounding(lab: Lab, source: torch.dtype) -> None:
    a = int_samples(source, 64, 29)
    for target in FLOATS:
        name = str(target).removeprefix("torch.")
        got = lab.evaluate(f"ct.astype(a, ct.{name})", a, out=target)
        same(got, [rounded(Fraction(x), target) if x else 0.0 for x in ints(a)], f"{source} {target}")


@covers("ftoi")
def test_floats_become_integers_toward_zero_and_booleans_by_being_nonzero(lab: Lab) -> None:
    for source in FLOATS:
        for target in SIGNED + UNSIGNED:
            info = torch.iinfo(target)
            rng = random.Random(30)
            limit = min(2.0**20, float(torch.finfo(source).max), info.max)
            values = [rng.uniform(-limit if info.min else 0, limit) for _ in range(60)] + [0.5, 1.9, 0.0, 100.99]
            x = torch.tensor(values, dtype=torch.float64).to(source)
            x = torch.where(x.double() <= info.max, x, 1).to(source)
            name = str(target).removeprefix("torch.")
            assert ints(lab.evaluate(f"ct.astype(a, ct.{name})", x, out=target)) == [int(v) for (v,) in rows(x)]
        x = torch.tensor([0.0, -0.0, 0.5, -3.0], dtype=source)
        assert lab.evaluate("ct.astype(a, ct.bool_)", x, out=torch.bool).tolist() == [False, False, True, True]


@covers("ftof")
def test_floats_convert_between_types_with_one_rounding(lab: Lab) -> None:
    for source, target in itertools.permutations(FLOATS, 2):
        a = float_samples(source, 256, 31)
        name = str(target).removeprefix("torch.")
        got = lab.evaluate(f"ct.astype(a, ct.{name})", a, out=target)
        want = [x if x == 0 or not math.isfinite(x) else rounded(Fraction(x), target) for (x,) in rows(a)]
        same(got, want, f"{source} {target}")


@covers("ftof")
def test_eight_bit_floats_convert_by_their_definition(lab: Lab) -> None:
    codes = torch.arange(256).to(torch.uint8)
    for dtype, fraction, bias in ((torch.float8_e4m3fn, 3, 7), (torch.float8_e5m2, 2, 15)):
        got = lab.evaluate("ct.astype(a, ct.float32)", codes.view(dtype), out=torch.float32)
        same(got, [small_float(c, fraction, bias, dtype) for c in range(256)], str(dtype))
        values = [small_float(c, fraction, bias, dtype) for c in range(128)]
        finite = [v for v in values if math.isfinite(v)]
        middles = [(x + y) / 2 for x, y in itertools.pairwise(finite)]
        x = torch.tensor((middles + finite + [1e9, -1e9])[:256] + [0.0] * max(0, 256 - len(middles) - len(finite) - 2))
        name = str(dtype).removeprefix("torch.")
        got = lab.evaluate(f"ct.astype(a, ct.{name})", x, out=dtype).view(torch.uint8)
        want = []
        for (v,) in rows(x):
            best = min(range(len(finite)), key=lambda i, v=v: (abs(finite[i] - abs(v)), i % 2))
            want.append(best + (128 if math.copysign(1, v) < 0 else 0))
        assert got.tolist() == want


def small_float(code: int, fraction: int, bias: int, dtype: torch.dtype) -> float:
    """The value of an OCP 8-bit float."""
    sign, field, bits = -1.0 if code & 128 else 1.0, (code & 127) >> fraction, code & ((1 << fraction) - 1)
    if dtype == torch.float8_e4m3fn and code & 127 == 127:
        return math.nan
    if dtype == torch.float8_e5m2 and field == 31:
        return math.nan if bits else sign * math.inf
    significand = bits + (1 << fraction) if field else bits
    return sign * math.ldexp(significand, max(field, 1) - bias - fraction)


@covers("ftof", "mmaf")
def test_tf32_operands_are_rounded_to_ten_fraction_bits_before_the_product(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y, out):
        a = ct.astype(ct.load(x, (0, 0), (16, 16)), ct.tfloat32)
        b = ct.astype(ct.load(y, (0, 0), (16, 16)), ct.tfloat32)
        ct.store(out, (0, 0), ct.mma(a, b, ct.zeros((16, 16), ct.float32)))

    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    out = torch.zeros(16, 16)
    lab.run(kernel, x, torch.eye(16), out)

    def tf32(v: float) -> float:
        bits = struct.unpack("<I", struct.pack("<f", v))[0]
        kept, rest = bits >> 13, bits & 0x1FFF
        kept += rest > 0x1000 or (rest == 0x1000 and kept & 1)
        return float(struct.unpack("<f", struct.pack("<I", kept << 13))[0])

    assert out.reshape(-1).tolist() == [tf32(v) for v in x.reshape(-1).tolist()]


@covers("bitcast")
def test_bitcast_keeps_bits(lab: Lab) -> None:
    x = float_samples(torch.float32, 128, 32)
    assert torch.equal(lab.evaluate("ct.bitcast(a, ct.int32)", x, out=torch.int32), x.view(torch.int32))
    got = lab.evaluate("ct.bitcast(a, ct.float32)", x.view(torch.int32), out=torch.float32)
    assert torch.equal(got.view(torch.int32), x.view(torch.int32))
    h = float_samples(torch.float16, 128, 33)
    assert torch.equal(lab.evaluate("ct.bitcast(a, ct.int16)", h, out=torch.int16), h.view(torch.int16))
    d = float_samples(torch.float64, 128, 34)
    assert torch.equal(lab.evaluate("ct.bitcast(a, ct.int64)", d, out=torch.int64), d.view(torch.int64))


@covers("pack", "unpack")
def test_pack_and_unpack_are_little_endian_bytes(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, as_bytes, as_halves):
        packed = ct.pack_to_bytes(ct.load(x, (0,), (8,)))
        ct.store(as_bytes, (0,), packed)
        ct.store(as_halves, (0,), ct.unpack_from_bytes(packed, ct.int16))

    values = [1, -2, 0x12345678, -0x7654321, 0, 2**31 - 1, -(2**31), 77]
    as_bytes, as_halves = torch.zeros(32, dtype=torch.uint8), torch.zeros(16, dtype=torch.int16)
    lab.run(kernel, torch.tensor(values, dtype=torch.int32), as_bytes, as_halves)
    raw = struct.pack("<8i", *values)
    assert bytes(as_bytes.tolist()) == raw
    assert as_halves.tolist() == list(struct.unpack("<16h", raw))


# --------------------------------------------------------------------------------------------------------------- shapes


@covers("iota", "constant", "reshape", "broadcast", "permute", "cat", "extract", "insert")
def test_shape_operations_move_elements_like_numpy(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, grown, turned, joined, cut, put, counted):
        a = ct.load(x, (0, 0, 0), (2, 4, 8))
        ct.store(grown, (0, 0, 0), ct.broadcast_to(ct.reshape(ct.arange(8, dtype=ct.int32), (1, 8, 1)), (2, 8, 4)))
        ct.store(turned, (0, 0, 0), ct.permute(a, (2, 0, 1)))
        ct.store(joined, (0, 0, 0), ct.cat((a, a + 1000), 1))
        ct.store(cut, (0, 0, 0), ct.extract(a, (1, 0, 3), (1, 2, 2)))
        ct.store(put, (0, 0, 0), ct.insert(a, (0, 1, 1), ct.full((1, 2, 4), -7, ct.int32)))
        ct.store(counted, (0,), ct.arange(16, dtype=ct.int32) * 3 - 5)

    x = np.arange(64, dtype=np.int32).reshape(2, 4, 8)
    shapes = [(2, 8, 4), (8, 2, 4), (2, 8, 8), (1, 2, 2), (2, 4, 8), (16,)]
    outs = [torch.zeros(s, dtype=torch.int32) for s in shapes]
    lab.run(kernel, torch.from_numpy(x), *outs)
    grown, turned, joined, cut, put, counted = (o.numpy() for o in outs)
    np.testing.assert_array_equal(grown, np.broadcast_to(np.arange(8).reshape(1, 8, 1), (2, 8, 4)))
    np.testing.assert_array_equal(turned, x.transpose(2, 0, 1))
    np.testing.assert_array_equal(joined, np.concatenate([x, x + 1000], 1))
    np.testing.assert_array_equal(cut, x[1:2, 0:2, 6:8])
    want = x.copy()
    want[0:1, 2:4, 4:8] = -7
    np.testing.assert_array_equal(put, want)
    np.testing.assert_array_equal(counted, np.arange(16) * 3 - 5)


@covers("constant")
def test_constants_of_every_type_arrive_with_their_bits(lab: Lab) -> None:
    for dtype, literal in itertools.product(FLOATS, ("1.5", "-0.0", "float('inf')", "-float('inf')", "0.1")):
        name = str(dtype).removeprefix("torch.")
        got = lab.evaluate(f"ct.full((4,), {literal}, ct.{name})", torch.zeros(4), out=dtype)
        # the front end takes a Python float to float32 first
        value = float(np.float32(eval(literal)))
        want = value if value == 0 or math.isinf(value) else rounded(Fraction(value), dtype)
        same(got, [want] * 4, f"{name} {literal}")
    for dtype in SIGNED:
        info = torch.iinfo(dtype)
        name = str(dtype).removeprefix("torch.")
        for value in (info.min, info.max, -1):
            got = lab.evaluate(f"ct.full((4,), {value}, ct.{name})", torch.zeros(4), out=dtype)
            assert got.tolist() == [value] * 4


# --------------------------------------------------------------------------------------------------------------- memory


def sentinel(*shape: int) -> torch.Tensor:
    return torch.full(shape, -9999.0)


@covers(
    "make_tensor_view", "make_partition_view", "load_view_tko", "store_view_tko", "get_tile_block_id",
    "get_num_tile_blocks", "get_index_space_shape", "assume", "make_token", "return",
)  # fmt: skip
def test_partition_views_pad_loads_and_clip_stores_at_the_edges(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y, sizes):
        i, j = ct.bid(0), ct.bid(1)
        tile = ct.load(x, (i, j), (4, 8), padding_mode=ct.PaddingMode.ZERO)
        ct.store(y, (i, j), tile + 1)
        if i + j == 0:
            ct.store(sizes, (0,), ct.num_blocks(0))
            ct.store(sizes, (1,), ct.num_blocks(1))
            ct.store(sizes, (2,), ct.num_tiles(x, axis=0, shape=(4, 8)))
            ct.store(sizes, (3,), ct.num_tiles(x, axis=1, shape=(4, 8)))

    x = torch.randn(10, 19)
    y, sizes = sentinel(10, 19), torch.zeros(4, dtype=torch.int32)
    lab.run(kernel, x, y, sizes, grid=(3, 3))
    assert torch.equal(y, x + 1)
    assert sizes.tolist() == [3, 3, 3, 3]


@covers("load_view_tko")
def test_each_padding_value_fills_what_lies_outside(lab: Lab) -> None:
    want = {"ZERO": 0.0, "NEG_ZERO": -0.0, "NAN": math.nan, "POS_INF": math.inf, "NEG_INF": -math.inf}
    for dtype, (mode, value) in itertools.product(FLOATS, want.items()):
        source = (
            "import cuda.tile as ct\n@ct.kernel\ndef kernel(x, y):\n"
            f"    ct.store(y, (0,), ct.load(x, (0,), (8,), padding_mode=ct.PaddingMode.{mode}))\n"
        )
        x, y = torch.arange(5).to(dtype), torch.zeros(8, dtype=dtype)
        lab.run(compiled(source), x, y)
        same(y, [0.0, 1.0, 2.0, 3.0, 4.0, value, value, value], f"{dtype} {mode}")


def compiled(source: str) -> Any:
    """The kernel that ``source`` defines."""
    file = f"<kernel {next(_SOURCES)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "compiled"}
    exec(compile(source, file, "exec"), space)
    return space["kernel"]


@covers("load_view_tko", "store_view_tko")
def test_views_follow_strides_and_permuted_tile_orders(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y, z):
        tile = ct.load(x, (1, 0, 1), (2, 4, 8), order=(2, 0, 1), padding_mode=ct.PaddingMode.ZERO)
        ct.store(y, (0, 0, 0), tile)
        ct.store(z, (0, 1, 0), tile, order=(2, 0, 1))

    base = torch.arange(3 * 20 * 7 * 2, dtype=torch.float32).reshape(7, 20, 3 * 2)
    x = base.permute(2, 0, 1)[::2]  # strides that no contiguous array has
    y, z = sentinel(2, 4, 8), sentinel(8, 8, 4)
    lab.run(kernel, x, y, z)
    padded = np.zeros((16, 16, 24), dtype=np.float32)
    padded[:3, :7, :20] = x.numpy()
    # tile dimension k runs along array dimension order[k]; the index counts tiles per tile dimension
    want = padded.transpose(2, 0, 1)[2:4, 0:4, 8:16]
    np.testing.assert_array_equal(y.numpy(), want)
    want_z = np.full((8, 8, 4), -9999.0, dtype=np.float32)
    want_z.transpose(2, 0, 1)[0:2, 4:8, 0:8] = want
    np.testing.assert_array_equal(z.numpy(), want_z)


@covers("make_strided_view", "load_view_tko", "store_view_tko")
def test_strided_views_step_by_their_traversal_and_overlap(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y):
        i = ct.bid(0)
        view = x.tiled_view((8, 4), traversal_steps=(3, 5), padding_mode=ct.PaddingMode.ZERO)
        ct.store(y, (i, 0, 0), ct.reshape(view.load((i, 1)), (1, 8, 4)))

    x = torch.randn(11, 9)
    y = sentinel(4, 8, 4)
    lab.run(kernel, x, y, grid=(4,))
    padded = np.zeros((40, 40), dtype=np.float32)
    padded[:11, :9] = x.numpy()
    np.testing.assert_array_equal(y.numpy(), np.stack([padded[3 * i : 3 * i + 8, 5:9] for i in range(4)]))


@covers("make_gather_scatter_view", "load_view_tko", "store_view_tko")
def test_gather_views_take_element_rows_and_element_offsets_elsewhere(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, rows, y, z, start):
        index = ct.load(rows, (0,), (4,))
        tile = ct.load_advanced_indexing(x, (index, ct.Slice(start, 4)), padding_mode=ct.PaddingMode.ZERO)
        ct.store(y, (0, 0), tile)
        ct.store_advanced_indexing(z, (index, ct.Slice(start, 4)), tile)

    x = torch.randn(9, 10)
    index = [7, 2, 8, 0]
    for start in (0, 3, 5, 8):  # offsets that are no multiples of the tile
        y, z = sentinel(4, 4), sentinel(9, 10)
        lab.run(kernel, x, torch.tensor(index, dtype=torch.int32), y, z, start)
        padded = np.zeros((9, 20), dtype=np.float32)
        padded[:, :10] = x.numpy()
        np.testing.assert_array_equal(y.numpy(), padded[index, start : start + 4])
        want = np.full((9, 10), -9999.0, dtype=np.float32)
        want[index, start : min(start + 4, 10)] = x.numpy()[index, start : min(start + 4, 10)]
        np.testing.assert_array_equal(z.numpy(), want)


@covers("offset", "load_ptr_tko", "store_ptr_tko", "muli", "exti", "cmpi")
def test_gather_and_scatter_mask_negative_and_large_indices_instead_of_wrapping(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, rows, columns, y, z):
        r, c = ct.load(rows, (0,), (8,)), ct.load(columns, (0,), (8,))
        got = ct.gather(x, (r, c), padding_value=-5.0)
        ct.store(y, (0,), got)
        ct.scatter(z, (r, c), got * 2)

    x = torch.randn(5, 6)
    r = [0, 4, -1, 5, 2, 2, 2**31 - 1, -(2**31)]
    c = [0, 5, 0, 0, -6, 3, 1, 2]
    y, z = sentinel(8), sentinel(5, 6)
    lab.run(kernel, x, torch.tensor(r, dtype=torch.int32), torch.tensor(c, dtype=torch.int32), y, z)
    inside = [0 <= i < 5 and 0 <= j < 6 for i, j in zip(r, c, strict=True)]
    want = [x[i, j].item() if ok else -5.0 for i, j, ok in zip(r, c, inside, strict=True)]
    assert y.tolist() == want
    want_z = np.full((5, 6), -9999.0, dtype=np.float32)
    for i, j, ok in zip(r, c, inside, strict=True):
        if ok:
            want_z[i, j] = x[i, j] * 2
    np.testing.assert_array_equal(z.numpy(), want_z)


@covers("int_to_ptr", "extract")
def test_lists_of_arrays_are_addressed_through_their_table(lab: Lab) -> None:
    @ct.kernel
    def kernel(arrays, out):
        i = ct.bid(0)
        item = arrays[i]
        ct.store(out, (i, 0), ct.reshape(ct.load(item, (0,), (4,)) * 10, (1, 4)))

    arrays = [torch.arange(4, dtype=torch.float32) + 100 * i for i in range(3)]
    out = sentinel(3, 4)
    lab.run(kernel, arrays, out, grid=(3,))
    assert torch.equal(out, torch.stack(arrays) * 10)


# -------------------------------------------------------------------------------------------------------------- atomics


@covers("atomic_rmw_tko", "join_tokens")
def test_atomics_on_duplicate_addresses_all_count_and_return_different_old_values(lab: Lab) -> None:
    @ct.kernel
    def kernel(counter, index, old):
        i = ct.load(index, (0,), (8,))
        ct.store(old, (0,), ct.atomic_add(counter, i, 1))

    counter, old = torch.tensor([10, 20, 30], dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    lab.run(kernel, counter, torch.tensor([0, 1, 0, 0, 1, 7, -1, 0], dtype=torch.int32), old)
    assert counter.tolist() == [14, 22, 30]
    assert sorted(old[[0, 2, 3, 7]].tolist()) == [10, 11, 12, 13]
    assert sorted(old[[1, 4]].tolist()) == [20, 21]


@covers("atomic_rmw_tko")
def test_each_atomic_mode_computes_its_function_in_its_type(lab: Lab) -> None:
    cases: list[tuple[str, torch.dtype, list[int], list[int], Callable[[int, int], int]]] = [
        ("add", torch.int32, [2**31 - 1, 5], [1, -7], lambda x, y: x + y),
        ("add", torch.uint64, [2**64 - 1, 5], [3, 9], lambda x, y: x + y),
        ("max", torch.int32, [-5, 7], [3, -9], max),
        ("max", torch.uint32, [2**32 - 1, 7], [3, 2**31], max),
        ("min", torch.int64, [-5, 7], [3, -9], min),
        ("min", torch.uint64, [2**64 - 1, 7], [3, 2**63], min),
        ("and", torch.int32, [0b1100, -1], [0b1010, 77], lambda x, y: x & y),
        ("or", torch.int32, [0b1100, -8], [0b1010, 5], lambda x, y: x | y),
        ("xor", torch.int64, [0b1100, -1], [0b1010, 5], lambda x, y: x ^ y),
        ("xchg", torch.int32, [4, -1], [9, 5], lambda x, y: y),
    ]
    for mode, dtype, start, update, judge in cases:
        kernel = compiled(
            "import cuda.tile as ct\n@ct.kernel\ndef kernel(x, u, old):\n"
            "    i = ct.arange(2, dtype=ct.int32)\n"
            f"    ct.store(old, (0,), ct.atomic_{mode}(x, i, ct.load(u, (0,), (2,))))\n"
        )
        x, old = int_tensor(start, dtype), int_tensor([0, 0], dtype)
        lab.run(kernel, x, int_tensor(update, dtype), old)
        assert ints(old) == start, mode
        assert ints(x) == [wrapped(judge(a, b), dtype) for a, b in zip(start, update, strict=True)], mode


@covers("atomic_rmw_tko")
def test_floating_point_atomic_add_accumulates_over_blocks(lab: Lab) -> None:
    @ct.kernel
    def kernel(total, x):
        i = ct.bid(0)
        ct.atomic_add(total, ct.zeros((4,), ct.int32), ct.load(x, (i,), (4,)))

    for dtype in (torch.float32, torch.float64):
        total, x = torch.zeros(1, dtype=dtype), torch.arange(32).to(dtype)
        lab.run(kernel, total, x, grid=(8,))
        assert total.item() == 496


@covers("atomic_cas_tko")
def test_compare_and_swap_compares_bits_and_returns_what_was_there(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, expected, desired, old):
        i = ct.arange(4, dtype=ct.int32)
        e, d = ct.load(expected, (0,), (4,)), ct.load(desired, (0,), (4,))
        ct.store(old, (0,), ct.atomic_cas(x, i, e, d))

    x, old = torch.tensor([1, 2, 3, 4], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    lab.run(
        kernel, x, torch.tensor([1, 9, 3, 0], dtype=torch.int32), torch.tensor([10, 20, 30, 40], dtype=torch.int32), old
    )
    assert x.tolist() == [10, 2, 30, 4]
    assert old.tolist() == [1, 2, 3, 4]


@covers("atomic_red_view_tko")
def test_view_reductions_update_atomically_and_clip_at_the_edge(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y):
        view, other = x.tiled_view(4), y.tiled_view(4)
        view.atomic_store_add(1, ct.full((4,), 5, ct.int32))
        other.atomic_store_max(ct.bid(0) * 0, ct.full((4,), 7, ct.uint32))

    x = torch.arange(6, dtype=torch.int32)
    y = int_tensor([1, 9, 2**32 - 1, 0], torch.uint32)
    lab.run(kernel, x, y, grid=(3,))
    assert x.tolist() == [0, 1, 2, 3, 19, 20]
    assert ints(y) == [7, 9, 2**32 - 1, 7]


# -------------------------------------------------------------------------------------------------------------- control


@covers("for", "continue", "if", "yield")
def test_counted_loops_carry_values_and_blocks_take_their_own_branches(lab: Lab) -> None:
    @ct.kernel
    def kernel(bounds, out):
        b = ct.bid(0)
        low, high, step = (
            ct.load(bounds, (b, 0), (1, 1)),
            ct.load(bounds, (b, 1), (1, 1)),
            ct.load(bounds, (b, 2), (1, 1)),
        )
        total, odd = 0, 0
        for i in range(low.item(), high.item(), step.item()):
            total += i
            if i % 2 == 1:
                odd += 1
            else:
                odd += 100
        ct.store(out, (b, 0), total)
        ct.store(out, (b, 1), odd)

    bounds = [(0, 10, 1), (3, 3, 1), (5, 0, 1), (-4, 9, 3), (1, 2, 50), (0, 7, 2)]
    out = torch.zeros(6, 2, dtype=torch.int32)
    lab.run(kernel, torch.tensor(bounds, dtype=torch.int32), out, grid=(6,))
    want = [[sum(range(*b)), sum(1 if i % 2 else 100 for i in range(*b))] for b in bounds]
    assert out.tolist() == want


@covers("loop", "break", "continue", "if")
def test_loops_break_and_continue_each_block_for_itself(lab: Lab) -> None:
    @ct.kernel
    def kernel(start, out):
        b = ct.bid(0)
        n = ct.load(start, (b,), (1,)).item()
        steps, skipped = 0, 0
        while n != 1:
            steps += 1
            if n % 2 == 0:
                n = n // 2
                skipped += 1
                continue
            n = 3 * n + 1
            if steps > 50:
                break
        ct.store(out, (b, 0), steps)
        ct.store(out, (b, 1), skipped)

    def collatz(n: int) -> list[int]:
        steps = skipped = 0
        while n != 1:
            steps += 1
            if n % 2 == 0:
                n, skipped = n // 2, skipped + 1
                continue
            n = 3 * n + 1
            if steps > 50:
                break
        return [steps, skipped]

    start = [1, 2, 7, 27, 9, 1, 97, 6]
    out = torch.zeros(8, 2, dtype=torch.int32)
    lab.run(kernel, torch.tensor(start, dtype=torch.int32), out, grid=(8,))
    assert out.tolist() == [collatz(n) for n in start]


@covers("if", "return")
def test_a_block_that_returns_early_leaves_the_rest_undone(lab: Lab) -> None:
    @ct.kernel
    def kernel(out, limit):
        b = ct.bid(0)
        ct.store(out, (b, 0), 1)
        if b >= limit:
            return
        ct.store(out, (b, 1), 2)

    out = torch.zeros(5, 2, dtype=torch.int32)
    lab.run(kernel, out, 3, grid=(5,))
    assert out.tolist() == [[1, 2], [1, 2], [1, 2], [1, 0], [1, 0]]


@covers("reduce", "yield")
def test_reductions_agree_with_numpy_along_each_axis(lab: Lab) -> None:
    x = torch.randint(-50, 50, (4, 8, 16), generator=torch.Generator().manual_seed(2)).float()
    judges: dict[str, Callable[..., np.ndarray]] = {"sum": np.sum, "max": np.max, "min": np.min}
    for name, axis in itertools.product(judges, (0, 1, 2)):
        kernel = compiled(
            "import cuda.tile as ct\n@ct.kernel\ndef kernel(x, y):\n"
            f"    ct.store(y, (0, 0), ct.{name}(ct.load(x, (0, 0, 0), (4, 8, 16)), {axis}))\n"
        )
        want = judges[name](x.numpy(), axis)
        y = sentinel(*want.shape)
        lab.run(kernel, x, y)
        np.testing.assert_array_equal(y.numpy(), want)


@covers("reduce", "cmpf", "select", "cmpi")
def test_argmax_and_argmin_take_the_first_of_equals_and_skip_nan_unless_told(lab: Lab) -> None:
    x = torch.tensor(
        [[3.0, 9.0, 9.0, -1.0], [math.nan, 2.0, -7.0, 2.0], [1.0, 1.0, 1.0, 1.0], [-0.0, 0.0, math.nan, -1.0]]
    )
    for name, function in (("argmax", np.nanargmax), ("argmin", np.nanargmin)):
        kernel = compiled(
            "import cuda.tile as ct\n@ct.kernel\ndef kernel(x, y):\n"
            f"    ct.store(y, (0,), ct.{name}(ct.load(x, (0, 0), (4, 4)), 1))\n"
        )
        y = torch.zeros(4, dtype=torch.int32)
        lab.run(kernel, x, y)
        assert y.tolist() == function(x.numpy(), 1).tolist()
        kernel = compiled(
            "import cuda.tile as ct\n@ct.kernel\ndef kernel(x, y):\n"
            f"    ct.store(y, (0,), ct.{name}(ct.load(x, (0, 0), (4, 4)), 1, propagate_nan=True))\n"
        )
        lab.run(kernel, x, y)
        assert y.tolist() == getattr(np, name)(x.numpy(), 1).tolist()


@covers("reduce")
def test_reductions_with_a_function_of_one_s_own_keep_operand_order(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y):
        # 2×2 matrices in four tiles: associative, not commutative. What comes earlier is the function's left half.
        def multiply(a, b, c, d, e, f, g, h):
            return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h

        tiles = tuple(ct.reshape(ct.load(x, (0, k), (8, 1)), (8,)) for k in ct.static_iter(range(4)))
        a, b, c, d = ct.reduce(tiles, 0, multiply, (1, 0, 0, 1))
        ct.store(y, (0,), a)
        ct.store(y, (1,), b)
        ct.store(y, (2,), c)
        ct.store(y, (3,), d)

    x = np.random.default_rng(3).integers(-2, 3, (8, 4)).astype(np.int32)
    y = torch.zeros(4, dtype=torch.int32)
    lab.run(kernel, torch.from_numpy(x), y)
    product = np.eye(2, dtype=np.int64)
    for matrix in x.reshape(8, 2, 2):
        product = product @ matrix
    assert y.tolist() == product.reshape(-1).tolist()


@covers("scan", "yield")
def test_scans_run_inclusively_forwards_and_backwards(lab: Lab) -> None:
    x = torch.randint(-3, 4, (4, 8), generator=torch.Generator().manual_seed(4)).float()
    for (name, function), axis, reverse in itertools.product(
        (("cumsum", np.cumsum), ("cumprod", np.cumprod)), (0, 1), (False, True)
    ):
        kernel = compiled(
            "import cuda.tile as ct\n@ct.kernel\ndef kernel(x, y):\n"
            f"    ct.store(y, (0, 0), ct.{name}(ct.load(x, (0, 0), (4, 8)), {axis}, reverse={reverse}))\n"
        )
        y = sentinel(4, 8)
        lab.run(kernel, x, y)
        source = np.flip(x.numpy(), axis) if reverse else x.numpy()
        want = function(source, axis)
        np.testing.assert_array_equal(y.numpy(), np.flip(want, axis) if reverse else want)


@covers("scan")
def test_scans_with_a_function_of_one_s_own_keep_operand_order(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y):
        def last(before, element):  # associative, not commutative: the latest number that is not zero
            return ct.where(element != 0, element, before)

        tile = ct.load(x, (0,), (8,))
        ct.store(y, (0, 0), ct.reshape(ct.scan(tile, 0, last, 0), (1, 8)))
        ct.store(y, (1, 0), ct.reshape(ct.scan(tile, 0, last, 0, reverse=True), (1, 8)))

    x = [0, 3, 0, 5, 0, 0, 7, 0]
    y = torch.zeros(2, 8, dtype=torch.int32)
    lab.run(kernel, torch.tensor(x, dtype=torch.int32), y)
    assert y.tolist() == [[0, 3, 3, 5, 5, 5, 7, 7], [3, 3, 5, 5, 7, 7, 7, 0]]


# ------------------------------------------------------------------------------------------------------ matrix products


@covers("mmaf")
def test_matrix_products_of_all_float_types_equal_exact_sums_of_small_integers(lab: Lab) -> None:
    rng = np.random.default_rng(5)
    pairs = [
        (torch.float16, torch.float32), (torch.float16, torch.float16), (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32), (torch.float64, torch.float64), (torch.float8_e4m3fn, torch.float32),
        (torch.float8_e5m2, torch.float32), (torch.float8_e4m3fn, torch.float16),
    ]  # fmt: skip
    for source, target in pairs:

        @ct.kernel
        def kernel(x, y, z, out):
            a, b, c = ct.load(x, (0, 0), (16, 32)), ct.load(y, (0, 0), (32, 16)), ct.load(z, (0, 0), (16, 16))
            ct.store(out, (0, 0), ct.mma(a, b, c))

        x, y, z = (rng.integers(-4, 5, shape) for shape in ((16, 32), (32, 16), (16, 16)))
        out = torch.zeros(16, 16, dtype=target)
        lab.run(kernel, *(torch.from_numpy(v).to(source) for v in (x, y)), torch.from_numpy(z).to(target), out)
        np.testing.assert_array_equal(out.double().numpy(), x @ y + z)


@covers("mmaf")
def test_matrix_products_accumulate_in_float32_and_batches_stay_apart(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y, out):
        i = ct.bid(0)
        a, b = ct.load(x, (i, 0, 0), (2, 16, 32)), ct.load(y, (0, 0, 0), (2, 32, 16))
        ct.store(out, (i, 0, 0), ct.mma(a, b, ct.zeros((2, 16, 16), ct.float32)))

    g = torch.Generator().manual_seed(6)
    x, y = torch.randn(6, 16, 32, generator=g).bfloat16(), torch.randn(2, 32, 16, generator=g).bfloat16()
    out = torch.zeros(6, 16, 16)
    lab.run(kernel, x, y, out, grid=(3,))
    want = np.einsum("ibmk,bkn->ibmn", x.double().numpy().reshape(3, 2, 16, 32), y.double().numpy()).reshape(6, 16, 16)
    scale = np.einsum("ibmk,bkn->ibmn", np.abs(x.double().numpy().reshape(3, 2, 16, 32)), np.abs(y.double().numpy()))
    assert (np.abs(out.numpy() - want) <= 32 * 2.0**-24 * scale.reshape(6, 16, 16)).all()


@covers("mmai")
def test_integer_matrix_products_have_a_signedness_for_each_side_and_wrap(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y, z, out):
        a, b, c = ct.load(x, (0, 0), (16, 32)), ct.load(y, (0, 0), (32, 16)), ct.load(z, (0, 0), (16, 16))
        ct.store(out, (0, 0), ct.mma(a, b, c))

    rng = np.random.default_rng(7)
    for left, right in itertools.product((np.int8, np.uint8), repeat=2):
        x, y = (
            rng.integers(np.iinfo(t).min, np.iinfo(t).max + 1, s).astype(t)
            for t, s in ((left, (16, 32)), (right, (32, 16)))
        )
        z = rng.integers(-(2**31), 2**31, (16, 16)).astype(np.int32)
        z[0] = 2**31 - 1
        out = torch.zeros(16, 16, dtype=torch.int32)
        lab.run(kernel, *map(torch.from_numpy, (x, y, z)), out)
        want = x.astype(np.int64) @ y.astype(np.int64) + z
        np.testing.assert_array_equal(out.numpy(), want.astype(np.int32))


@covers("mmaf_scaled")
def test_scaled_matrix_products_scale_blocks_of_the_inner_dimension(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, sx, y, sy, out):
        a, b = ct.load(x, (0, 0), (32, 64)), ct.load(y, (0, 0), (64, 16))
        sa, sb = ct.load(sx, (0, 0), (32, 2)), ct.load(sy, (0, 0), (2, 16))
        ct.store(out, (0, 0), ct.mma_scaled(a, sa, b, sb, ct.zeros((32, 16), ct.float32)))

    rng = np.random.default_rng(8)
    x, y = rng.integers(-4, 5, (32, 64)), rng.integers(-4, 5, (64, 16))
    ex, ey = rng.integers(-3, 4, (32, 2)), rng.integers(-3, 4, (2, 16))
    scales = [torch.from_numpy((e + 127).astype(np.uint8)).view(torch.float8_e8m0fnu) for e in (ex, ey)]
    operands = [torch.from_numpy(v).to(torch.float8_e4m3fn) for v in (x, y)]
    out = torch.zeros(32, 16)
    lab.run(kernel, operands[0], scales[0], operands[1], scales[1], out)
    left = x * np.repeat(2.0**ex, 32, axis=1)
    right = y * np.repeat(2.0**ey, 32, axis=0)
    np.testing.assert_array_equal(out.double().numpy(), left @ right)


# ----------------------------------------------------------------------------------------------------------- the others


@covers("print_tko")
def test_printing_formats_scalars_and_nested_tiles(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    @ct.kernel
    def kernel(x):
        tile = ct.load(x, (0, 0), (2, 2))
        ct.printf("%d: %.2f 100%%\n", ct.bid(0), tile)

    lab.run(kernel, torch.tensor([[1.0, 2.5], [-3.25, 0.0]]))
    assert capsys.readouterr().out == "0: [[1.00, 2.50], [-3.25, 0.00]] 100%\n"


@covers("assert")
def test_a_failed_assertion_is_reported_with_its_message_and_first_block(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, limit):
        ct.assert_(ct.load(x, (ct.bid(0),), (4,)) < limit, "too large")  # noqa: PT009

    x = torch.arange(8, dtype=torch.int32)
    assert lab.run(kernel, x, 8, grid=(2,)).asserts == ()
    (failure,) = lab.run(kernel, x, 6, grid=(2,)).asserts
    assert failure.message == "too large"
    assert failure.block == (1, 0, 0)


@covers("gdc_wait_tko", "gdc_launch_dependents_tko")
def test_grid_dependency_control_changes_no_values(lab: Lab) -> None:
    @ct.kernel
    def kernel(x, y):
        ct.grid_dependency_control_wait()
        ct.store(y, (0,), ct.load(x, (0,), (4,)) + 1)
        ct.grid_dependency_control_launch_dependents()

    y = sentinel(4)
    lab.run(kernel, torch.arange(4.0), y)
    assert y.tolist() == [1, 2, 3, 4]


@covers("fpowi")
def test_powers_with_integer_exponents(lab: Lab) -> None:
    a, n = torch.tensor([2.0, -3.0, 0.5, -1.5]), torch.tensor([10, 3, -4, 0], dtype=torch.int32)
    same(lab.evaluate("ct.pow(a, b)", a, n, out=torch.float32), [1024.0, -27.0, 16.0, 1.0])


def test_every_operation_that_the_front_end_emits_has_a_value_test() -> None:
    covered = frozenset().union(*COVERED.values())
    assert sorted(EMITTED - covered) == []
    assert sorted(covered - EMITTED) == []


def test_the_list_of_emitted_operations_is_what_the_installed_front_end_calls() -> None:
    """The front end's sources name the encoder of each operation that they emit."""
    import re
    from pathlib import Path

    root = Path(ct.__path__[0])
    sources = [p for p in root.rglob("*.py") if "_bytecode" not in p.parts]
    encoders = set(re.findall(r"encode_([A-Z]\w+)Op\b", "".join(p.read_text(encoding="utf-8") for p in sources)))
    encoders.remove("GetGlobal")  # a lock around printing, in bytecode older than 13.2, which is never asked for
    assert {name.lower() for name in encoders} == {name.replace("_", "") for name in EMITTED}
