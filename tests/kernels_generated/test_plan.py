"""LaunchPlan: what is written is read back, and nothing malformed gets past the reader."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from kernels_generated.runtime.plan import (
    Argument,
    ArrayParameter,
    Fill,
    Guard,
    Launch,
    LaunchPlan,
    PlanError,
    ScalarParameter,
    View,
    from_data,
    loads,
)

DIGEST = "0" * 63 + "a"
PLAN = LaunchPlan(
    task="t",
    policy="general",
    dims=("M", "N", "num_sms"),
    arguments=(
        Argument("x", "input", "bf16", ("M", "N")),
        Argument("y", "output", "bf16", ("M", "N")),
        Argument("w0", "workspace", "f32", (("cdiv", "M", 64),)),
    ),
    views=(
        View("x", "bf16", 0, ("M", "N"), ("N", 1)),
        View("y", "bf16", 0, ("N", "M"), (1, "N")),
        View("w0", "f32", 0, (("cdiv", "M", 64),), (1,)),
    ),
    steps=(
        Fill("w0", 0),
        Launch(
            DIGEST,
            "k",
            (("min", "num_sms", ("cdiv", "M", 64)), 1, 1),
            (
                ArrayParameter(0),
                ArrayParameter(1, "i64", (1,)),
                ArrayParameter(2),
                ScalarParameter("i32", ("*", "M", "N")),
                ScalarParameter("f32", 0.125),
                ScalarParameter("f32", -math.inf),
                ScalarParameter("bool", True),
            ),
        ),
    ),
    guards=(Guard("==", ("mod", "N", 8), 0), Guard(">", ("fdiv", 8, "N"), 0)),
)


def test_a_plan_comes_back_from_its_text() -> None:
    assert loads(PLAN.dumps()) == PLAN
    assert PLAN.kernels == (DIGEST,)


def test_guards_are_evaluated_in_order_and_stop_at_the_first_false_one() -> None:
    assert PLAN.applies({"M": 3, "N": 8})
    assert str(PLAN.failing_guard({"M": 3, "N": 16})) == "8//N > 0"
    assert str(PLAN.failing_guard({"M": 3, "N": 7})) == "N%8 == 0"
    assert not PLAN.applies({"M": 3})  # a missing dimension is no match, not a crash


def damaged() -> list[tuple[str, Any]]:
    def edit(*path: Any, value: Any) -> Any:
        data = copy.deepcopy(PLAN.to_json())
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return data

    return [
        ("version", edit("version", value=2)),
        ("policy", edit("policy", value="wild")),
        ("extra key", edit("surprise", value=1)),
        ("role", edit("arguments", 0, "role", value="root")),
        ("dtype", edit("arguments", 0, "dtype", value="f7")),
        ("twice", edit("arguments", 1, "name", value="x")),
        ("unknown dimension", edit("arguments", 0, "shape", value=["Q"])),
        ("view of nothing", edit("views", 0, "argument", value="q")),
        ("rank", edit("views", 0, "strides", value=[1])),
        ("fill of an input", edit("steps", 0, "fill", value="x")),
        ("fill value", edit("steps", 0, "value", value="0")),
        ("fill with a NaN", edit("steps", 0, "value", value=float("nan"))),
        ("fill with an infinity", edit("steps", 0, "value", value=float("-inf"))),
        ("fill that no dtype holds", edit("steps", 0, "value", value=10**400)),
        ("hash", edit("steps", 1, "launch", value="../../etc/passwd")),
        ("symbol", edit("steps", 1, "symbol", value="a b")),
        ("grid", edit("steps", 1, "grid", value=[1, 1])),
        ("view index", edit("steps", 1, "parameters", 0, value={"view": 9, "index": "i32"})),
        ("strides", edit("steps", 1, "parameters", 1, "constant_strides", value=[2])),
        ("no list of strides", edit("steps", 1, "parameters", 1, "constant_strides", value=1)),
        ("scalar", edit("steps", 1, "parameters", 3, value={"scalar": 1.5, "dtype": "i32"})),
        ("float", edit("steps", 1, "parameters", 4, value={"scalar": "1", "dtype": "f32"})),
        ("bool", edit("steps", 1, "parameters", 6, value={"scalar": 1, "dtype": "bool"})),
        ("comparison", edit("guards", 0, value=["=>", 1, 2])),
        ("too many", edit("guards", value=[["==", 1, 1]] * 5000)),
        ("no record", [1, 2]),
    ]


@pytest.mark.parametrize(("what", "data"), damaged(), ids=[name for name, _ in damaged()])
def test_a_damaged_plan_is_refused_with_its_place(what: str, data: Any) -> None:
    with pytest.raises(PlanError, match="plan"):
        from_data(data)


def test_text_that_is_no_json_is_refused() -> None:
    for text in ("{", "[" * 100_000, json.dumps("plan")):
        with pytest.raises(PlanError):
            loads(text)
