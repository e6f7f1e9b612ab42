"""Loads and stores, of views and of pointers: each function binds one operation to a step of the machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import dtypes, ir
from .machine import Frame, Step
from .memory import MEMORY_BITS, Allocation, memory_dtype
from .ops_shape import tile_type
from .pointers import gather, scatter
from .views import TileView, addresses, element_coordinates, make_tensor_view, starts
from .windows import Lattice, Piece, decompose, is_whole, pieces, to_lanes, to_rows

_PADDING = {"zero": 0.0, "neg_zero": -0.0, "nan": float("nan"), "pos_inf": float("inf"), "neg_inf": float("-inf")}


@functools.lru_cache(maxsize=256)
def _padding(elem: str, kind: str | None, fill: float, target: torch.dtype) -> Tensor:
    """The value of elements outside the tensor, as a 0-d tensor of dtype ``target``."""
    value = fill if kind is None else _PADDING[kind]
    if not dtypes.is_float(elem):
        return torch.tensor(int(value) if kind is None else 0, dtype=torch.int64).to(target)
    code = dtypes.encode(torch.tensor([value], dtype=torch.float64), elem)
    if target == torch.float32 and code.dtype != torch.float32:
        code = dtypes.decode(code, elem)
    return code[0]


def _place(frame: Frame, view: TileView) -> tuple[Allocation, int] | None:
    """The allocation of a uniform view and its first element's index there; None if that is no whole number."""
    base = view.tensor.base
    assert isinstance(base, int)
    allocation = frame.run.memory.owner(base)
    if allocation is None or MEMORY_BITS[view.tensor.elem] < 8:
        return None
    first, odd = divmod(base - allocation.base, memory_dtype(view.tensor.elem).itemsize)
    return None if odd else (allocation, first)


Window = tuple[tuple[int, ...], tuple[int, ...], int]


def _inside(window: Window, first: int, elements: int) -> Window | None:
    """The window at its place in the flat view, or None if an element of it is outside."""
    size, stride, offset = window
    offset += first
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return (size, stride, offset) if offset >= 0 and last < elements else None


def load_tiles(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor], target: torch.dtype) -> Tensor:
    """The tiles numbered ``indices`` as ``target``, one a lane (or one for all)."""
    place = None
    if view.tensor.uniform and view.kind.kind != "gather_scatter":
        place = _place(frame, view)
    if place is None:
        return _load_elements(frame, op, view, indices, target)
    at = starts(view, list(indices))
    if frame.run.sanitizer is not None:
        frame.run.sanitizer.indices(frame, op, view, at)
    lattices = decompose(at, len(frame.ids))
    parts = []
    for number, lattice in enumerate(lattices):
        rows = _load_lattice(frame, op, view, place, lattice, target, number if len(lattices) > 1 else None)
        if rows is None:
            return _load_elements(frame, op, view, indices, target)
        parts.append(to_lanes(lattice, rows, view.kind.tile))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _load_lattice(
    frame: Frame,
    op: ir.Op,
    view: TileView,
    place: tuple[Allocation, int],
    lattice: Lattice,
    target: torch.dtype,
    lane: int | None,
) -> Tensor | None:
    """The product's array; None if an element of it lies outside the allocation."""
    (allocation, first), elem = place, view.tensor.elem
    tile, extents, strides = view.kind.tile, view.extents, view.strides
    flat = allocation.flat(memory_dtype(elem))
    found: list[tuple[Piece, Window]] = []
    for piece in pieces(lattice, tile, extents):  # type: ignore[arg-type]
        window = _inside(piece.window(strides, lattice.axes), first, flat.numel())  # type: ignore[arg-type]
        if window is None:
            return None
        found.append((piece, window))
    if frame.run.sanitizer is not None:
        frame.run.sanitizer.windows(frame, op, allocation, flat.element_size(), lattice, found, "read", lane)
    if len(found) == 1 and is_whole(lattice, tile, extents):  # type: ignore[arg-type]
        out = torch.as_strided(flat, *found[0][1]).to(target, copy=True, memory_format=torch.contiguous_format)
    else:
        shape = (*lattice.counts, *tile)
        if flat.dtype == torch.uint8 and elem == "i1":
            out = torch.zeros(shape, dtype=torch.uint8)
        else:
            out = _padding(elem, view.kind.padding, frame.run.padding_fill, target).repeat(shape)
        for piece, window in found:
            out[piece.where] = torch.as_strided(flat, *window)
    return out


def _load_elements(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor], target: torch.dtype) -> Tensor:
    """The general way, an address an element: gather views, views that differ by lane, packed elements, strays."""
    elem = view.tensor.elem
    address, inside = addresses_of(frame, op, view, indices)
    values = gather(frame, op, address, inside, elem).to(target)
    return torch.where(inside, values, _padding(elem, view.kind.padding, frame.run.padding_fill, target))


def addresses_of(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(address, inside the tensor) of every element of the lanes' tiles; shapes [lanes or 1, *tile]."""
    dense, sparse = list(indices), None
    if view.kind.kind == "gather_scatter":
        assert view.kind.sparse_dim is not None
        sparse = dense[view.kind.sparse_dim]
        dense[view.kind.sparse_dim] = torch.zeros(1, dtype=torch.int64)
    at = starts(view, dense)
    if frame.run.sanitizer is not None:
        frame.run.sanitizer.indices(frame, op, view, at, sparse)
    offset, inside = addresses(view, element_coordinates(view, at, sparse))
    base = torch.as_tensor(view.tensor.base, dtype=torch.int64).reshape(-1, *(1,) * len(view.kind.tile))
    bits = MEMORY_BITS[view.tensor.elem]
    address = base + offset * (bits // 8) if bits >= 8 else base * 2 + offset
    return torch.broadcast_tensors(address, inside)  # type: ignore[return-value]


def store_tiles(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor], values: Tensor) -> None:
    """Writes the lanes' tiles; elements outside the tensor are dropped."""
    elem = view.tensor.elem
    if elem == "i1":
        values = values.to(torch.uint8)
    place = None
    if view.tensor.uniform and view.kind.kind != "gather_scatter":
        place = _place(frame, view)
    if place is None or not _store_windows(frame, op, view, place, indices, values):
        address, inside = addresses_of(frame, op, view, indices)
        if len(frame.ids) > 1:
            address = address.expand(len(frame.ids), *address.shape[1:])
        scatter(frame, op, address, inside, values, elem)


def _store_windows(
    frame: Frame, op: ir.Op, view: TileView, place: tuple[Allocation, int], indices: Sequence[Tensor], values: Tensor
) -> bool:
    """Stores by strided copies; False (and nothing written) if an element lies outside the allocation."""
    allocation, first = place
    tile, extents, strides = view.kind.tile, view.extents, view.strides
    flat = allocation.flat(memory_dtype(view.tensor.elem))
    at = starts(view, list(indices))
    lattices = decompose(at, len(frame.ids))
    work: list[tuple[Lattice, list[tuple[Piece, Window]]]] = []
    for lattice in lattices:
        found: list[tuple[Piece, Window]] = []
        for piece in pieces(lattice, tile, extents):  # type: ignore[arg-type]
            window = _inside(piece.window(strides, lattice.axes), first, flat.numel())  # type: ignore[arg-type]
            if window is None:
                return False
            found.append((piece, window))
        work.append((lattice, found))
    if frame.run.sanitizer is not None:
        frame.run.sanitizer.indices(frame, op, view, at)
    for number, (lattice, found) in enumerate(work):
        lane = number if len(work) > 1 else None
        if frame.run.sanitizer is not None:
            frame.run.sanitizer.windows(frame, op, allocation, flat.element_size(), lattice, found, "write", lane)
        mine = values if lane is None or values.shape[0] == 1 else values[lane : lane + 1]
        rows = to_rows(lattice, mine, tile)
        for piece, window in found:
            torch.as_strided(flat, *window).copy_(rows[piece.where])
    return True


# ----------------------------------------------------------------------------------------------------------- binding


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
