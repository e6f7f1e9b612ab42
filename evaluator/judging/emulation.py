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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evaluator.kernel import Kernel, refusal
from evaluator.tileir import (
    ATOMIC_OPS,
    OUTPUT,
    WORKSPACE,
    ArgumentError,
    Program,
    RunReport,
    Sanitizer,
    TileIRError,
    Tracker,
    Unsupported,
    build,
    run,
    tainted,
    walk,
)
from kernels_generated.runtime.bound import Array, BoundLaunch, BoundPlan
from kernels_generated.runtime.plan import Fill, Launchable, LaunchPlan
from knowledge_base.records import Finding, Status

from .admission import POISON_A, Poison, admit, poisoned, read_only, workspaces
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
    outputs change in place.  ``deadline`` is a ``time.monotonic()`` value.  Returns what the sanitizer found; where it
    found nothing, and a kernel may have read what nobody has made, what depends on that.  Raises Rejected where the
    plan is refused or a launch is stopped; the buffers are then half done.
    """
    bound = admit(plan, {name: tuple(given.shape) for name, given in buffers.items()}, sizes)
    emulated = functools.partial(_emulate, bound, sizes=sizes, poison=poison, deadline=deadline)
    if not sanitize:
        emulated(programs, buffers, None)
        return ()
    before = {name: tensor.clone() for name, tensor in buffers.items()}
    sanitizer = Sanitizer()  # one for all launches: buffers keep their addresses
    reports = emulated(programs, buffers, sanitizer)
    findings = _recorded(reports)
    if not findings and (
        any(report.padded for report in reports)
        or any(note.kind != "assumption" for note in sanitizer.notes)
        or any(_reads_own(programs[launch.kernel], launch, bound) for launch in bound.launches)
    ):
        findings = _followed(bound, programs, before, poison, emulated)
    return tuple(findings)


def _followed(
    bound: BoundPlan,
    programs: Mapping[str, Program],
    buffers: Mapping[str, torch.Tensor],
    poison: Poison,
    emulated: Callable[[Mapping[str, Program], Mapping[str, torch.Tensor], Tracker], list[RunReport]],
) -> list[Finding]:
    """What depends on memory that nobody has written, on padding, or on what the language leaves undefined."""
    programs = {digest: _tainted(program) for digest, program in programs.items()}

    def follow(tracker: Tracker) -> list[Finding]:
        given = {name: tensor.clone() for name, tensor in buffers.items()}
        reports = emulated(programs, given, tracker)
        findings = _recorded(reports)
        for buffer in bound.buffers:
            if buffer.role == "output" and not findings:
                tensor = given[buffer.name]
                untouched = tensor == poisoned((), buffer.dtype, poison.output)  # that has a message of its own
                found = tracker.result(tensor, buffer.name, untouched)
                findings += [] if found is None else [_record(found, len(reports) - 1)]
        return findings

    tracker = Tracker()
    findings = follow(tracker)
    if findings and findings[0].kind == "undetermined-padding":
        loads = tracker.padded.items()
        line = next((line for load, line in loads if follow(Tracker(load))), None)  # whose padding it is
        findings[0] = findings[0].model_copy(update={"line": line or findings[0].line})
    return findings


@functools.lru_cache(maxsize=256)
def _tainted(program: Program) -> Program:
    return build(tainted(program.module))


def _reads_own(program: Program, launch: BoundLaunch, bound: BoundPlan) -> bool:
    """Whether the kernel may read a workspace or an output."""
    own = _unwritten(bound)
    place = 0
    for argument in launch.arguments:
        if isinstance(argument, Array) and argument.buffer in own and (program.reads is None or place in program.reads):
            return True
        place += 1 + 2 * len(argument.shape) if isinstance(argument, Array) else 1
    return False


def _unwritten(bound: BoundPlan) -> dict[str, int]:
    """The buffers that nobody has written before the first launch, by name, and the taint of what depends on them."""
    outputs = {buffer.name: OUTPUT for buffer in bound.buffers if buffer.role == "output"}
    return outputs | {buffer.name: WORKSPACE for buffer in bound.buffers if buffer.internal}


def _emulate(
    bound: BoundPlan,
    programs: Mapping[str, Program],
    buffers: Mapping[str, torch.Tensor],
    watcher: Sanitizer | None,
    *,
    sizes: Mapping[str, int],
    poison: Poison,
    deadline: float | None,
) -> list[RunReport]:
    """What each launch did, in order."""
    memory = dict(buffers) | workspaces(bound, poison.workspace)
    if isinstance(watcher, Tracker):
        for name, taint in _unwritten(bound).items():
            watcher.unwritten(memory[name], name, taint)
    reports: list[RunReport] = []
    for step in bound.steps:
        if isinstance(step, Fill):
            fill(memory[step.argument], step.value)
            if isinstance(watcher, Tracker):
                watcher.filled(memory[step.argument])
            continue
        index = len(reports)
        if math.prod(step.grid) > MAX_BLOCKS:
            message = f"launch {index}: {math.prod(step.grid)} blocks at {text(sizes)}, more than {MAX_BLOCKS}"
            raise reject(Status.TIMEOUT, "too-many-blocks", message)
        if watcher is not None:
            watcher.read_only = read_only(bound, index)
        reports.append(launched(programs[step.kernel], step, memory, poison, watcher, deadline, index))
    return reports


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


def _recorded(reports: Sequence[RunReport]) -> list[Finding]:
    """What was found in all launches."""
    return [found for index, report in enumerate(reports) for found in recorded(report, index)]


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


def _quiet(text: str) -> None:
    """What a kernel prints is no part of a verdict."""


def fill(tensor: torch.Tensor, value: float | int) -> None:
    """Sets every element."""
    tensor.copy_(torch.full((), value, dtype=torch.float64).to(tensor.dtype))
