"""Whether a plan says at given sizes what the candidate does there when it is asked afresh with plain integers.

The plan came from symbolic integers; a fresh concrete trace (policy *concrete*, in its own child) is the independent
witness.  Also checked: that the assumptions compiled into the plan's bytecode hold for the arrays at these sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels_generated.runtime.bound import Array, BoundLaunch, BoundPlan, Scalar, bind
from kernels_generated.runtime.expr import ExprError
from kernels_generated.runtime.plan import Fill

from .result import KernelInfo, Traced


def same_launches(traced: Traced, sizes: Mapping[str, int], concrete: Traced) -> str | None:
    """The first difference between ``traced`` at ``sizes`` and ``concrete`` (traced there), in words; None if equal.

    Strides along axes of one element are not compared: no access uses them.
    """
    dims = {"num_sms": concrete.num_sms, **sizes}
    try:
        guard = traced.plan.failing_guard(dims)
        if guard is not None:
            return f"the plan does not apply: {guard}"
        bound, fresh = bind(traced.plan, dims), bind(concrete.plan, dims)
    except ExprError as error:
        return f"the plan has no value here: {error}"
    return _differs(traced, bound, concrete, fresh)


def _differs(traced: Traced, bound: BoundPlan, concrete: Traced, fresh: BoundPlan) -> str | None:
    for a, b in zip(bound.buffers, fresh.buffers, strict=False):
        if a != b:
            return (
                f"argument {a.name} is {a.dtype}{list(a.shape)} in the plan, {b.name} {b.dtype}{list(b.shape)} afresh"
            )
    if len(bound.buffers) != len(fresh.buffers):
        return f"{len(bound.buffers)} buffers in the plan, {len(fresh.buffers)} afresh"
    for number, (step, other) in enumerate(zip(bound.steps, fresh.steps, strict=False)):
        if isinstance(step, BoundLaunch) and isinstance(other, BoundLaunch):
            what = _launch_differs(traced.names[step.kernel], step, concrete.names[other.kernel], other)
        else:
            what = None if isinstance(step, Fill) and step == other else f"{step} in the plan, {other} afresh"
        if what is not None:
            return f"step {number}: {what}"
    if bound.packing != fresh.packing:
        return f"{bound.packing} steps prepare weights in the plan, {fresh.packing} afresh"
    if len(bound.steps) != len(fresh.steps):
        return f"{len(bound.steps)} steps in the plan, {len(fresh.steps)} afresh"
    return None


def _launch_differs(info: KernelInfo, step: BoundLaunch, fresh_info: KernelInfo, fresh: BoundLaunch) -> str | None:
    if info.key != fresh_info.key:
        return f"kernel {_kernel(info)} in the plan, {_kernel(fresh_info)} afresh"
    if step.grid != fresh.grid:
        return f"grid {list(step.grid)} in the plan, {list(fresh.grid)} afresh"
    if len(step.arguments) != len(fresh.arguments):
        return f"{len(step.arguments)} parameters in the plan, {len(fresh.arguments)} afresh"
    facts = iter(info.arrays)
    for number, (p, q) in enumerate(zip(step.arguments, fresh.arguments, strict=True)):
        mine, theirs = _parameter(p), _parameter(q)
        if mine != theirs:
            return f"parameter {number} is {mine} in the plan, {theirs} afresh"
        if isinstance(p, Array):
            broken = next(facts).broken(p.shape, p.strides, p.offset * p.itemsize)
            if broken:
                return f"parameter {number}: compiled for {broken}"
    return None


def _kernel(info: KernelInfo) -> str:
    constants = ", ".join(f"{name}={text}" for name, text in info.constants)
    return f"{info.function}[{constants}] {dict(info.hints)}"


def _parameter(argument: Array | Scalar) -> tuple[Any, ...]:
    if isinstance(argument, Array):
        strides = [s if n != 1 else None for n, s in zip(argument.shape, argument.strides, strict=True)]
        return argument.buffer, argument.dtype, argument.offset, list(argument.shape), strides, argument.index
    return argument.dtype, repr(argument.value)  # so that NaN equals NaN, and -0.0 is not 0.0
