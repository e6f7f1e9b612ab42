"""What is asked of a trace, and what comes out: Request, KernelInfo, Traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels_generated.runtime.plan import LaunchPlan


@dataclass(frozen=True)
class Request:
    """One plan to trace: at sample ``sizes`` (all of the task's dimensions), with values for some axes.

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
    arrays: per array parameter the assumptions compiled in (the fields of cuTile's ArrayConstraint).
    """

    key: str
    function: str
    line: int
    hints: Mapping[str, Any]
    constants: tuple[tuple[str, str], ...]
    arrays: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Traced:
    """A plan, its kernels' bytecode by hash (none for policy concrete), and how it came about.

    ``axes``: the value of each axis it was traced with.  ``chip_facts``: facts other than num_sms that launch asked
    for; with any of them the plan is for that chip only.  ``seconds``: in the child, without its start.
    """

    plan: LaunchPlan
    kernels: Mapping[str, bytes]
    names: Mapping[str, KernelInfo]
    axes: Mapping[str, Any]
    sizes: Mapping[str, int]
    num_sms: int
    chip_facts: tuple[str, ...]
    seconds: float
