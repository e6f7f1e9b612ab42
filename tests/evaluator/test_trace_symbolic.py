"""Symbolic integers: answers are the sample's, guards are what makes them right, and no more."""

from __future__ import annotations

import functools
import math

import cuda.tile as ct
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.trace.refusal import Refusal
from evaluator.trace.symbolic import SHADOWS, Context, SymbolicSize, expr_of, value_of
from kernels_generated.runtime.expr import evaluate

smallest, greatest, integer = SHADOWS["min"], SHADOWS["max"], SHADOWS["int"]


def context(**dims: int) -> tuple[Context, ...]:
    made = Context(dims)
    return (made, *(made.symbol(name) for name in dims))


def said(made: Context) -> list[str]:
    return [str(g) for g in made.needed_guards()]


@pytest.mark.parametrize(
    ("use", "expr"),
    [
        (lambda m, n: m * n + m, ("+", ("*", "M", "N"), "M")),
        (lambda m, n: ct.cdiv(m, 64), ("cdiv", "M", 64)),
        (lambda m, n: (m + 63) // 64, ("cdiv", "M", 64)),
        (lambda m, n: -(-m // 64), ("cdiv", "M", 64)),
        (lambda m, n: math.ceil(m / 64), ("cdiv", "M", 64)),
        (lambda m, n: integer(m / 64), ("fdiv", "M", 64)),
        (lambda m, n: integer(math.floor(m / 64)), ("fdiv", "M", 64)),
        (lambda m, n: m >> 3, ("fdiv", "M", 8)),
        (lambda m, n: m & 7, ("mod", "M", 8)),
        (lambda m, n: m << 2, ("*", 4, "M")),
        (lambda m, n: m**2, ("*", "M", "M")),
        (lambda m, n: divmod(m, 5)[1], ("mod", "M", 5)),
        (lambda m, n: smallest(m, 128), ("min", "M", 128)),
        (lambda m, n: greatest(m, n, 4), ("max", ("max", "M", "N"), 4)),
        (lambda m, n: smallest([m, n]), ("min", "M", "N")),
        (lambda m, n: round(m), "M"),
        (lambda m, n: sum([m, n]), ("+", "M", "N")),
        (lambda m, n: math.prod([m, n, 2]), ("*", 2, ("*", "M", "N"))),
        (lambda m, n: m * n // n, "M"),
        (lambda m, n: m // m, 1),
        (lambda m, n: m - m, 0),
    ],
)
def test_arithmetic_stays_an_expression_without_guards(use, expr) -> None:
    made, m, n = context(M=500, N=96)
    got = use(m, n)
    assert expr_of(got) == expr
    assert value_of(got) == use(500, 96)
    assert made.guards == []


@pytest.mark.parametrize(
    ("use", "answer", "guards"),
    [
        (lambda m, n: m > 100, True, ["M >= 101"]),
        (lambda m, n: 100 < m, True, ["M >= 101"]),  # noqa: SIM300
        (lambda m, n: m < n, False, ["M >= N"]),
        (lambda m, n: bool(m % 4), False, ["M%4 == 0"]),
        (lambda m, n: bool(m % 128), True, ["M%128 != 0"]),
        (lambda m, n: m == 500.0, True, ["M == 500"]),
        (lambda m, n: len(range(n)), 96, ["N == 96"]),
        (lambda m, n: [0] * n == [0] * 96, True, ["N == 96"]),
        (lambda m, n: {96: "yes"}[n], "yes", ["N == 96"]),
        (lambda m, n: f"{n}", "96", ["N == 96"]),
        (lambda m, n: "%d" % n, "96", ["N == 96"]),  # noqa: UP031
        (lambda m, n: str(m // n), "5", ["M//N == 5"]),
        (lambda m, n: math.sqrt(n + 4), 10.0, ["N + 4 == 100"]),
        (lambda m, n: n**-0.5, 96**-0.5, ["N == 96"]),
        (lambda m, n: n * 1.5, 144.0, ["N == 96"]),
        (lambda m, n: n / 2.5, 38.4, ["N == 96"]),
        (lambda m, n: m | 1, 501, ["M == 500"]),
        (lambda m, n: math.gcd(n, 64), 32, ["N == 96"]),
        (lambda m, n: math.log2(n // 3), 5.0, ["N//3 == 32"]),
        (lambda m, n: n.bit_length(), 7, ["N >= 64", "N <= 127"]),
        (lambda m, n: 1 << (n - 1).bit_length(), 128, ["N - 1 >= 64", "N - 1 <= 127"]),
        (lambda m, n: sorted([m, n, 7])[0], 7, ["N < M", "N >= 8"]),
        (lambda m, n: abs(m - n) == 404, True, ["M - N == 404"]),
        (lambda m, n: m / n > 5, True, ["M > 5*N"]),
        (lambda m, n: bool(m) and bool(n), True, []),
        (lambda m, n: m >= 1 and m * n > 0 and m + n != 1, True, []),
        (lambda m, n: isinstance(m, int) and not isinstance(m, float), True, []),
        (lambda m, n: m != None and m != "x", True, []),  # noqa: E711
    ],
)
def test_what_must_be_answered_is_answered_by_the_sample_and_guarded(use, answer, guards) -> None:
    made, m, n = context(M=500, N=96)
    assert use(m, n) == answer
    assert said(made) == guards


def test_questions_that_follow_from_guards_ask_no_more() -> None:
    made, m, n = context(M=500, N=96)
    assert n % 32 == 0
    assert m >= 64
    assert m <= 2000
    before = list(made.guards)
    assert n % 8 == 0
    assert (m * n) % 16 == 0
    assert m > 20
    assert m != 3
    assert m < 5000
    assert n >= 32
    assert ct.cdiv(m, 10) <= 200
    assert made.guards == before


def test_a_power_of_two_by_doubling_needs_only_the_bucket() -> None:
    made, _, n = context(M=500, N=96)
    tile = 1
    while tile < n:
        tile *= 2
    assert tile == 128
    assert said(made) == ["N >= 65", "N <= 128"]


def test_a_cache_keeps_no_size_of_an_earlier_context() -> None:
    @functools.lru_cache
    def half(size):
        return size // 2

    _, first = context(M=500)
    made, second = context(M=500)
    assert type(half(first)) is SymbolicSize
    assert half(second).context is made
    with pytest.raises(Refusal, match="earlier call"):
        second + half(first)


@pytest.mark.parametrize(
    "grow",
    [
        lambda m, n: functools.reduce(lambda a, _: a * a + n, range(12), m),
        lambda m, n: functools.reduce(lambda a, _: (a // 3 + n) % (a + 1), range(200), m),
        lambda m, n: m * 2**300,
    ],
)
def test_sizes_that_grow_without_end_are_refused(grow) -> None:
    _, m, n = context(M=500, N=96)
    with pytest.raises(Refusal) as refusal:
        grow(m, n)
    assert refusal.value.error_class == "expression-too-large"


numbers = st.integers(1, 40)


OPERATIONS = {
    "+": lambda a, b, _: a + b,
    "-": lambda a, b, _: a - b,
    "*": lambda a, b, _: a * b,
    "//": lambda a, b, _: a // b,
    "%": lambda a, b, _: a % b,
    "min": lambda a, b, names: names["min"](a, b),
    "max": lambda a, b, names: names["max"](a, b),
    "ceil": lambda a, b, _: math.ceil(a / b),
    "floor": lambda a, b, _: math.floor(a / b),
    "abs": lambda a, b, _: abs(a),
    "int": lambda a, b, names: names["int"](a / b),
    ">>": lambda a, b, _: a >> 2,
    "cdiv": lambda a, b, _: ct.cdiv(a, b),
}
QUESTIONS = {
    "<": lambda a, b: bool(a < b),
    "==": lambda a, b: bool(a == b),
    "% 4": lambda a, b: bool(a % 4),
    "bits": lambda a, b: abs(a).bit_length(),
}
PLAIN = {"min": min, "max": max, "int": int}


def follow(program, m, n, names):
    """Runs the program; its answers go into the trail, which must be the same wherever the guards hold."""
    value, trail = m, []
    for operation, operand in program:
        other = {"M": m, "N": n}.get(operand, operand)
        if operation in QUESTIONS:
            trail.append(QUESTIONS[operation](value, other))
        else:
            value = OPERATIONS[operation](value, other, names)
    return value, trail


@st.composite
def programs(draw):
    """A straight-line program over two sizes: (operation, operand) pairs applied to an accumulator."""
    operand = st.sampled_from(["M", "N", 1, 2, 3, 7, 16])
    operation = st.sampled_from([*OPERATIONS, *QUESTIONS])
    return draw(st.lists(st.tuples(operation, operand), min_size=1, max_size=7))


@settings(max_examples=400, deadline=None)
@given(programs(), numbers, numbers, st.lists(st.tuples(numbers, numbers), max_size=12))
def test_wherever_the_guards_hold_plain_integers_take_the_same_path_to_the_same_value(program, m, n, others) -> None:
    made, x, y = context(M=m, N=n)
    value, trail = follow(program, x, y, SHADOWS)
    assert (value_of(value), trail) == follow(program, m, n, PLAIN)
    needed = made.needed_guards()
    for a, b in [(m, n), *others]:
        dims = {"M": a, "N": b}
        holds = all(g.holds(dims) for g in made.guards)
        assert all(g.holds(dims) for g in needed) == holds, "a guard that was dropped did not follow from the others"
        if holds:
            assert (evaluate(expr_of(value), dims), trail) == follow(program, a, b, PLAIN)
