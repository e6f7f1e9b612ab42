"""Loads and stores of tiles through views: strided copies where lanes agree on the view, else element by element."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import dtypes, ir
from .machine import Frame, take
from .memory import MEMORY_BITS, Allocation, memory_dtype
from .pointers import gather, resolve, scatter
from .tile_views import PerLane, TileView, addresses, element_coordinates, starts
from .windows import Lattice, Piece, Window, apart, decompose, is_whole, pieces, to_lanes, to_rows

_PADDING = {"zero": 0.0, "neg_zero": -0.0, "nan": float("nan"), "pos_inf": float("inf"), "neg_inf": float("-inf")}


@functools.lru_cache(maxsize=256)
def _padding(elem: str, kind: str | None, fill: float, target: torch.dtype) -> Tensor:
    """The value of elements outside the tensor, as a 0-d tensor of dtype ``target``."""
    value = fill if kind is None else _PADDING[kind]
    if kind is not None and elem in dtypes.PADDING_CODES:
        code = torch.tensor([dtypes.PADDING_CODES[elem][kind]], dtype=dtypes.STORAGE[elem])
        return (dtypes.decode(code, elem) if target == torch.float32 else code)[0]
    if elem == "i1":
        return torch.zeros((), dtype=target)
    if not dtypes.is_float(elem):
        return torch.tensor(int(value) if kind is None else 0, dtype=torch.int64).to(target)
    code = dtypes.encode(torch.tensor([value], dtype=torch.float64), elem)
    if target == torch.float32 and code.dtype != torch.float32:
        code = dtypes.decode(code, elem)
    return code[0]


class _Layout(NamedTuple):
    """Where a view that all lanes share lies: first element in ``flat``, sizes and strides per tile dimension."""

    allocation: Allocation
    flat: Tensor
    first: int
    tile: tuple[int, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    def permuted(self, order: Sequence[int]) -> _Layout:
        tile, extents, strides = (tuple(t[k] for k in order) for t in (self.tile, self.extents, self.strides))
        return self._replace(tile=tile, extents=extents, strides=strides)


def _layout(frame: Frame, op: ir.Op, view: TileView) -> _Layout | None:
    """None for gather views, packed or misaligned elements, strides below 0, and accesses that synchronise.

    Those go by element.
    """
    elem = view.tensor.elem
    if view.kind.kind == "gather_scatter" or MEMORY_BITS[elem] < 8 or op.attrs["semantics"] != "weak":
        return None
    base = view.tensor.base
    assert isinstance(base, int)
    allocation = frame.run.memory.owner(base)
    if allocation is None:
        return None
    flat = allocation.flat(memory_dtype(elem))
    first, odd = divmod(base - allocation.base, flat.element_size())
    # uniform: every size and stride is an int
    if odd or min(view.strides, default=0) < 0:  # type: ignore[type-var, operator]
        return None
    return _Layout(allocation, flat, first, view.kind.tile, view.extents, view.strides)  # type: ignore[arg-type]


def _windows(layout: _Layout, lattice: Lattice) -> list[tuple[Piece, Window]] | None:
    """The lattice's pieces and their windows on the flat view; None if an element lies outside the allocation."""
    found: list[tuple[Piece, Window]] = []
    elements = layout.flat.numel()
    for piece in pieces(lattice, layout.tile, layout.extents):
        size, stride, offset = piece.window(layout.strides, lattice.axes)
        offset += layout.first
        if offset < 0 or offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) >= elements:
            return None
        found.append((piece, (size, stride, offset)))
    return found


def _memory_order(layout: _Layout) -> list[int] | None:
    """The dimensions with the contiguous one last, if that is not so: copies then run along memory."""
    contiguous = [k for k, (s, n) in enumerate(zip(layout.strides, layout.tile, strict=True)) if s == 1 and n > 1]
    rank = len(layout.tile)
    if len(contiguous) != 1 or all(n == 1 for n in layout.tile[contiguous[0] + 1 :]):
        return None
    return [k for k in range(rank) if k != contiguous[0]] + contiguous


def load_tiles(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor], target: torch.dtype) -> Tensor:
    """The tiles numbered ``indices`` as ``target``, one a lane (or one for all)."""
    if not view.tensor.uniform:
        return _load_groups(frame, op, view, indices, target)
    layout = _layout(frame, op, view)
    if layout is None:
        return _load_elements(frame, op, view, indices, target)
    at: Sequence[PerLane] = starts(view, list(indices))
    if frame.run.watcher is not None:
        frame.run.watcher.indices(frame, op, view, at)
    order = _memory_order(layout)
    if order is not None:
        layout, at = layout.permuted(order), [at[k] for k in order]
    lattices = decompose(at, len(frame.ids))
    parts = []
    for lattice in lattices:
        rows = _load_lattice(frame, op, view, layout, lattice, target)
        if rows is None:
            return _load_elements(frame, op, view, indices, target)
        parts.append(to_lanes(lattice, rows, layout.tile))
    out = parts[0] if len(parts) == 1 else torch.cat([_of_all(p, at) for p, at in zip(parts, lattices, strict=True)])
    return out if order is None else out.permute(0, *(order.index(k) + 1 for k in range(len(order))))


def _groups(frame: Frame, view: TileView) -> Iterator[tuple[Tensor, Frame, TileView]]:
    """Lanes with the same view: their positions, a frame of them, and the view, now uniform."""
    lanes = len(frame.ids)
    table = np.stack([np.broadcast_to(x, lanes) for x in view.tensor.words], 1)
    _, which = np.unique(table, axis=0, return_inverse=True)
    for group in range(int(which.max()) + 1):
        positions = np.flatnonzero(which == group)
        one = TileView(view.kind, view.tensor.at(int(positions[0])))
        yield torch.from_numpy(positions), Frame(frame.run, frame.ids[positions], []), one


def _load_groups(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor], target: torch.dtype) -> Tensor:
    """Loads through views that differ by lane (slices, arrays out of a list), lanes with equal views together."""
    places, parts = [], []
    for positions, some, one in _groups(frame, view):
        tiles = load_tiles(some, op, one, [take(i, positions) for i in indices], target)
        places.append(positions)
        parts.append(tiles.expand(len(positions), *tiles.shape[1:]))
    return torch.cat(parts).index_select(0, torch.argsort(torch.cat(places)))


def _of_all(tiles: Tensor, lattice: Lattice) -> Tensor:
    """A tile for each lane of the lattice, where there is one for all."""
    return tiles.expand(lattice.lanes.stop - lattice.lanes.start, *tiles.shape[1:])


def _load_lattice(
    frame: Frame, op: ir.Op, view: TileView, layout: _Layout, lattice: Lattice, target: torch.dtype
) -> Tensor | None:
    """The product's array; None if an element of it lies outside the allocation."""
    found = _windows(layout, lattice)
    if found is None:
        return None
    flat, elem = layout.flat, view.tensor.elem
    if frame.run.watcher is not None:
        frame.run.watcher.windows(frame, op, layout.allocation, flat.element_size(), lattice, found, "read")
    if len(found) == 1 and is_whole(lattice, layout.tile, layout.extents):
        return torch.as_strided(flat, *found[0][1]).to(target, copy=True, memory_format=torch.contiguous_format)
    frame.run.padded |= view.kind.padding is None
    out = _padding(elem, view.kind.padding, frame.run.padding_fill, target).repeat(*lattice.counts, *layout.tile)
    for piece, window in found:
        out[piece.where] = torch.as_strided(flat, *window)
    return out


def _load_elements(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor], target: torch.dtype) -> Tensor:
    """The general way, an address an element: gather views, views that differ by lane, packed elements, strays."""
    elem = view.tensor.elem
    address, inside = addresses_of(frame, op, view, indices)
    values = gather(frame, op, address, inside, elem).to(target)
    frame.run.padded |= view.kind.padding is None and not bool(inside.all())
    return torch.where(inside, values, _padding(elem, view.kind.padding, frame.run.padding_fill, target))


def addresses_of(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(address, inside the tensor) of every element of the lanes' tiles; shapes [lanes or 1, *tile]."""
    dense, sparse = list(indices), None
    if view.kind.kind == "gather_scatter":
        assert view.kind.sparse_dim is not None
        sparse = dense[view.kind.sparse_dim]
        dense[view.kind.sparse_dim] = torch.zeros(1, dtype=torch.int64)
    at = starts(view, dense)
    if frame.run.watcher is not None:
        frame.run.watcher.indices(frame, op, view, at, sparse)
    offset, inside = addresses(view, element_coordinates(view, at, sparse))
    base = torch.as_tensor(view.tensor.base, dtype=torch.int64).reshape(-1, *(1,) * len(view.kind.tile))
    bits = MEMORY_BITS[view.tensor.elem]
    address = base + offset * (bits // 8) if bits >= 8 else base * 2 + offset
    return torch.broadcast_tensors(address, inside)  # type: ignore[return-value]


def store_tiles(frame: Frame, op: ir.Op, view: TileView, indices: Sequence[Tensor], values: Tensor | None) -> None:
    """Writes the lanes' tiles; elements outside the tensor are dropped.  Without values the watcher alone is told."""
    elem = view.tensor.elem
    if elem == "i1" and values is not None:
        values = values.to(torch.uint8)
    if not view.tensor.uniform:
        for positions, some, one in _groups(frame, view):
            mine = None if values is None else take(values, positions)
            store_tiles(some, op, one, [take(i, positions) for i in indices], mine)
        return
    layout = _layout(frame, op, view)
    if layout is None or not _store_windows(frame, op, view, layout, indices, values):
        address, inside = addresses_of(frame, op, view, indices)
        if len(frame.ids) > 1:
            address = address.expand(len(frame.ids), *address.shape[1:])
        if values is None:
            for _ in resolve(frame, op, address, inside, elem, "write"):
                pass
        else:
            scatter(frame, op, address, inside, values, elem)


def _store_windows(
    frame: Frame, op: ir.Op, view: TileView, layout: _Layout, indices: Sequence[Tensor], values: Tensor | None
) -> bool:
    """Stores by strided copies; False, and nothing is written, if an element lies outside or may be there twice."""
    at = starts(view, list(indices))
    work = [(lattice, _windows(layout, lattice)) for lattice in decompose(at, len(frame.ids))]
    if any(found is None or not all(apart(window) for _, window in found) for _, found in work):
        return False
    watcher = frame.run.watcher
    if watcher is not None:
        watcher.indices(frame, op, view, at)
    for lattice, found in work:
        assert found is not None
        if watcher is not None:
            size = layout.flat.element_size()
            watcher.windows(frame, op, layout.allocation, size, lattice, found, "write")
        if values is None:
            continue
        mine = values if values.shape[0] == 1 else values[lattice.lanes]
        rows = to_rows(lattice, mine, layout.tile)
        for piece, window in found:
            torch.as_strided(layout.flat, *window).copy_(rows[piece.where])
    return True
