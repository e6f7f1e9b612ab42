"""Whether a plan says at given sizes what the candidate does there when it is asked afresh with plain integers.

The plan came from symbolic integers; a fresh concrete trace (policy *concrete*, in its own child) is the independent
witness.  Also checked: that the assumptions compiled into the plan's bytecode hold for the arrays at these sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels_generated.runtime.expr import Dims, ExprError, evaluate
from kernels_generated.runtime.plan import DTYPE_BITS, ArrayParameter, Fill, Launch, LaunchPlan, Parameter, View

from .result import ArrayFacts, KernelInfo, Traced


def same_launches(traced: Traced, sizes: Mapping[str, int], concrete: Traced) -> str | None:
    """The first difference between ``traced`` at ``sizes`` and ``concrete`` (traced there), in words; None if equal.

    Strides along axes of one element are not compared: no access uses them.
    """
    dims = {**sizes, "num_sms": concrete.num_sms}
    try:
        guard = traced.plan.failing_guard(dims)
        if guard is not None:
            return f"the plan does not apply: {guard}"
        return _differs(traced, dims, concrete)
    except ExprError as error:
        return f"the plan has no value here: {error}"


def _differs(traced: Traced, dims: Dims, concrete: Traced) -> str | None:
    plan, other = traced.plan, concrete.plan
    for a, b in zip(plan.arguments, other.arguments, strict=False):
        here, there = [evaluate(s, dims) for s in a.shape], [evaluate(s, dims) for s in b.shape]
        if (a.name, a.role, a.dtype, here) != (b.name, b.role, b.dtype, there):
            return f"argument {a.name} is {a.dtype}{here} in the plan, {b.name} {b.dtype}{there} afresh"
    if len(plan.arguments) != len(other.arguments):
        return f"{len(plan.arguments)} buffers in the plan, {len(other.arguments)} afresh"
    for number, (step, fresh) in enumerate(zip(plan.steps, other.steps, strict=False)):
        if isinstance(step, Launch) and isinstance(fresh, Launch):
            what = _launch_differs(traced, step, concrete, fresh, dims)
        else:
            what = None if isinstance(step, Fill) and step == fresh else f"{step} in the plan, {fresh} afresh"
        if what is not None:
            return f"step {number}: {what}"
    if len(plan.steps) != len(other.steps):
        return f"{len(plan.steps)} steps in the plan, {len(other.steps)} afresh"
    return None


def _launch_differs(traced: Traced, step: Launch, concrete: Traced, fresh: Launch, dims: Dims) -> str | None:
    info, fresh_info = traced.names[step.kernel], concrete.names[fresh.kernel]
    if info.key != fresh_info.key:
        return f"kernel {_kernel(info)} in the plan, {_kernel(fresh_info)} afresh"
    grid, fresh_grid = [evaluate(g, dims) for g in step.grid], [evaluate(g, dims) for g in fresh.grid]
    if grid != fresh_grid:
        return f"grid {grid} in the plan, {fresh_grid} afresh"
    if len(step.parameters) != len(fresh.parameters):
        return f"{len(step.parameters)} parameters in the plan, {len(fresh.parameters)} afresh"
    facts = iter(info.arrays)
    for number, (p, q) in enumerate(zip(step.parameters, fresh.parameters, strict=True)):
        mine, theirs = _parameter(traced.plan, p, dims), _parameter(concrete.plan, q, dims)
        if mine != theirs:
            return f"parameter {number} is {mine} in the plan, {theirs} afresh"
        if isinstance(p, ArrayParameter):
            broken = _broken_assumption(traced.plan.views[p.view], next(facts), dims)
            if broken is not None:
                return f"parameter {number}: compiled for {broken}"
    return None


def _kernel(info: KernelInfo) -> str:
    constants = ", ".join(f"{name}={text}" for name, text in info.constants)
    return f"{info.function}[{constants}] {dict(info.hints)}"


def _parameter(plan: LaunchPlan, parameter: Parameter, dims: Dims) -> tuple[Any, ...]:
    if isinstance(parameter, ArrayParameter):
        view = plan.views[parameter.view]
        shape = [evaluate(s, dims) for s in view.shape]
        strides = [evaluate(s, dims) if n != 1 else None for n, s in zip(shape, view.strides, strict=True)]
        return (view.argument, view.dtype, evaluate(view.offset, dims), shape, strides, parameter.index)
    value = parameter.value
    if parameter.dtype in ("i32", "i64"):
        return (parameter.dtype, evaluate(value, dims))  # type: ignore[arg-type]
    return (parameter.dtype, repr(value))


def _broken_assumption(view: View, facts: ArrayFacts, dims: Dims) -> str | None:
    """What the bytecode takes for granted about the array and is not so at ``dims``; None if all holds."""
    shape = [evaluate(s, dims) for s in view.shape]
    strides = [evaluate(s, dims) for s in view.strides]
    for what, numbers, constants, divisors in (
        ("shape", shape, facts.shape_constant, facts.shape_divisible_by),
        ("stride", strides, facts.stride_constant, facts.stride_divisible_by),
    ):
        for axis, (number, constant, divisor) in enumerate(zip(numbers, constants, divisors, strict=True)):
            if constant is not None and number != constant:
                return f"{what}[{axis}] == {constant}, it is {number}"
            if number % divisor:
                return f"{what}[{axis}] % {divisor} == 0, it is {number}"
    start = evaluate(view.offset, dims) * DTYPE_BITS[view.dtype] // 8
    if start % facts.base_addr_divisible_by:
        return f"an address divisible by {facts.base_addr_divisible_by}, it starts at byte {start}"
    if not facts.may_alias_internally and _overlaps(shape, strides):
        return "elements that do not overlap"
    return None


def _overlaps(shape: list[int], strides: list[int]) -> bool:
    reach = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach = stride * size
    return False
