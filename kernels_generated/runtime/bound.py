"""A launch plan at sizes: its buffers, grids and arguments as numbers.

:func:`bind` evaluates and believes nothing; :func:`check` says what would keep a machine from launching it.  Whoever
runs, times or compares a plan reads these numbers and no expressions.  Standard library only, like the plan's module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .expr import Dims, evaluate
from .plan import DTYPE_BITS, MAX_GRID, ArrayParameter, Fill, Launch, LaunchPlan, Parameter, reached_by

INDEX_RANGES = {"i32": 2**31, "i64": 2**63}  # an index of the type is below this, and not below its negative


class Unlaunchable(ValueError):
    """A plan that no machine should run at these sizes.

    error_class: ``workspace-size`` | ``grid-range`` | ``view-outside`` | ``index-range``; from the launcher also
    ``kernel-arguments`` | ``fill-range``.
    """

    def __init__(self, error_class: str, message: str) -> None:
        super().__init__(message)
        self.error_class = error_class


@dataclass(frozen=True)
class Buffer:
    """An argument of the plan: contiguous, row-major, ``shape`` in elements of ``dtype``."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8

    @property
    def internal(self) -> bool:
        """Whether whoever runs the plan makes it: its caller has no such tensor."""
        return self.role in ("workspace", "packed")


@dataclass(frozen=True)
class Array:
    """An array argument of a launch: a window on the buffer of that name.

    ``offset`` and ``strides`` count elements of ``dtype``, ``offset`` from the buffer's first byte.  The kernel gets an
    address, the sizes and the strides, these of type ``index``: i32 or i64.
    """

    buffer: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    index: str = "i32"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPE_BITS[self.dtype] // 8

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, each counted as often as the array shows it."""
        return math.prod(self.shape) * self.itemsize

    @property
    def end(self) -> int:
        """The byte of the buffer behind its last element; 0 where it has no element."""
        if not self.nbytes:
            return 0
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize

    def __str__(self) -> str:
        return f"the view of {self.buffer} {self.shape} with strides {self.strides} at offset {self.offset}"


@dataclass(frozen=True)
class Scalar:
    """A scalar argument of a launch; ``dtype`` is bool, i32, i64, f32 or f64."""

    dtype: str
    value: int | float | bool


@dataclass(frozen=True)
class BoundLaunch:
    """A launch: ``kernel`` is the SHA-256 of its bytecode, ``arguments`` are in the order of its parameters."""

    kernel: str
    symbol: str
    grid: tuple[int, int, int]
    arguments: tuple[Array | Scalar, ...]

    @property
    def words(self) -> tuple[int | float | bool | Array, ...]:
        """What the kernel is passed: an array is its address (the array stands for it), its sizes, its strides."""
        out: list[int | float | bool | Array] = []
        for argument in self.arguments:
            out += (argument, *argument.shape, *argument.strides) if isinstance(argument, Array) else (argument.value,)
        return tuple(out)


@dataclass(frozen=True)
class BoundPlan:
    """What is to be done at these sizes, in order; a Fill sets every element of a workspace.

    packing: how many of the steps, from the first one on, prepare weights (:mod:`.plan`).
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Fill | BoundLaunch, ...]
    packing: int = 0

    @property
    def launches(self) -> tuple[BoundLaunch, ...]:
        return tuple(step for step in self.steps if isinstance(step, BoundLaunch))

    @property
    def parts(self) -> tuple[BoundPlan, BoundPlan]:
        """What prepares weights, and what is done with them, as plans of their own with the buffers that they need.

        The first has no steps where nothing is prepared.  Where the second is run, what is packed is there already.
        """
        first, rest = self.steps[: self.packing], self.steps[self.packing :]
        early, late = _reached(first), _reached(rest)
        return (
            BoundPlan(tuple(b for b in self.buffers if b.name in early), first),
            BoundPlan(tuple(b for b in self.buffers if b.name in late or not b.internal), rest),
        )

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)


def bind(plan: LaunchPlan, dims: Dims) -> BoundPlan:
    """``plan`` at ``dims``: the task's, and num_sms where the plan uses it.  Raises ExprError where it has no value."""

    def array(parameter: ArrayParameter) -> Array:
        view = plan.views[parameter.view]
        shape, strides = (tuple(evaluate(e, dims) for e in exprs) for exprs in (view.shape, view.strides))
        return Array(view.argument, view.dtype, evaluate(view.offset, dims), shape, strides, parameter.index)

    def argument(parameter: Parameter) -> Array | Scalar:
        if isinstance(parameter, ArrayParameter):
            return array(parameter)
        value = parameter.value
        if parameter.dtype in INDEX_RANGES:
            value = evaluate(value, dims)  # type: ignore[arg-type]  # an integer scalar is an expression
        return Scalar(parameter.dtype, value)  # type: ignore[arg-type]

    def step(one: Fill | Launch) -> Fill | BoundLaunch:
        if isinstance(one, Fill):
            return one
        x, y, z = (evaluate(g, dims) for g in one.grid)
        return BoundLaunch(one.kernel, one.symbol, (x, y, z), tuple(argument(p) for p in one.parameters))

    buffers = (Buffer(a.name, a.role, a.dtype, tuple(evaluate(s, dims) for s in a.shape)) for a in plan.arguments)
    return BoundPlan(tuple(buffers), tuple(step(s) for s in plan.steps), plan.packing)


def bind_packing(plan: LaunchPlan, dims: Dims) -> BoundPlan:
    """The first of the bound plan's :attr:`~BoundPlan.parts`; ``dims`` need no others than the weights have.

    Raises ExprError where it has no value.
    """
    steps = plan.steps[: plan.packing]
    reached = {name for step in steps for name in reached_by(plan, step)}
    arguments = tuple(a for a in plan.arguments if a.name in reached)
    return bind(replace(plan, arguments=arguments, steps=steps, packing=0), dims)


def _reached(steps: Iterable[Fill | BoundLaunch]) -> set[str]:
    """The names of the buffers that steps reach."""
    found: set[str] = set()
    for step in steps:
        arrays = () if isinstance(step, Fill) else (a for a in step.arguments if isinstance(a, Array))
        found |= {step.argument} if isinstance(step, Fill) else {array.buffer for array in arrays}
    return found


def check(bound: BoundPlan) -> None:
    """Raises Unlaunchable for the first fault: a size below zero, an empty or too large grid, a view beyond its buffer,
    an index that its type does not hold."""
    for buffer in bound.buffers:
        if any(n < 0 for n in buffer.shape):
            raise Unlaunchable("workspace-size", f"{buffer.role} {buffer.name} has the shape {buffer.shape}")
    sizes = {buffer.name: buffer.nbytes for buffer in bound.buffers}
    for number, launch in enumerate(bound.launches):
        if not all(1 <= g <= most for g, most in zip(launch.grid, MAX_GRID, strict=True)):
            raise Unlaunchable("grid-range", f"launch {number}: the grid is {launch.grid}")
        for argument in launch.arguments:
            if isinstance(argument, Array):
                _check_array(argument, sizes[argument.buffer], number)
            elif argument.dtype in INDEX_RANGES and not _fits(int(argument.value), argument.dtype):
                said = f"launch {number}: scalar {argument.value} does not fit {argument.dtype}"
                raise Unlaunchable("index-range", said)


def _check_array(array: Array, buffer_bytes: int, launch: int) -> None:
    where = f"launch {launch}: {array}"
    if array.offset < 0 or any(n < 0 for n in (*array.shape, *array.strides)):
        raise Unlaunchable("view-outside", f"{where} is negative")
    if array.end > buffer_bytes:
        raise Unlaunchable("view-outside", f"{where} ends {array.end - buffer_bytes} bytes behind the argument")
    if not all(_fits(n, array.index) for n in (*array.shape, *array.strides)):
        raise Unlaunchable("index-range", f"{where} does not fit {array.index}")


def _fits(value: int, dtype: str) -> bool:
    return -INDEX_RANGES[dtype] <= value < INDEX_RANGES[dtype]
