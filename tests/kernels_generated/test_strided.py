"""A plan on inputs that are not contiguous: which arrays move, and where that may not be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernels_generated.runtime.bound import Array, BoundPlan, bind
from kernels_generated.runtime.expr import Expr
from kernels_generated.runtime.plan import Argument, ArrayParameter, Guard, Launch, LaunchPlan, View
from kernels_generated.runtime.strided import contiguous, restrided, row_major

Shape = Sequence[Expr]
SIZES = {"A": 4, "B": 3, "C": 16}


def plan(
    view: tuple[Expr, Shape, Shape], guards: Sequence[Guard] = (), dtype: str = "f32", constant: tuple[int, ...] = ()
) -> LaunchPlan:
    """A kernel that reads one array of ``x[A, B, C]``: (offset, shape, strides) of it."""
    offset, shape, strides = view
    return LaunchPlan(
        "0", "general", ("A", "B", "C"), (Argument("x", "input", "f32", ("A", "B", "C")),),
        (View("x", dtype, offset, tuple(shape), tuple(strides)),),
        (Launch("0" * 64, "k", (1, 1, 1), (ArrayParameter(0, "i32", constant),)),), tuple(guards),
    )  # fmt: skip


def moved(view: tuple[Expr, Shape, Shape], strides: Sequence[int], **more: object) -> Array | None:
    made = plan(view, **more)  # type: ignore[arg-type]
    found = restrided(made, bind(made, SIZES), "x", strides)
    if found is None:
        return None
    assert isinstance(found, BoundPlan)
    assert found.buffer("x").shape == (1 + 3 * strides[0] + 2 * strides[1] + 15 * strides[2],)
    (argument,) = found.launches[0].arguments
    assert isinstance(argument, Array)
    return argument


WHOLE = (0, ("A", "B", "C"), (("*", "B", "C"), "C", 1))
GAPS = (80, 20, 1)  # of rows of 16, and of 3 rows


@pytest.mark.parametrize(
    ("view", "strides", "offset", "expected"),
    [
        (WHOLE, GAPS, 0, (80, 20, 1)),
        (WHOLE, (16, 64, 1), 0, (16, 64, 1)),  # axes in another order
        ((16, ("A", "C"), (48, 1)), GAPS, 20, (80, 1)),  # x[:, 1]
        ((52, ("B", 8), (16, 1)), GAPS, 84, (20, 1)),  # x[1, :, 4:12]
        ((0, ("C", "A"), (1, 48)), GAPS, 0, (1, 80)),  # x[:, 0].T
        ((0, (12, "C"), (16, 1)), (60, 20, 1), 0, (20, 1)),  # two axes as one, where they lie as one
        ((0, (1, "C"), (7, 1)), GAPS, 0, (16, 1)),  # the stride of an axis of one element says nothing
        ((0, ("A", 1, "C"), (48, 16, 1)), GAPS, 0, (80, 320, 1)),  # and reaches beyond the others
        ((0, ("C", 1), (1, 1)), GAPS, 0, (1, 1)),
    ],
)
def test_an_array_along_the_axes_of_its_buffer_moves(
    view: tuple[Expr, Shape, Shape], strides: Sequence[int], offset: int, expected: Sequence[int]
) -> None:
    found = moved(view, strides)
    assert found is not None
    assert (found.offset, found.strides) == (offset, tuple(expected))


REFUSED = {
    "two axes as one that do not lie so": ((0, (12, "C"), (16, 1)), GAPS),
    "all of it as one axis": ((0, (192,), (1,)), GAPS),
    "every other row": ((0, (2, "B", "C"), (96, 16, 1)), GAPS),
    "an axis twice": ((0, ("C", "C"), (1, 1)), GAPS),
    "a window over the edge of a row": ((12, ("A", 8), (48, 1)), GAPS),
    "a last axis with gaps": (WHOLE, (96, 32, 2)),
    "rows that are not aligned": (WHOLE, (51, 17, 1)),
    "rows that overlap": (WHOLE, (8, 16, 1)),
    "elements that many places share": (WHOLE, (0, 16, 1)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not_be_read_in_place(case: str) -> None:
    view, strides = REFUSED[case]
    assert moved(view, strides) is None


def test_a_stride_that_is_part_of_the_kernel_stays() -> None:
    assert moved(WHOLE, GAPS, constant=(0,)) is None
    assert moved(WHOLE, (80, 16, 1), constant=(1, 2)) is not None  # these are as they were
    assert moved(WHOLE, GAPS, guards=[Guard("==", "C", 16)]) is not None  # fixes a size alone


def test_an_array_of_another_dtype_stays() -> None:
    assert moved(WHOLE, GAPS, dtype="i32") is None


def test_contiguous() -> None:
    assert row_major((4, 3, 16)) == (48, 16, 1)
    assert contiguous((4, 3, 16), (48, 16, 1))
    assert contiguous((4, 1, 16), (16, 99, 1))
    assert not contiguous((4, 3, 16), (48, 17, 1))
