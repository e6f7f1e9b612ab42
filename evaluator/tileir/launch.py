"""Running a program over a grid: arguments in, mutated buffers and a report out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_generated.runtime.bound import Array, Scalar

from . import ir
from .machine import AssertionFailure, Frame, Run, StepLimit, Stopped
from .memory import Memory
from .ops_shape import dense, storage_of
from .program import Program
from .promises import PassedArray
from .sanitizer import Sanitizer, Violation

# Lanes times elements of the largest tile: two megabytes of float32.  Larger batches fall out of the cache, smaller
# ones pay for the interpreter (benchmarks/emulator.py).
BATCH_ELEMENTS = 1 << 19
MAX_ITERATIONS = 50_000_000
SHUFFLED = 8  # batches at least, where blocks are shuffled: within one they go on together


Argument = Array | Scalar


@dataclass(frozen=True)
class RunReport:
    """What a launch did besides changing memory.

    ``limit`` says that it was stopped; then memory is half done.  ``padded``: a load has taken undetermined padding.
    """

    blocks: int
    batch: int
    iterations: int
    limit: StepLimit | None = None
    padded: bool = False
    findings: tuple[Violation, ...] = ()
    asserts: tuple[AssertionFailure, ...] = ()


class ArgumentError(ValueError):
    """Arguments that do not fit the kernel's parameters."""


def words(
    arguments: Sequence[Argument], memory: Memory, buffers: Mapping[str, Tensor]
) -> tuple[list[int | float | bool], list[PassedArray]]:
    """The kernel's parameters in order: an array is an address, its sizes, its strides; a scalar is itself."""
    out: list[int | float | bool] = []
    arrays: list[PassedArray] = []
    for argument in arguments:
        if isinstance(argument, Scalar):
            out.append(argument.value)
            continue
        name, size = argument.buffer, argument.itemsize
        address = memory.address(buffers[name], name) + argument.offset * size
        arrays.append(PassedArray(name, len(out), address, argument.shape, argument.strides, size))
        out += [address, *argument.shape, *argument.strides]
    return out, arrays


def bind_words(program: Program, given: Sequence[int | float | bool]) -> list[Tensor]:
    """One lane-1 tensor per parameter.  Raises ArgumentError if number or range do not fit."""
    types = program.module.args
    if len(given) != len(types):
        raise ArgumentError(f"the kernel has {len(types)} parameters, {len(given)} words were given")
    out = []
    for k, (word, kind) in enumerate(zip(given, types, strict=True)):
        assert isinstance(kind, ir.TileType)
        dtype = storage_of(kind.elem)
        try:
            out.append(torch.tensor([word], dtype=torch.float64 if isinstance(word, float) else None).to(dtype))
            if isinstance(word, int) and not dtype.is_floating_point and int(out[-1]) != word:
                raise ArgumentError(f"parameter {k}: {word} does not fit {kind.elem}")
        except RuntimeError as error:
            raise ArgumentError(f"parameter {k}: {word!r}: {error}") from None
    return out


def run(
    program: Program,
    grid: tuple[int, int, int],
    arguments: Sequence[Argument],
    *,
    buffers: Mapping[str, Tensor] | None = None,
    sanitizer: Sanitizer | None = None,
    batch: int | None = None,
    deadline: float | None = None,
    padding_fill: float = 0.0,
    max_iterations: int = MAX_ITERATIONS,
    write: Callable[[str], object] | None = None,
    only: np.ndarray | None = None,
    undefined: float | None = None,
    order: int = 0,
) -> RunReport:
    """Runs ``program`` over ``grid`` (three entries, x fastest) on ``arguments``; buffers change in place.

    ``batch`` is how many blocks run in lockstep (default: as many as fit the cache; one by one where a loop holds an
    atomic).  ``deadline`` is a ``time.monotonic()`` value, ``max_iterations`` a bound on loop iterations: past either
    the report has a ``limit``.  ``padding_fill`` is what loads without a padding value deliver outside the tensor.
    ``only``: linear numbers of the blocks that run, ascending (default: all).  ``undefined`` is what an operation gives
    for operands that it is undefined for (default: what :mod:`.ops_int` says).  ``order``: 0, or the seed of a shuffle
    of the blocks.
    """
    memory = sanitizer.memory if sanitizer is not None else Memory()
    parameters, arrays = words(arguments, memory, buffers or {})
    return launch_words(
        program, grid, parameters, memory, sanitizer=sanitizer, batch=batch, deadline=deadline,
        padding_fill=padding_fill, max_iterations=max_iterations, write=write, arrays=arrays, only=only,
        undefined=undefined, order=order,
    )  # fmt: skip


def launch_words(
    program: Program,
    grid: tuple[int, int, int],
    parameters: Sequence[int | float | bool],
    memory: Memory,
    *,
    sanitizer: Sanitizer | None = None,
    batch: int | None = None,
    deadline: float | None = None,
    padding_fill: float = 0.0,
    max_iterations: int = MAX_ITERATIONS,
    write: Callable[[str], object] | None = None,
    arrays: Sequence[PassedArray] = (),
    only: np.ndarray | None = None,
    undefined: float | None = None,
    order: int = 0,
) -> RunReport:
    """Like :func:`run`, with the kernel's parameters as raw words (addresses of ``memory``)."""
    chosen = np.arange(grid[0] * grid[1] * grid[2], dtype=np.int64) if only is None else only
    blocks = len(chosen)
    lanes = 1 if program.sequential else batch or max(1, BATCH_ELEMENTS // max(program.largest_tile, 64))
    machine = Run(
        program.module, memory, grid, padding_fill, sanitizer, write or sys.stdout.write, max_iterations, deadline,
        undefined,
    )  # fmt: skip
    for item in program.module.globals:
        memory.define_global(item.name, dense(item.value, item.type).contiguous())
    limit: StepLimit | None = None
    with torch.no_grad():
        env: list[Any] = [None] * program.values
        for slot, value in zip(program.body.arguments, bind_words(program, parameters), strict=True):
            env[slot] = value
        first = Frame(machine, np.zeros(1, dtype=np.int64), env)
        if sanitizer is not None:
            sanitizer.begin(machine, program, parameters, arrays)
        try:
            for step in program.prologue:
                step(first)
            if order:
                chosen = np.random.default_rng(order).permutation(chosen)
                lanes = min(lanes, -(-blocks // SHUFFLED))
            for start in range(0, blocks, lanes):
                ids = np.sort(chosen[start : start + lanes])
                machine.check_time()
                program.body.run(Frame(machine, ids, list(env)))
        except Stopped as stop:
            limit = stop.limit
    findings = sanitizer.end() if sanitizer is not None else ()
    return RunReport(blocks, lanes, machine.iterations, limit, machine.padded, findings, tuple(machine.asserts))
