"""Run any cuTile kernel without a GPU: ``launch`` takes what ``ct.launch`` takes after its stream.

    import torch, cuda.tile as ct
    from evaluator import emulator

    x, y = torch.randn(1000), torch.empty(1000)
    emulator.launch((8,), kernel, (x, y, 128))

:func:`install` has the operators of kernels_generated run their kernels here as well.

The kernel is exported as Tile IR (cached by kernel and signature) and interpreted on the CPU, in place.  This runs the
kernel's Python, so it is for one's own code: strangers' code is traced in a confined child, its bytecode judged.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from evaluator.kernel import Kernel
from evaluator.tileir import (
    Binding,
    Memory,
    Program,
    RunReport,
    Sanitizer,
    check_version,
    launch_words,
    pass_arguments,
    run,
    to_bytecode,
)
from kernels_generated.runtime import backend
from kernels_generated.runtime.backend import NO_MEMORY, Run
from kernels_generated.runtime.bound import BoundPlan, check
from kernels_generated.runtime.manifest import Manifest
from kernels_generated.runtime.plan import MAX_GRID, Fill
from knowledge_base.chips import chip


class EmulationError(RuntimeError):
    """A launch that was stopped (see ``report.limit``)."""

    def __init__(self, message: str, report: RunReport):
        super().__init__(message)
        self.report = report


_PROGRAMS: weakref.WeakKeyDictionary[Any, dict[str, Program]] = weakref.WeakKeyDictionary()


@functools.cache
def _checked() -> bool:
    check_version()
    return True


def program_for(kernel: Any, binding: Binding) -> Program:
    """The kernel's program under a signature, from the cache where it was built before."""
    _checked()
    known = _PROGRAMS.setdefault(kernel, {})
    key = repr([(type(p).__name__, p) for p in binding.parameters])
    program = known.get(key)
    if program is None:
        program = known[key] = Kernel.of(to_bytecode(kernel, binding.parameters)).program
    return program


def launch(
    grid: Sequence[int],
    kernel: Any,
    args: Sequence[Any],
    *,
    sanitizer: Sanitizer | None = None,
    batch: int | None = None,
    deadline: float | None = None,
    padding_fill: float = 0.0,
    write: Callable[[str], object] | None = None,
) -> RunReport:
    """Runs ``kernel`` over ``grid`` (one to three sizes) on ``args``: CPU tensors, scalars, tuples, lists, constants.

    Tensors change in place.  ``sanitizer`` checks the launch (see :mod:`.tileir.sanitizer`); ``batch``, ``deadline``
    and ``padding_fill`` are :func:`evaluator.tileir.run`'s; ``write`` receives what the kernel prints (default:
    standard output).  Races are looked for only with ``sanitizer=Sanitizer()`` (of :mod:`evaluator.tileir`); they are
    then among the report's ``findings``.

    Raises TypeError for what is no kernel, TypeError and OverflowError for arguments that ct.launch refuses, cuTile's
    own errors for code its front end refuses, :class:`evaluator.tileir.Unsupported`, and EmulationError if the kernel
    was stopped.
    """
    if not isinstance(grid, tuple | list) or not 1 <= len(grid) <= 3:
        raise TypeError(f"the grid must be a tuple of one to three integers, not {grid!r}")
    sizes = [int(g) for g in grid] + [1] * (3 - len(grid))
    if any(not 1 <= g <= most for g, most in zip(sizes, MAX_GRID, strict=True)):
        raise ValueError(f"the sizes of the grid must be 1 to {MAX_GRID}: {tuple(grid)}")
    memory = sanitizer.memory if sanitizer is not None else Memory()
    binding = pass_arguments(kernel, args, memory)
    program = program_for(kernel, binding)
    report = launch_words(
        program, (sizes[0], sizes[1], sizes[2]), binding.words, memory, sanitizer=sanitizer, batch=batch,
        deadline=deadline, padding_fill=padding_fill, write=write or sys.stdout.write, arrays=binding.arrays,
    )  # fmt: skip
    if report.limit is not None:
        raise EmulationError(report.limit.message, report)
    return report


# ---------------------------------------------------------------------------------------------------- operators


class Emulated:
    """A chip that is emulated, as what runs the operators of kernels_generated on CPU tensors."""

    def __init__(self, name: str) -> None:
        self.arch, self.num_sms = chip(name).arch, chip(name).sm_count
        self.launches = 0

    def prepare(self, bound: BoundPlan, manifest: Manifest) -> Run:
        """What runs the plan's Tile IR.  Raises Unlaunchable, ManifestError, and TileIRError for a broken kernel."""
        check(bound)
        programs = {launch.kernel: Kernel.of(manifest.bytecode(launch.kernel)).program for launch in bound.launches}

        def perform(tensors: Sequence[Any]) -> None:
            if not all(tensor.data_ptr() for tensor in tensors):
                raise RuntimeError(NO_MEMORY)
            buffers = {buffer.name: tensor for buffer, tensor in zip(bound.buffers, tensors, strict=True)}
            for step in bound.steps:
                if isinstance(step, Fill):
                    buffers[step.argument].fill_(step.value)
                    continue
                self.launches += 1
                report = run(programs[step.kernel], step.grid, step.arguments, buffers=buffers)
                if report.limit is not None:
                    raise EmulationError(report.limit.message, report)

        return perform


def install(chip_name: str = "h200") -> Emulated:
    """Has the operators of kernels_generated run their kernels for that chip here, on CPU tensors, until
    :func:`uninstall`; returns what counts their launches.  Raises UserError for a chip that nobody knows."""
    emulated = Emulated(chip_name)
    backend.install("cpu", emulated)
    return emulated


def uninstall() -> None:
    """PyTorch computes on the CPU again."""
    backend.install("cpu", None)
