"""The baselines, by name: how each comes to compute a task.  docs/measuring.md says what they are."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from knowledge_base.snf.task import Task

from .libraries import cupy, flashinfer, flashinfer_cutile, liger, liger_cutile, tilegym
from .torch_program import ATTENTION, Finder, TorchProgram, linear_gelu

Function = Callable[..., Sequence[torch.Tensor]]  # of a task's inputs in order, to its outputs in order


# The function for a task and where its tensors are; None where the baseline has nothing for it.  Raises Lacking, or
# ImportError for a library that is not installed.
Make = Callable[[Task, torch.device], Function | None]


class Lacking(Exception):
    """A baseline that this machine cannot have: the message says why."""


def _eager(task: Task, place: torch.device) -> Function:
    return TorchProgram(task, [ATTENTION]).run


def _compile(task: Task, place: torch.device) -> Function:
    return _compiled(TorchProgram(task, [ATTENTION]))


def _max_autotune(task: Task, place: torch.device) -> Function:
    return _compiled(TorchProgram(task, [ATTENTION]), "max-autotune-no-cudagraphs")


def _compiled(program: TorchProgram, mode: str | None = None) -> Function:
    """The program by torch.compile, as one graph or not at all: each as if it were alone.

    What was compiled is kept by the code object that it came from.  Programs share theirs, and of one code object only
    so many are compiled before the rest runs uncompiled: so each gets a copy.  The same befalls the pieces into which
    a program is cut where PyTorch cannot compile a call, so that is an error: nothing uncompiled passes for compiled.
    """
    run = TorchProgram.run
    alone = types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__)
    made: Function = torch.compile(types.MethodType(alone, program), dynamic=False, fullgraph=True, mode=mode)
    return made


def _vendor(task: Task, place: torch.device) -> Function | None:
    """cublasLt's epilogue and cuDNN's attention, where the task has a place for one."""
    program = TorchProgram(task, [ATTENTION, linear_gelu])
    attends = TorchProgram(task, [ATTENTION]).idioms
    if not program.idioms:
        return None
    return _held(program.run, SDPBackend.CUDNN_ATTENTION, place) if attends else program.run


def _vendor_compiled(task: Task, place: torch.device) -> Function | None:
    program = TorchProgram(task, [ATTENTION, linear_gelu])
    return _compiled(program) if program.idioms and program.plain else None


def _flash(task: Task, place: torch.device) -> Function | None:
    program = TorchProgram(task, [ATTENTION])
    return _held(program.run, SDPBackend.FLASH_ATTENTION, place) if program.idioms else None


def _held(function: Function, backend: SDPBackend, place: torch.device) -> Function:
    """The function with attention by one backend, which it must have."""
    if place.type != "cuda":
        raise Lacking(f"{backend.name.lower()} wants a GPU")

    def run(*given: torch.Tensor) -> Any:
        with sdpa_kernel([backend]):
            return function(*given)

    return run


def _library(finders: Callable[[], Sequence[Finder]]) -> Make:
    """A library's calls alone: a task that has anything else to compute is not its own."""

    def make(task: Task, place: torch.device) -> Function | None:
        program = TorchProgram(task, finders())
        return program.run if program.idioms and not program.plain else None

    return make


BASELINES: dict[str, Make] = {
    "eager": _eager,
    "compile": _compile,
    "max-autotune": _max_autotune,
    "vendor": _vendor,
    "vendor, compile": _vendor_compiled,
    "flash": _flash,
    "TileGym": _library(tilegym),
    "Liger": _library(liger),
    "Liger cuTile": _library(liger_cutile),
    "FlashInfer": _library(flashinfer),
    "FlashInfer cuTile": _library(flashinfer_cutile),
    "CuPy": cupy,
}
