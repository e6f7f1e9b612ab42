"""A plan on inputs that are not contiguous: the same launches, with the strides that the tensors have.

A plan is written for contiguous buffers.  Kernels are passed the strides of their arrays as numbers, so that an array
whose axes are axes of the buffer may as well be read where it lies.  That is done where nothing that the kernel was
compiled for depends on the strides' values; else the caller copies the tensor.  A guard that fixes a size which
strides are made of is no such thing: it fixes what is computed, not where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .bound import Array, BoundLaunch, BoundPlan
from .launch_rules import ALIGNMENT_BYTES, array_facts
from .plan import ArrayParameter, Fill, Launch, LaunchPlan


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie one behind the other; the stride of an axis of one element says nothing."""
    rows = row_major(shape)
    return all(n == 1 or mine == theirs for n, mine, theirs in zip(shape, strides, rows, strict=True))


def restrided(plan: LaunchPlan, bound: BoundPlan, buffer: str, strides: Sequence[int]) -> BoundPlan | None:
    """``bound``, which is ``plan`` at sizes, with an input that has these strides (elements, one per axis of it).

    None where the plan may not be run so: an array of it is no window along the buffer's axes, or a stride of it is a
    constant of the kernel, or alignment or overlap would not be what the kernel was compiled for.
    """
    shape = bound.buffer(buffer).shape
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    steps: list[Fill | BoundLaunch] = []
    for step, made in zip(plan.steps, bound.steps, strict=True):
        if isinstance(step, Fill) or isinstance(made, Fill):
            steps.append(made)
            continue
        arguments = list(made.arguments)
        for place, argument in enumerate(arguments):
            if isinstance(argument, Array) and argument.buffer == buffer:
                if argument.dtype != bound.buffer(buffer).dtype:
                    return None
                moved = _moved(argument, shape, strides)
                if moved is None or not _allowed(argument, moved, _constant(step, place)):
                    return None
                arguments[place] = moved
        steps.append(replace(made, arguments=tuple(arguments)))
    buffers = tuple(replace(one, shape=(span,)) if one.name == buffer else one for one in bound.buffers)
    return BoundPlan(buffers, tuple(steps), bound.packing)


def _moved(array: Array, shape: Sequence[int], strides: Sequence[int]) -> Array | None:
    """The array in a buffer with other strides; None where its axes are not the buffer's."""
    rows = row_major(shape)
    index, left = [], array.offset
    for n, row in zip(shape, rows, strict=True):
        at, left = divmod(left, row)
        index.append(at)
        if at >= n:
            return None
    taken: set[int] = set()
    new: list[int] = []
    alone: list[int] = []  # axes of one element, whose strides say nothing
    for size, stride in zip(array.shape, array.strides, strict=True):
        if size == 1:
            alone.append(len(new))
            new.append(stride)
            continue
        axis = next((k for k, (n, row) in enumerate(zip(shape, rows, strict=True)) if row == stride and n > 1), None)
        if axis is None:
            return None
        # An array's axis may run over several axes of the buffer, from the innermost outwards.
        new.append(strides[axis])
        covered, inner = shape[axis], axis
        taken_now = {axis}
        while covered < size:
            outer = next((k for k in range(inner - 1, -1, -1) if shape[k] > 1), None)
            if outer is None or strides[outer] != strides[inner] * shape[inner]:
                return None
            covered, inner = covered * shape[outer], outer
            taken_now.add(outer)
        whole = all(index[k] == 0 for k in taken_now) if len(taken_now) > 1 else index[axis] + size <= shape[axis]
        if taken & taken_now or not whole:
            return None
        taken |= taken_now
    reach = max((size * stride for size, stride in zip(array.shape, new, strict=True)), default=0)
    for place in alone:
        if new[place] > 1:  # beyond all others, so that by the strides no two elements share memory
            new[place] = max(new[place], -(-reach // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
    offset = sum(at * stride for at, stride in zip(index, strides, strict=True))
    return replace(array, offset=offset, strides=tuple(new))


def _constant(launch: Launch, place: int) -> tuple[int, ...]:
    parameter = launch.parameters[place]
    assert isinstance(parameter, ArrayParameter)
    return parameter.constant_strides


def _allowed(was: Array, now: Array, constant: Sequence[int]) -> bool:
    """Whether all holds of ``now`` that a kernel may have been compiled for with ``was``."""
    if any(was.strides[axis] != now.strides[axis] for axis in constant):
        return False
    bits = 8 * was.itemsize
    facts = array_facts(was.shape, was.strides, bits, (16, was.offset * was.itemsize))
    return not facts.broken(now.shape, now.strides, now.offset * now.itemsize)
