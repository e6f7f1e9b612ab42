"""A launch plan on the emulator: sizes in, buffers changed in place, findings out.

The plan came from a candidate, so nothing it says is believed: expressions are evaluated by the plan language's own
interpreter, every view must lie inside its argument, grids and workspaces are bounded, and array arguments of one
launch must not overlap where one of them may be written.  Each buffer is a storage of exactly its size; the emulator
gives every storage an address window of its own, so an access beyond it is seen and reaches no other memory: these
windows are the guard zones.

Values are the judge's business; so is what a finding means for a verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluator.cover import text
from evaluator.inputs import torch_dtype
from evaluator.rejection import reject
from kernels_generated.runtime.expr import ExprError, evaluate
from kernels_generated.runtime.plan import (
    DTYPE_BITS,
    MAX_GRID,
    ArrayParameter,
    Fill,
    Launch,
    LaunchPlan,
    View,
)
from knowledge_base.records import Finding, Status

if TYPE_CHECKING:
    import torch

    from evaluator.tileir import Array, Program, Scalar

MAX_WORKSPACE_BYTES = 2**30  # all workspaces of a plan together, at the judge's small sizes
MAX_BLOCKS = 2**20  # of one launch at the judge's sizes: they need thousands, and a million takes minutes
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Poison:
    """What memory holds that nobody has written: outputs, workspaces, and padding that a load leaves undetermined.

    Finite and different from run to run; finite because honest attention kernels multiply padding by zero.
    """

    padding: float = 5.0
    workspace: float = 5.0
    output: float = 5.0


# 5 and -48 are exact in every float dtype down to f8e4m3, far apart, and their squares and exponentials are finite.
POISON_A = Poison(5.0, 5.0, 5.0)
POISON_B = Poison(-48.0, -48.0, -48.0)


def poisoned(shape: tuple[int, ...], dtype: str, value: float) -> torch.Tensor:
    """A fresh tensor whose every element is the poison (bool: its sign; integers: the nearest they can hold)."""
    import torch

    kind = torch_dtype(dtype)
    if kind == torch.bool:
        return torch.full(shape, value > 0, dtype=kind)
    if dtype.startswith("u"):
        value = abs(value)
    # a conversion, as torch.full knows no eight-bit floats
    return torch.full(shape, value, dtype=torch.float64).to(kind)


def execute(
    plan: LaunchPlan,
    programs: Mapping[str, Program],
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    *,
    poison: Poison = POISON_A,
    sanitize: bool = True,
    deadline: float | None = None,
) -> tuple[Finding, ...]:
    """Runs every step of ``plan`` at ``sizes`` (which include num_sms where the plan uses it).

    ``programs``: by kernel hash.  ``buffers``: every argument but the workspaces, contiguous, in its dtype and shape;
    outputs change in place.  ``deadline`` is a ``time.monotonic()`` value.  Returns what the sanitizer found.  Raises
    Rejected where the plan is refused or a launch is stopped; the buffers are then half done.
    """
    findings: list[Finding] = []
    watcher = _sanitizer() if sanitize else None  # one for all launches: buffers keep their addresses
    try:
        memory = dict(buffers) | _workspaces(plan, sizes, poison.workspace)
        _check_shapes(plan, memory, sizes)
        index = 0
        for step in plan.steps:
            if isinstance(step, Fill):
                _fill(memory[step.argument], step.value)
                continue
            grid, arguments = bind(plan, step, memory, sizes, index)
            findings += _launch(programs[step.kernel], grid, arguments, memory, poison, watcher, deadline, index)
            index += 1
    except ExprError as error:
        raise reject(Status.INVALID, "plan-expression", f"the plan: {error}") from None
    return tuple(findings)


def _launch(
    program: Program,
    grid: tuple[int, int, int],
    arguments: list[Array | Scalar],
    memory: Mapping[str, torch.Tensor],
    poison: Poison,
    sanitizer: Any,
    deadline: float | None,
    index: int,
) -> list[Finding]:
    from evaluator.tileir import ArgumentError, Unsupported, run

    if deadline is not None and time.monotonic() > deadline:
        raise reject(Status.TIMEOUT, "too-slow", f"the time allowed was over before launch {index}")
    try:
        report = run(
            program,
            grid,
            arguments,
            buffers=memory,
            sanitizer=sanitizer,
            padding_fill=poison.padding,
            deadline=deadline,
            write=_quiet,
        )
    except ArgumentError as error:
        raise reject(Status.INVALID, "kernel-arguments", f"launch {index}: {error}") from None
    except Unsupported as error:
        message = f"launch {index}: {error}"
        raise reject(Status.UNSUPPORTED, error.error_class, message, line=error.line) from None
    if report.asserts:
        message = f"launch {index}: an assertion of the kernel failed: {report.asserts[0]}"
        raise reject(Status.CRASH, "device-assert", message)
    if report.limit is not None:
        line = getattr(report.limit.location, "line", None)
        error_class = "endless-loop" if report.limit.in_loop else "too-slow"
        raise reject(Status.TIMEOUT, error_class, f"launch {index}: {report.limit.message}", line=line)
    return [_record(found, index) for found in report.findings]


def _record(found: Any, launch: int) -> Finding:
    """The sanitizer's finding as the record that everybody shares."""
    return Finding(
        kind=found.kind,
        message=found.message,
        launch=launch,
        block=found.block,
        op=found.op,
        line=found.line or None,
        element=found.element,
        buffer=found.buffer,
    )


def _sanitizer() -> Any:
    from evaluator.tileir.sanitizer import Sanitizer

    return Sanitizer()


def _quiet(text: str) -> None:
    """What a kernel prints is no part of a verdict."""


# ---------------------------------------------------------------------------------------------------- memory


def _workspaces(plan: LaunchPlan, sizes: Mapping[str, int], poison: float) -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    total = 0
    for argument in plan.arguments:
        if argument.role not in ("workspace", "packed"):
            continue
        shape = tuple(evaluate(s, sizes) for s in argument.shape)
        if any(s < 0 for s in shape):
            raise reject(Status.INVALID, "workspace-size", f"workspace {argument.name} has the shape {shape}")
        total += argument.nbytes(sizes)
        if total > MAX_WORKSPACE_BYTES:
            limit = MAX_WORKSPACE_BYTES / 2**30
            message = f"workspaces of {total / 2**30:.1f} GiB at {text(sizes)}: more than {limit:.0f} GiB"
            raise reject(Status.INVALID, "workspace-size", message)
        out[argument.name] = poisoned(shape, argument.dtype, poison)
    return out


def _check_shapes(plan: LaunchPlan, memory: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    for argument in plan.arguments:
        shape = tuple(evaluate(s, sizes) for s in argument.shape)
        if argument.name not in memory or tuple(memory[argument.name].shape) != shape:
            has = tuple(memory[argument.name].shape) if argument.name in memory else "no such buffer"
            message = f"the plan takes {argument.name} as {shape}, the task has {has} at {text(sizes)}"
            raise reject(Status.INVALID, "plan-arguments", message)


def _fill(tensor: torch.Tensor, value: float | int) -> None:
    import torch

    tensor.copy_(torch.full((), value, dtype=torch.float64).to(tensor.dtype))


def bind(
    plan: LaunchPlan, launch: Launch, memory: Mapping[str, torch.Tensor], sizes: Mapping[str, int], index: int
) -> tuple[tuple[int, int, int], list[Array | Scalar]]:
    """The grid and the arguments of one launch as numbers, checked."""
    from evaluator.tileir import Scalar

    x, y, z = (evaluate(g, sizes) for g in launch.grid)
    grid = (x, y, z)
    if not all(1 <= g <= MAX_GRID for g in grid):
        raise reject(Status.INVALID, "grid-range", f"launch {index}: the grid {grid} at {text(sizes)}")
    if math.prod(grid) > MAX_BLOCKS:
        message = f"launch {index}: {math.prod(grid)} blocks at {text(sizes)}, more than {MAX_BLOCKS}"
        raise reject(Status.TIMEOUT, "too-many-blocks", message)
    arguments: list[Array | Scalar] = []
    arrays: list[tuple[int, Array]] = []
    for position, parameter in enumerate(launch.parameters):
        if isinstance(parameter, ArrayParameter):
            array = _array(plan, plan.views[parameter.view], parameter.index, memory, sizes, index)
            arrays.append((position, array))
            arguments.append(array)
        elif parameter.dtype in ("i32", "i64"):
            value = evaluate(parameter.value, sizes)  # type: ignore[arg-type]
            if not -(INT32_MAX + 1) <= value <= INT32_MAX and parameter.dtype == "i32":
                raise reject(Status.INVALID, "index-range", f"launch {index}: scalar {value} does not fit int32")
            arguments.append(Scalar(parameter.dtype, value))
        else:
            arguments.append(Scalar(parameter.dtype, parameter.value))  # type: ignore[arg-type]
    _check_overlap(plan, arrays, memory, index)
    return grid, arguments


def _array(
    plan: LaunchPlan,
    view: View,
    index_type: str,
    memory: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    launch: int,
) -> Array:
    """A view as numbers.  Its elements must lie inside its argument, aligned to its dtype."""
    from evaluator.tileir import Array

    shape = tuple(evaluate(s, sizes) for s in view.shape)
    strides = tuple(evaluate(s, sizes) for s in view.strides)
    offset = evaluate(view.offset, sizes)
    size = DTYPE_BITS[view.dtype] // 8
    have = memory[view.argument].numel() * memory[view.argument].element_size()
    where = f"launch {launch}: the view of {view.argument} {shape} with strides {strides} at offset {offset}"
    if offset < 0 or any(s < 0 for s in shape) or any(s < 0 for s in strides):
        raise reject(Status.UNSAFE, "view-outside", f"{where} is negative")
    reach = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1 if math.prod(shape) else 0
    if reach * size > have:
        raise reject(Status.UNSAFE, "view-outside", f"{where} ends {reach * size - have} bytes behind the argument")
    if index_type == "i32" and any(n > INT32_MAX for n in (*shape, *strides)):
        raise reject(Status.INVALID, "index-range", f"{where} does not fit int32")
    return Array(view.argument, view.dtype, offset, shape, strides, index_type)


# ---------------------------------------------------------------------------------------------------- aliasing


def _check_overlap(
    plan: LaunchPlan, arrays: list[tuple[int, Array]], memory: Mapping[str, torch.Tensor], launch: int
) -> None:
    """Two array arguments of a launch may share elements only where neither can be written (inputs and weights)."""
    roles = {a.name: a.role for a in plan.arguments}
    for i, (first, a) in enumerate(arrays):
        for second, b in arrays[i + 1 :]:
            if a.buffer != b.buffer or roles[str(a.buffer)] in ("input", "weight"):
                continue
            shared = _shared_byte(a, b, memory[str(a.buffer)])
            if shared is None:
                continue
            message = (
                f"launch {launch}: array arguments {first} and {second} overlap in {a.buffer} (byte {shared}); "
                "the compiler assumes that arrays do not"
            )
            element = shared // (DTYPE_BITS[a.dtype] // 8)
            finding = Finding(kind="aliasing", message=message, launch=launch, buffer=str(a.buffer), element=element)
            raise reject(Status.UNSAFE, "aliasing", message, findings=(finding,))


def _shared_byte(a: Array, b: Array, buffer: torch.Tensor) -> int | None:
    """The first byte that elements of both arrays occupy; None if they are disjoint (interleaved views are)."""
    import torch

    if not math.prod(a.shape) or not math.prod(b.shape):
        return None
    marks = []
    for array in (a, b):
        size = DTYPE_BITS[array.dtype] // 8
        touched = torch.zeros(buffer.numel() * buffer.element_size(), dtype=torch.bool)
        strides = [s * size for s in array.strides]
        shape = [1 if s == 0 else n for n, s in zip(array.shape, array.strides, strict=True)]  # once is enough
        touched.as_strided((*shape, size), (*strides, 1), array.offset * size).fill_(True)
        marks.append(touched)
    both = marks[0] & marks[1]
    return int(torch.nonzero(both)[0]) if bool(both.any()) else None
