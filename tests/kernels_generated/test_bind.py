"""A plan at sizes: the numbers that a kernel is launched with, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernels_generated.runtime.bound import Array, BoundLaunch, Buffer, Scalar, Unlaunchable, bind, check
from kernels_generated.runtime.expr import ExprError
from kernels_generated.runtime.plan import (
    MAX_GRID,
    Argument,
    ArrayParameter,
    Fill,
    Launch,
    LaunchPlan,
    ScalarParameter,
    View,
)

KERNEL = "0" * 63 + "a"
PLAN = LaunchPlan(
    task="t",
    policy="general",
    dims=("M", "N", "num_sms"),
    arguments=(
        Argument("x", "input", "bf16", ("M", "N")),
        Argument("y", "output", "f32", ("M",)),
        Argument("w", "packed", "f32", (("cdiv", "M", 64),)),
    ),
    views=(
        View("x", "bf16", "N", (("-", "M", 1), "N"), ("N", 1)),
        View("w", "f32", 0, (("cdiv", "M", 64),), (1,)),
        View("y", "f32", 0, (), ()),
    ),
    steps=(
        Fill("w", 0),
        Launch(
            KERNEL,
            "k",
            (("min", "num_sms", ("cdiv", "M", 64)), "N", 1),
            (
                ArrayParameter(0, "i64"),
                ScalarParameter("i32", ("*", "M", "N")),
                ArrayParameter(1),
                ArrayParameter(2),
                ScalarParameter("f32", -math.inf),
                ScalarParameter("bool", True),
            ),
        ),
    ),
    guards=(),
)
SIZES = {"M": 65, "N": 3, "num_sms": 132}


def changed(plan: LaunchPlan = PLAN, **launch: object) -> LaunchPlan:
    """The plan with another launch."""
    fill, old = plan.steps
    assert isinstance(old, Launch)
    return replace(plan, steps=(fill, replace(old, **launch)))  # type: ignore[arg-type]


def test_a_plan_at_sizes_is_numbers_in_the_order_of_the_kernels_parameters() -> None:
    bound = bind(PLAN, SIZES)
    check(bound)
    assert bound.buffers == (
        Buffer("x", "input", "bf16", (65, 3)),
        Buffer("y", "output", "f32", (65,)),
        Buffer("w", "packed", "f32", (2,)),
    )
    assert [(b.nbytes, b.internal) for b in bound.buffers] == [(390, False), (260, False), (8, True)]
    assert bound.steps[0] == Fill("w", 0)
    (launch,) = bound.launches
    x, w, y = (
        Array("x", "bf16", 3, (64, 3), (3, 1), "i64"),
        Array("w", "f32", 0, (2,), (1,)),
        Array("y", "f32", 0, (), ()),
    )
    scalars = Scalar("i32", 195), Scalar("f32", -math.inf), Scalar("bool", True)
    assert launch == BoundLaunch(KERNEL, "k", (2, 3, 1), (x, scalars[0], w, y, *scalars[1:]))
    assert launch.words == (x, 64, 3, 3, 1, 195, w, 2, 1, y, -math.inf, True)


def test_an_arrays_end_and_bytes() -> None:
    assert (Array("x", "bf16", 3, (64, 3), (3, 1)).end, Array("x", "bf16", 3, (64, 3), (3, 1)).nbytes) == (390, 384)
    assert (Array("x", "f32", 5, (), ()).end, Array("x", "f32", 5, (0, 4), (4, 1)).end) == (24, 0)
    assert Array("x", "f32", 0, (4, 2), (0, 1)).end == 8  # a row shown four times


def test_sizes_at_which_the_plan_has_no_value_are_an_expression_error() -> None:
    with pytest.raises(ExprError):
        bind(PLAN, {"M": 65, "N": 3})
    with pytest.raises(ExprError):
        bind(changed(grid=(("fdiv", 1, ("-", "N", 3)), 1, 1)), SIZES)


@pytest.mark.parametrize(
    ("plan", "error_class", "says"),
    [
        (changed(grid=(0, 1, 1)), "grid-range", r"launch 0: the grid is \(0, 1, 1\)"),
        (changed(grid=(MAX_GRID[0] + 1, 1, 1)), "grid-range", "the grid"),
        (changed(grid=(1, MAX_GRID[1] + 1, 1)), "grid-range", "the grid"),
        (changed(grid=(1, 1, MAX_GRID[2] + 1)), "grid-range", "the grid"),
        (changed(parameters=(ScalarParameter("i32", 2**31),)), "index-range", "scalar 2147483648 does not fit i32"),
        (changed(parameters=(ScalarParameter("i32", -(2**31) - 1),)), "index-range", "does not fit i32"),
        (changed(parameters=(ScalarParameter("i64", 2**63),)), "index-range", "does not fit i64"),
        (
            replace(PLAN, arguments=(*PLAN.arguments[:2], Argument("w", "workspace", "f32", (-1,)))),
            "workspace-size",
            "-1",
        ),
        (replace(PLAN, views=(View("x", "bf16", -1, (1,), (1,)), *PLAN.views[1:])), "view-outside", "is negative"),
        (replace(PLAN, views=(View("x", "bf16", 9, (2,), (-1,)), *PLAN.views[1:])), "view-outside", "is negative"),
        (
            replace(PLAN, views=(View("x", "f32", 0, ("M", "N"), ("N", 1)), *PLAN.views[1:])),
            "view-outside",
            "ends 390 bytes behind",
        ),
        (
            replace(PLAN, views=(PLAN.views[0], View("w", "f32", 0, (2**31,), (0,)), PLAN.views[2])),
            "index-range",
            "i32",
        ),
    ],
)
def test_what_no_machine_should_launch_is_refused(plan: LaunchPlan, error_class: str, says: str) -> None:
    with pytest.raises(Unlaunchable, match=says) as refused:
        check(bind(plan, SIZES))
    assert refused.value.error_class == error_class


def test_indices_at_the_edge_of_their_type_are_passed() -> None:
    edge = (ScalarParameter("i32", 2**31 - 1), ScalarParameter("i32", -(2**31)), ScalarParameter("i64", 2**63 - 1))
    check(bind(changed(parameters=edge), SIZES))
    wide = replace(PLAN, views=(PLAN.views[0], View("w", "f32", 0, (2**31,), (0,)), PLAN.views[2]))
    check(bind(changed(wide, parameters=(ArrayParameter(1, "i64"),)), SIZES))
