"""A launch plan at sizes before it runs anywhere: what is refused, and the memory that it gets.

The plan came from a candidate, so nothing it says is believed: it must be launchable
(:mod:`kernels_generated.runtime.bound`), its buffers are the task's, workspaces are bounded, and array arguments of one
launch must not overlap where one of them may be written.  What holds here holds for the emulator and for a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from evaluator.tileir import PassedArray, shared_byte
from kernels_generated.runtime.bound import Array, BoundLaunch, BoundPlan, Unlaunchable, bind, check
from kernels_generated.runtime.expr import ExprError
from kernels_generated.runtime.plan import LaunchPlan
from knowledge_base.records import Finding, Status

from .cover import text
from .inputs import torch_dtype
from .rejection import reject

MAX_WORKSPACE_BYTES = 2**30  # all workspaces of a plan together, at the judge's small sizes


@dataclass(frozen=True)
class Poison:
    """What memory holds that nobody has written: outputs, workspaces, and padding that a load leaves undetermined.

    And what else is open from run to run: what an operation gives for operands that it is undefined for, and the order
    of blocks (0: ascending; others are seeds of a shuffle).

    Finite and different from run to run; finite because honest attention kernels multiply padding by zero.
    """

    padding: float = 5.0
    workspace: float = 5.0
    output: float = 5.0
    undefined: float = 5.0
    order: int = 0


# 5 and -48 are exact in every float dtype down to f8e4m3, far apart, and their squares and exponentials are finite.
POISON_A = Poison(5.0, 5.0, 5.0, 5.0)
POISON_B = Poison(-48.0, -48.0, -48.0, -48.0, order=1)


def poisoned(shape: tuple[int, ...], dtype: str, value: float) -> torch.Tensor:
    """A fresh tensor whose every element is the poison as its dtype holds it."""
    # a copy that converts, as torch.full knows no eight-bit floats
    return torch.empty(shape, dtype=torch_dtype(dtype)).copy_(
        torch.tensor(poison_of(dtype, value), dtype=torch.float64)
    )


def poison_of(dtype: str, value: float) -> float:
    """The poison as a dtype holds it: of bool whether it is positive, of unsigned integers without its sign."""
    if dtype == "bool":
        return float(value > 0)
    return abs(value) if dtype.startswith("u") else value


def admit(
    plan: LaunchPlan,
    shapes: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    workspace_bytes: int | None = None,
) -> BoundPlan:
    """The plan as numbers at ``sizes`` (which include num_sms where the plan uses it).

    shapes: of every argument but the workspaces.  workspace_bytes: that these may have together; default
    MAX_WORKSPACE_BYTES.  Raises Rejected for a plan that is not to run.
    """
    bound = _bound(plan, sizes)
    _check_shapes(bound, shapes, sizes)
    _check_workspaces(bound, sizes, MAX_WORKSPACE_BYTES if workspace_bytes is None else workspace_bytes)
    for index, launch in enumerate(bound.launches):
        _check_aliasing(launch, bound, index)
    return bound


def workspaces(bound: BoundPlan, poison: float) -> dict[str, torch.Tensor]:
    """What the plan's caller does not have, full of the poison."""
    return {buffer.name: poisoned(buffer.shape, buffer.dtype, poison) for buffer in bound.buffers if buffer.internal}


def read_only(bound: BoundPlan, launch: int = 0) -> dict[str, str]:
    """What the plan's buffers are that the launch of that number may not write, by name: input, weight, or packed
    once the weights are prepared."""
    preparing = launch < sum(isinstance(step, BoundLaunch) for step in bound.steps[: bound.packing])
    roles = ("input", "weight") if preparing else ("input", "weight", "packed")
    return {buffer.name: buffer.role for buffer in bound.buffers if buffer.role in roles}


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


def _check_shapes(bound: BoundPlan, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]) -> None:
    for buffer in bound.buffers:
        have = shapes.get(buffer.name)
        if not buffer.internal and have != buffer.shape:
            has = "no such buffer" if have is None else have
            message = f"the plan takes {buffer.name} as {buffer.shape}, the task has {has} at {text(sizes)}"
            raise reject(Status.INVALID, "plan-arguments", message)


def _check_workspaces(bound: BoundPlan, sizes: Mapping[str, int], most: int) -> None:
    total = sum(buffer.nbytes for buffer in bound.buffers if buffer.internal)
    if total > most:
        message = f"workspaces of {total / 2**30:.1f} GiB at {text(sizes)}: more than {most / 2**30:.0f} GiB"
        raise reject(Status.INVALID, "workspace-size", message)


def _check_aliasing(launch: BoundLaunch, bound: BoundPlan, index: int) -> None:
    """Two array arguments may share elements only where neither can be written."""
    unwritable = read_only(bound, index)
    arrays = [(i, a) for i, a in enumerate(launch.arguments) if isinstance(a, Array) and a.nbytes]
    for number, (first, a) in enumerate(arrays):
        for second, b in arrays[number + 1 :]:
            if a.buffer != b.buffer or a.buffer in unwritable:
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
