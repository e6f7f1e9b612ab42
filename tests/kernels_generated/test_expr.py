"""The size language: normal form, bounds and decisions agree with plain evaluation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_generated.runtime.expr import (
    COMPARISONS,
    MAX_DEPTH,
    OPERATORS,
    Expr,
    ExprError,
    bounds,
    build,
    decide,
    evaluate,
    from_json,
    holds,
    normalise,
    show,
    substitute,
    symbols,
    to_json,
)

leaves: st.SearchStrategy[Expr] = st.one_of(st.sampled_from(["M", "N", "K"]), st.integers(-3, 130))
expressions: st.SearchStrategy[Expr] = st.recursive(
    leaves, lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner), max_leaves=12
)
dimensions = st.fixed_dictionaries({d: st.integers(1, 300) for d in "MNK"})


def value(expr: Expr, dims: dict[str, int]) -> int | None:
    try:
        return evaluate(expr, dims)
    except ExprError:
        return None


def normal(expr: Expr) -> Expr | None:
    try:
        return normalise(expr)
    except ExprError:  # a division by a constant zero has no normal form
        return None


@given(expressions, dimensions)
@settings(max_examples=600, deadline=None)
def test_normal_form_keeps_the_value_and_is_idempotent(expr: Expr, dims: dict[str, int]) -> None:
    form, expected = normal(expr), value(expr, dims)
    if form is None or expected is None:
        return
    assert evaluate(form, dims) == expected
    assert normalise(form) == form
    low, high = bounds(form)
    assert low is None or low <= expected
    assert high is None or expected <= high


@given(expressions, expressions, dimensions, st.sampled_from(COMPARISONS))
@settings(max_examples=600, deadline=None)
def test_a_decision_holds_at_every_size(left: Expr, right: Expr, dims: dict[str, int], comparison: str) -> None:
    a, b = normal(left), normal(right)
    if a is None or b is None:
        return
    x, y = value(a, dims), value(b, dims)
    decided = decide(comparison, a, b)
    if decided is not None and x is not None and y is not None:
        assert decided == holds(comparison, x, y)


@given(expressions, dimensions)
@settings(max_examples=300, deadline=None)
def test_text_is_python_and_json_comes_back(expr: Expr, dims: dict[str, int]) -> None:
    assert from_json(to_json(expr)) == expr
    expected = value(expr, dims)
    if expected is not None:
        names = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max, **dims}
        assert eval(show(expr), names) == expected


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (("fdiv", ("-", ("+", "M", 128), 1), 128), ("cdiv", "M", 128)),
        (("fdiv", ("-", ("+", "M", "N"), 1), "N"), ("cdiv", "M", "N")),
        (("-", 0, ("fdiv", ("-", 0, "M"), "N")), ("cdiv", "M", "N")),
        (("cdiv", ("*", 3, ("*", "N", "K")), "K"), ("*", 3, "N")),
        (("mod", ("+", ("*", 64, "M"), 3), 32), 3),
        (("min", "M", ("+", "M", 1)), "M"),
        (("max", 1, "M"), "M"),
    ],
)
def test_different_spellings_of_one_size_have_one_form(written: Expr, meant: Expr) -> None:
    assert normalise(written) == normalise(meant)


def test_substitution_and_symbols() -> None:
    expr = build("cdiv", build("*", "M", "N"), 64)
    assert symbols(expr) == {"M", "N"}
    assert substitute(expr, {"M": 64}) == "N"


@pytest.mark.parametrize("bad", [None, True, 1.5, "a b", "", [], ["+", 1], ["**", 2, 3], ["+", 1, None], 1 << 400])
def test_what_is_no_expression_is_refused(bad: object) -> None:
    with pytest.raises(ExprError):
        from_json(bad)


def test_a_nest_without_end_is_refused() -> None:
    deep: object = "M"
    for _ in range(MAX_DEPTH + 2):
        deep = ["+", deep, 1]
    with pytest.raises(ExprError, match="deeper"):
        from_json(deep)


def test_a_power_tower_of_products_is_refused_not_computed() -> None:
    huge: Expr = 10**70
    with pytest.raises(ExprError, match="bits"):
        evaluate(("*", huge, ("*", huge, "M")), {"M": 10**70})


def test_unknown_dimensions_and_zero_divisors_are_named() -> None:
    with pytest.raises(ExprError, match="unknown dimension 'X'"):
        evaluate(("+", "X", 1), {"M": 1})
    with pytest.raises(ExprError, match="by zero"):
        evaluate(("fdiv", 1, ("-", "M", "M")), {"M": 4})
