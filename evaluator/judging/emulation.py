"""A launch plan on the emulator: sizes in, buffers changed in place, findings out.

The plan came from a candidate, so nothing it says is believed: it must be launchable
(:mod:`kernels_generated.runtime.bound`), grids and workspaces are bounded, and array arguments of one launch must not
overlap where one of them may be written.  Each buffer is a storage of exactly its size; the emulator
gives every storage an address window of its own, so an access beyond it is seen and reaches no other memory: these
windows are the guard zones.

Values are the judge's business; so is what a finding means for a verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from evaluator.tileir import ArgumentError, PassedArray, Program, Sanitizer, Unsupported, run, shared_byte
from kernels_generated.runtime.bound import Array, BoundLaunch, BoundPlan, Unlaunchable, bind, check
from kernels_generated.runtime.expr import ExprError
from kernels_generated.runtime.plan import Fill, LaunchPlan
from knowledge_base.records import Finding, Status

from .cover import text
from .inputs import torch_dtype
from .rejection import reject

MAX_WORKSPACE_BYTES = 2**30  # all workspaces of a plan together, at the judge's small sizes
MAX_BLOCKS = 2**20  # of one launch at the judge's sizes: they need thousands, and a million takes minutes


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
    kind = torch_dtype(dtype)
    if kind == torch.bool:
        return torch.full(shape, value > 0, dtype=kind)
    if dtype.startswith("u"):
        value = abs(value)
    # a conversion, as torch.full knows no eight-bit floats
    return torch.full(shape, value, dtype=torch.float64).to(kind)


def emulate(
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
    bound = _bound(plan, sizes)
    _check_shapes(bound, buffers, sizes)
    memory = dict(buffers) | _workspaces(bound, sizes, poison.workspace)
    index = 0
    for step in bound.steps:
        if isinstance(step, Fill):
            _fill(memory[step.argument], step.value)
            continue
        _check_launch(step, bound, sizes, index)
        findings += _launch(programs[step.kernel], step, memory, poison, watcher, deadline, index)
        index += 1
    return tuple(findings)


def _bound(plan: LaunchPlan, sizes: Mapping[str, int]) -> BoundPlan:
    """The plan as numbers.  Raises Rejected where it has none, or where no machine should launch it."""
    try:
        bound = bind(plan, sizes)
        check(bound)
    except ExprError as error:
        raise reject(Status.INVALID, "plan-expression", f"the plan: {error}") from None
    except Unlaunchable as error:
        status = Status.UNSAFE if error.error_class == "view-outside" else Status.INVALID
        raise reject(status, error.error_class, f"{error} at {text(sizes)}") from None
    return bound


def _launch(
    program: Program,
    launch: BoundLaunch,
    memory: Mapping[str, torch.Tensor],
    poison: Poison,
    sanitizer: Any,
    deadline: float | None,
    index: int,
) -> list[Finding]:
    if deadline is not None and time.monotonic() > deadline:
        raise reject(Status.TIMEOUT, "too-slow", f"the time allowed was over before launch {index}")
    try:
        report = run(
            program,
            launch.grid,
            launch.arguments,
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
        failure = report.asserts[0]
        said = f": {failure.message}" if failure.message else ""
        message = f"launch {index}: an assertion of the kernel failed in block {failure.block}{said}"
        line = failure.location.line if failure.location is not None else None
        raise reject(Status.CRASH, "device-assert", message, line=line)
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
    return Sanitizer()


def _quiet(text: str) -> None:
    """What a kernel prints is no part of a verdict."""


# ---------------------------------------------------------------------------------------------------- memory


def _workspaces(bound: BoundPlan, sizes: Mapping[str, int], poison: float) -> dict[str, torch.Tensor]:
    mine = [buffer for buffer in bound.buffers if buffer.internal]
    total = sum(buffer.nbytes for buffer in mine)
    if total > MAX_WORKSPACE_BYTES:
        limit = MAX_WORKSPACE_BYTES / 2**30
        message = f"workspaces of {total / 2**30:.1f} GiB at {text(sizes)}: more than {limit:.0f} GiB"
        raise reject(Status.INVALID, "workspace-size", message)
    return {buffer.name: poisoned(buffer.shape, buffer.dtype, poison) for buffer in mine}


def _check_shapes(bound: BoundPlan, given: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    for buffer in bound.buffers:
        have = tuple(given[buffer.name].shape) if buffer.name in given else None
        if not buffer.internal and have != buffer.shape:
            has = "no such buffer" if have is None else have
            message = f"the plan takes {buffer.name} as {buffer.shape}, the task has {has} at {text(sizes)}"
            raise reject(Status.INVALID, "plan-arguments", message)


def _fill(tensor: torch.Tensor, value: float | int) -> None:
    tensor.copy_(torch.full((), value, dtype=torch.float64).to(tensor.dtype))


# ---------------------------------------------------------------------------------------------------- aliasing


def _check_launch(launch: BoundLaunch, bound: BoundPlan, sizes: Mapping[str, int], index: int) -> None:
    """At most MAX_BLOCKS blocks.  Two array arguments may share elements only where neither can be written."""
    if math.prod(launch.grid) > MAX_BLOCKS:
        message = f"launch {index}: {math.prod(launch.grid)} blocks at {text(sizes)}, more than {MAX_BLOCKS}"
        raise reject(Status.TIMEOUT, "too-many-blocks", message)
    read_only = {buffer.name for buffer in bound.buffers if buffer.role in ("input", "weight")}
    arrays = [(i, a) for i, a in enumerate(launch.arguments) if isinstance(a, Array) and a.nbytes]
    for number, (first, a) in enumerate(arrays):
        for second, b in arrays[number + 1 :]:
            if a.buffer != b.buffer or a.buffer in read_only:
                continue
            shared = shared_byte(_passed(a), _passed(b))
            if shared is None:
                continue
            message = (
                f"launch {index}: array arguments {first} and {second} overlap in {a.buffer} (byte {shared}); "
                "the compiler assumes that arrays do not"
            )
            element = shared // a.itemsize
            finding = Finding(kind="aliasing", message=message, launch=index, buffer=a.buffer, element=element)
            raise reject(Status.UNSAFE, "aliasing", message, findings=(finding,))


def _passed(array: Array) -> PassedArray:
    """The array, addressed from the start of its buffer."""
    start = array.offset * array.itemsize
    return PassedArray(array.buffer, None, start, array.shape, array.strides, array.itemsize)
