"""What is asked of a trace, and what comes out: Request, KernelInfo, Traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels_generated.runtime.launch_rules import ArrayFacts
from kernels_generated.runtime.plan import Launchable


@dataclass(frozen=True)
class Request:
    """One plan to trace: at sample ``sizes`` (all of the task's dimensions), with values for some axes.

    Sizes may have ``num_sms`` beside the dimensions: another number of multiprocessors than the chip's.
    policy general: the kernels assume what follows from the guards; sample: also each divisibility that the sizes have;
    concrete: plain integers, launches without bytecode, to compare a plan with.
    """

    sizes: Mapping[str, int]
    axes: Mapping[str, Any] = field(default_factory=dict)
    policy: str = "general"


@dataclass(frozen=True)
class KernelInfo:
    """What a bytecode was made from.

    key: name, line, constants and hints in one hash; a plan and a concrete trace that launch the same kernel share it.
    hints: num_ctas, occupancy, opt_level, num_worker_warps (an int, None, or the text of a ct.ByTarget).
    arrays: per array parameter the assumptions compiled in.
    """

    key: str
    function: str
    line: int
    hints: Mapping[str, Any]
    constants: tuple[tuple[str, str], ...]
    arrays: tuple[ArrayFacts, ...]


@dataclass(frozen=True)
class Traced(Launchable):
    """A plan, its kernels' bytecode (none for policy concrete), and how they came about.

    ``names``: what each bytecode was made from.  ``axes``: the value of each axis it was traced with.  ``chip_facts``:
    facts other than num_sms that launch asked for; with any of them the plan is for that chip only.  ``seconds``: in
    the child, without its start.
    """

    names: Mapping[str, KernelInfo]
    axes: Mapping[str, Any]
    sizes: Mapping[str, int]
    num_sms: int
    chip_facts: tuple[str, ...] = ()
    seconds: float = 0.0


def read_kernel_info(data: Any) -> KernelInfo:
    """Checks the child's word on one kernel.  ValueError, TypeError or KeyError where it has the wrong form."""
    constants = tuple((str(name)[:64], str(text)[:200]) for name, text in data["constants"])
    hints = {str(k)[:32]: v if v is None or type(v) is int else str(v)[:200] for k, v in dict(data["hints"]).items()}
    arrays = tuple(_array_facts(a) for a in data["arrays"])
    return KernelInfo(str(data["key"])[:64], str(data["function"])[:64], _int(data["line"]), hints, constants, arrays)


def _array_facts(data: Any) -> ArrayFacts:
    facts = ArrayFacts(
        shape_constant=tuple(None if n is None else _int(n) for n in data["shape_constant"]),
        stride_constant=tuple(None if n is None else _int(n) for n in data["stride_constant"]),
        shape_divisible_by=tuple(_int(n, 1) for n in data["shape_divisible_by"]),
        stride_divisible_by=tuple(_int(n, 1) for n in data["stride_divisible_by"]),
        base_addr_divisible_by=_int(data["base_addr_divisible_by"], 1),
        may_alias_internally=data["may_alias_internally"] is True,
    )
    per_axis = (facts.stride_constant, facts.shape_divisible_by, facts.stride_divisible_by)
    if any(len(numbers) != facts.rank for numbers in per_axis):
        raise ValueError("an array's facts of different ranks")
    return facts


def _int(value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"not an integer >= {least}: {str(value)[:40]}")
    return value
