"""Loads and stores, of views and of pointers: each function binds one operation to a step of the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from . import dtypes, ir
from .machine import Frame, Step
from .memory import memory_dtype
from .ops_shape import tile_type
from .pointers import gather, scatter
from .tile_views import TileView, make_tensor_view
from .tiles import load_tiles, store_tiles


def _bind_load_view(op: ir.Op, widen: bool) -> Step:
    view, *indices = op.operands
    result, kind = op.results[0], tile_type(op.result_types[0])
    assert isinstance(kind.elem, str)
    target = torch.float32 if widen else memory_dtype(kind.elem)
    boolean = kind.elem == "i1"

    def step(frame: Frame) -> None:
        env = frame.env
        tiles = load_tiles(frame, op, env[view], [env[i] for i in indices], target)
        env[result] = tiles != 0 if boolean else tiles

    return step


def _bind_store_view(op: ir.Op, widen: bool) -> Step:
    value, view, *indices = op.operands

    def step(frame: Frame) -> None:
        env = frame.env
        store_tiles(frame, op, env[view], [env[i] for i in indices], env[value])

    return step


def _bind_load_ptr(op: ir.Op, widen: bool) -> Step:
    pointer, *rest = op.operands
    # One extra operand may be a mask or a padding; the front end writes no mask without a padding.
    mask = rest[0] if len(rest) == 2 else None
    padding = rest[-1] if rest else None
    result, kind = op.results[0], tile_type(op.result_types[0])
    elem = "i64" if isinstance(kind.elem, ir.PtrElem) else kind.elem

    def step(frame: Frame) -> None:
        env = frame.env
        keep = None if mask is None else env[mask]
        values = gather(frame, op, env[pointer], keep, elem)
        if elem == "i1":
            values = values != 0
        if keep is not None and padding is not None:
            values = torch.where(keep, values, env[padding])
        env[result] = values

    return step


def _bind_store_ptr(op: ir.Op, widen: bool) -> Step:
    pointer, value, *rest = op.operands
    mask = rest[0] if rest else None
    kind = tile_type(op.operand_types[1])
    elem = "i64" if isinstance(kind.elem, ir.PtrElem) else kind.elem

    def step(frame: Frame) -> None:
        env = frame.env
        values = env[value].to(torch.uint8) if elem == "i1" else env[value]
        address = env[pointer]
        lanes = len(frame.ids)
        if lanes > 1 and address.shape[0] == 1:  # all blocks write the same place: the sanitizer must see each
            address = address.expand(lanes, *address.shape[1:])
        scatter(frame, op, address, None if mask is None else env[mask], values, elem)

    return step


def _bind_make_tensor_view(op: ir.Op, widen: bool) -> Step:
    def step(frame: Frame) -> None:
        view = make_tensor_view(op, frame.env)
        frame.env[op.results[0]] = view

    return step


def _bind_make_tile_view(op: ir.Op, widen: bool) -> Step:
    kind = op.result_types[0]
    assert isinstance(kind, ir.TileViewType)

    def step(frame: Frame) -> None:
        frame.env[op.results[0]] = TileView(kind, frame.env[op.operands[0]])

    return step


def _sizes(values: Sequence[object], results: Sequence[int], frame: Frame, dtype: torch.dtype) -> None:
    for slot, value in zip(results, values, strict=True):
        frame.env[slot] = torch.as_tensor(value, dtype=torch.int64).reshape(-1).to(dtype)


def _bind_index_space(op: ir.Op, widen: bool) -> Step:
    dtype = dtypes.STORAGE[str(tile_type(op.result_types[0]).elem)]

    def step(frame: Frame) -> None:
        view = frame.env[op.operands[0]]
        _sizes(view.index_space(), op.results, frame, dtype)

    return step


def _bind_tensor_shape(op: ir.Op, widen: bool) -> Step:
    dtype = dtypes.STORAGE[str(tile_type(op.result_types[0]).elem)]

    def step(frame: Frame) -> None:
        view = frame.env[op.operands[0]]
        _sizes(view.shape, op.results, frame, dtype)

    return step


# Operations on views and memory.  ``widen``: the load delivers float32 because all its readers convert anyway.
MEMORY_OPS: dict[str, Callable[[ir.Op, bool], Step]] = {
    "load_view_tko": _bind_load_view,
    "store_view_tko": _bind_store_view,
    "load_ptr_tko": _bind_load_ptr,
    "store_ptr_tko": _bind_store_ptr,
    "make_tensor_view": _bind_make_tensor_view,
    "make_partition_view": _bind_make_tile_view,
    "make_strided_view": _bind_make_tile_view,
    "make_gather_scatter_view": _bind_make_tile_view,
    "get_index_space_shape": _bind_index_space,
    "get_tensor_shape": _bind_tensor_shape,
}
