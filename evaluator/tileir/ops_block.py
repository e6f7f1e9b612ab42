"""Operations about the block itself: its number, tokens, promises, printing, assertions, globals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from . import dtypes, ir
from .machine import Frame, Step
from .ops_shape import tile_type
from .printing import render


def _bind_block_id(op: ir.Op) -> Step:
    def step(frame: Frame) -> None:
        for slot, along in zip(op.results, frame.run.coordinates(frame.ids), strict=True):
            same = len(along) == 1 or bool((along == along[0]).all())
            frame.env[slot] = torch.from_numpy((along[:1] if same else along).astype(np.int32))

    return step


def _bind_grid(op: ir.Op) -> Step:
    def step(frame: Frame) -> None:
        for slot, size in zip(op.results, frame.run.grid, strict=True):
            frame.env[slot] = torch.tensor([size], dtype=torch.int32)

    return step


def _bind_token(op: ir.Op) -> Step:
    """Tokens order the memory operations of one block; running in program order honours any of them."""
    return lambda frame: None


def _bind_assume(op: ir.Op) -> Step:
    source, result = op.operands[0], op.results[0]

    def step(frame: Frame) -> None:
        frame.env[result] = frame.env[source]

    return step


def _bind_get_global(op: ir.Op) -> Step:
    def step(frame: Frame) -> None:
        memory = frame.run.memory
        frame.env[op.results[0]] = torch.tensor([memory.globals[op.attrs["symbol"]]], dtype=torch.int64)

    return step


def _format_values(value: Tensor, elem: ir.Elem) -> np.ndarray:
    if isinstance(elem, str) and dtypes.is_float(elem):
        decoded: np.ndarray = dtypes.decode(value, elem).to(torch.float64).numpy()
        return decoded
    return value.numpy()


def _bind_print(op: ir.Op) -> Step:
    kinds = [tile_type(t).elem for t in op.operand_types]

    def step(frame: Frame) -> None:
        values = [_format_values(frame.env[v], k) for v, k in zip(op.operands, kinds, strict=True)]
        for lane in range(len(frame.ids)):
            frame.run.write(render(op.attrs["format"], [v[lane if len(v) > 1 else 0] for v in values]))

    return step


def _bind_assert(op: ir.Op) -> Step:
    def step(frame: Frame) -> None:
        holds = frame.env[op.operands[0]].numpy()
        if not holds.all():
            frame.run.failed_assert(frame, op, holds)

    return step


BLOCK_OPS: dict[str, Callable[[ir.Op], Step]] = {
    "get_tile_block_id": _bind_block_id,
    "get_num_tile_blocks": _bind_grid,
    "make_token": _bind_token,
    "join_tokens": _bind_token,
    "gdc_wait_tko": _bind_token,
    "gdc_launch_dependents_tko": _bind_token,
    "assume": _bind_assume,
    "get_global": _bind_get_global,
    "print_tko": _bind_print,
    "assert": _bind_assert,
}
