"""A launch plan on the emulator: sizes in, buffers changed in place, findings out.

What is refused before it runs is :mod:`.admission`'s; grids are bounded here.  Each buffer is a storage of exactly its
size; the emulator gives every storage an address window of its own, so an access beyond it is seen and reaches no other
memory: these windows are the guard zones.

Values are the judge's business; so is what a finding means for a verdict.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from evaluator.kernel import Kernel, refusal
from evaluator.tileir import (
    ATOMIC_OPS,
    ArgumentError,
    Program,
    RunReport,
    Sanitizer,
    TileIRError,
    Unsupported,
    run,
    walk,
)
from kernels_generated.runtime.bound import BoundLaunch
from kernels_generated.runtime.plan import Fill, Launchable, LaunchPlan
from knowledge_base.records import Finding, Status

from .admission import POISON_A, Poison, admit, workspaces
from .cover import text
from .rejection import Rejected, reject

PATIENCE = 10_000  # loop iterations that blocks in another order may take which wait for each other
MAX_BLOCKS = 2**20  # of one launch at the judge's sizes: they need thousands, and a million takes minutes


class Emulator:
    """The :class:`.executable.Machine` that every computer has."""

    in_order = True

    def ready(self, traced: Launchable) -> Mapping[str, Program]:
        """The plan's kernels by hash.  Raises Rejected where emulator or disassembler refuse one."""
        try:
            return {digest: Kernel.of(traced.kernels[digest]).program for digest in traced.plan.kernels}
        except TileIRError as error:
            raise Rejected(refusal(error)) from None

    def run(
        self,
        plan: LaunchPlan,
        ready: Mapping[str, Program],
        buffers: Mapping[str, torch.Tensor],
        sizes: Mapping[str, int],
        *,
        poison: Poison,
        sanitize: bool,
        deadline: float,
    ) -> tuple[Finding, ...]:
        """As :func:`emulate`."""
        return emulate(plan, ready, buffers, sizes, poison=poison, sanitize=sanitize, deadline=deadline)


EMULATOR = Emulator()


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
    bound = admit(plan, {name: tuple(given.shape) for name, given in buffers.items()}, sizes)
    memory = dict(buffers) | workspaces(bound, poison.workspace)
    index = 0
    for step in bound.steps:
        if isinstance(step, Fill):
            fill(memory[step.argument], step.value)
            continue
        if math.prod(step.grid) > MAX_BLOCKS:
            message = f"launch {index}: {math.prod(step.grid)} blocks at {text(sizes)}, more than {MAX_BLOCKS}"
            raise reject(Status.TIMEOUT, "too-many-blocks", message)
        report = launched(programs[step.kernel], step, memory, poison, watcher, deadline, index)
        findings += recorded(report, index)
        index += 1
    return tuple(findings)


@functools.lru_cache(maxsize=256)
def _tells(program: Program) -> bool:
    """Whether blocks can tell each other something: by atomics, but not by sums of floats alone, which only round."""
    modes = [op.attrs.get("mode") for op in walk(program.module.body) if op.name in ATOMIC_OPS]
    return bool(modes) and "addf" not in modes


def launched(
    program: Program,
    launch: BoundLaunch,
    memory: Mapping[str, torch.Tensor],
    poison: Poison,
    sanitizer: Any,
    deadline: float | None,
    index: int,
    only: np.ndarray | None = None,
) -> RunReport:
    """What launch number ``index`` did; ``only``: the blocks that run.  Raises Rejected where it was stopped."""
    if deadline is not None and time.monotonic() > deadline:
        raise reject(Status.TIMEOUT, "too-slow", f"the time allowed was over before launch {index}")
    order = poison.order if _tells(program) else 0
    before = {name: tensor.clone() for name, tensor in memory.items()} if order and program.sequential else {}
    started = functools.partial(
        run,
        program,
        launch.grid,
        launch.arguments,
        buffers=memory,
        sanitizer=sanitizer,
        padding_fill=poison.padding,
        undefined=poison.undefined,
        deadline=deadline,
        write=_quiet,
        only=only,
    )
    try:
        report = started(order=order, max_iterations=PATIENCE) if before else started(order=order)
        if before and report.limit is not None:  # a block waits for one that comes later here: that says nothing
            for name, tensor in before.items():
                memory[name].copy_(tensor)
            report = started()
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
    return report


def recorded(report: RunReport, launch: int) -> list[Finding]:
    """The sanitizer's findings as the record that everybody shares."""
    return [_record(found, launch) for found in report.findings]


def _record(found: Any, launch: int) -> Finding:
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


def fill(tensor: torch.Tensor, value: float | int) -> None:
    """Sets every element."""
    tensor.copy_(torch.full((), value, dtype=torch.float64).to(tensor.dtype))
