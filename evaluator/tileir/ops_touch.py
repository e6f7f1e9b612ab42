"""Touches: stores and atomics without values, which tell the watcher where they go and change nothing.

They are no operations of Tile IR: :mod:`.slicing` makes them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import ir
from .machine import Frame, Step
from .ops_shape import tile_type
from .pointers import resolve
from .tiles import addresses_of, store_tiles


def _bind_view(op: ir.Op) -> Step:
    view, *indices = op.operands

    def step(frame: Frame) -> None:
        env = frame.env
        store_tiles(frame, op, env[view], [env[i] for i in indices], None)

    return step


def _bind_view_atomic(op: ir.Op) -> Step:
    view, *indices = op.operands

    def step(frame: Frame) -> None:
        env = frame.env
        address, inside = addresses_of(frame, op, env[view], [env[i] for i in indices])
        _touch(frame, op, address, inside, env[view].tensor.elem, "atomic")

    return step


def _bind_pointer(access: str) -> Callable[[ir.Op], Step]:
    def bind(op: ir.Op) -> Step:
        pointer, *rest = op.operands
        kind = tile_type(op.operand_types[0]).elem
        assert isinstance(kind, ir.PtrElem)

        def step(frame: Frame) -> None:
            env = frame.env
            _touch(frame, op, env[pointer], env[rest[0]] if rest else None, kind.pointee, access)

        return step

    return bind


def _touch(
    frame: Frame, op: ir.Op, address: torch.Tensor, mask: torch.Tensor | None, elem: str, access: str
) -> None:  # fmt: skip
    lanes = len(frame.ids)
    if lanes > 1 and address.shape[0] == 1:  # all blocks touch the same place: the watcher must see each
        address = address.expand(lanes, *address.shape[1:])
    for _ in resolve(frame, op, address, mask, elem, access):
        pass


TOUCH_OPS: dict[str, Callable[[ir.Op], Step]] = {
    "touch_view": _bind_view,
    "touch_view_atomic": _bind_view_atomic,
    "touch_pointer": _bind_pointer("write"),
    "touch_pointer_atomic": _bind_pointer("atomic"),
}
