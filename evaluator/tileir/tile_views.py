"""Views at run time: a strided tensor in memory, and the tiles cut out of it.

A :class:`TensorView`'s base address, sizes and strides are integers where all lanes agree, arrays of one entry a lane
where they do not (``Array.slice`` by block).  Sizes, strides and indices are unsigned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import ir
from .windows import OUTSIDE

PerLane = int | np.ndarray
LARGEST = (1 << 63) - 1


@dataclass(eq=False, slots=True)
class TensorView:
    elem: str
    base: PerLane
    shape: tuple[PerLane, ...]
    strides: tuple[PerLane, ...]

    @property
    def words(self) -> tuple[PerLane, ...]:
        """Base address, sizes, strides."""
        return (self.base, *self.shape, *self.strides)

    @property
    def uniform(self) -> bool:
        return all(isinstance(x, int) for x in self.words)

    def at(self, lane: int) -> TensorView:
        """One lane's view, for it alone or for lanes that share it."""
        words = [x if isinstance(x, int) else int(x[lane]) for x in self.words]
        rank = len(self.shape)
        return TensorView(self.elem, words[0], tuple(words[1 : rank + 1]), tuple(words[rank + 1 :]))

    def take(self, index: Tensor) -> TensorView:
        at = index.numpy()
        pick = lambda x: x if isinstance(x, int) else x[at]  # noqa: E731
        return TensorView(self.elem, pick(self.base), tuple(map(pick, self.shape)), tuple(map(pick, self.strides)))


@dataclass(eq=False, slots=True)
class TileView:
    kind: ir.TileViewType
    tensor: TensorView

    def take(self, index: Tensor) -> TileView:
        return TileView(self.kind, self.tensor.take(index))

    @property
    def extents(self) -> tuple[PerLane, ...]:
        """The tensor's sizes in the order of the tile's dimensions."""
        return tuple(self.tensor.shape[d] for d in self.kind.dim_map)

    @property
    def strides(self) -> tuple[PerLane, ...]:
        return tuple(self.tensor.strides[d] for d in self.kind.dim_map)

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements between tiles with neighbouring indices; gather views take element indices."""
        if self.kind.kind == "strided":
            return self.kind.traversal
        return self.kind.tile if self.kind.kind == "partition" else (1,) * len(self.kind.tile)

    def index_space(self) -> tuple[PerLane, ...]:
        """The number of tiles along each dimension: ceil(size / step)."""
        return tuple(-(-e // s) for e, s in zip(self.extents, self.steps, strict=True))


def per_lane(value: Tensor, unsigned: bool = True) -> PerLane:
    """A rank-0 integer tile as an int (all lanes agree) or an array of int64.

    ``unsigned``: its bits are read without a sign, but for numbers of 64 bits, which int64 would not hold.
    """
    array = value.numpy()
    wide: np.ndarray = array.astype(np.int64)
    if unsigned and array.itemsize < 8:
        wide &= (1 << (8 * array.itemsize)) - 1
    return int(wide[0]) if len(wide) == 1 else wide


def sizes_per_lane(value: Tensor) -> PerLane:
    """A size as :func:`per_lane` gives it; one that is too large for int64 is the largest that is not."""
    size = per_lane(value)
    if isinstance(size, int):
        return size if size >= 0 else LARGEST
    return np.where(size < 0, LARGEST, size)


def make_tensor_view(op: ir.Op, env: list[Any]) -> TensorView:
    """``make_tensor_view``: dynamic sizes and strides stand after the pointer, in order."""
    kind = op.result_types[0]
    assert isinstance(kind, ir.TensorViewType)
    dynamic = iter(op.operands[1:])
    sizes = [s if s is not None else sizes_per_lane(env[next(dynamic)]) for s in op.attrs["shape"]]
    strides = [s if s is not None else per_lane(env[next(dynamic)]) for s in op.attrs["strides"]]
    return TensorView(kind.elem, per_lane(env[op.operands[0]], unsigned=False), tuple(sizes), tuple(strides))


def starts(view: TileView, indices: list[Tensor]) -> list[PerLane]:
    """Start coordinates (elements, per tile dimension) of the tiles numbered ``indices``; unsigned, saturating."""
    out: list[PerLane] = []
    for index, step in zip(indices, view.steps, strict=True):
        start = per_lane(index, unsigned=False)
        if isinstance(start, int):
            out.append(start * step if 0 <= start < OUTSIDE // step else OUTSIDE)
        else:
            bad = (start < 0) | (start >= OUTSIDE // step)
            out.append(np.where(bad, OUTSIDE, start * step) if bad.any() else start * step)
    return out


def element_coordinates(view: TileView, at: list[PerLane], sparse: Tensor | None) -> list[Tensor]:
    """Coordinates of every element of the tiles per tile dimension, int64, broadcastable to [lanes, *tile]."""
    rank = len(view.kind.tile)
    out: list[Tensor] = []
    for k, (start, size) in enumerate(zip(at, view.kind.tile, strict=True)):
        along = [1] * (rank + 1)
        along[k + 1] = size
        if sparse is not None and k == view.kind.sparse_dim:
            out.append(sparse.to(torch.int64).reshape(-1, *along[1:]))
            continue
        first = torch.as_tensor(start, dtype=torch.int64).reshape(-1, *(1,) * rank)
        out.append(first + torch.arange(size, dtype=torch.int64).reshape(along))
    return out


def addresses(view: TileView, coordinates: list[Tensor]) -> tuple[Tensor, Tensor]:
    """(byte address or, for 4-bit elements, twice that plus the nibble; inside the tensor) of every element."""
    rank = len(view.kind.tile)
    wide = lambda x: torch.as_tensor(x, dtype=torch.int64).reshape(-1, *(1,) * rank)  # noqa: E731
    inside = torch.ones((1,) * (rank + 1), dtype=torch.bool)
    offset = torch.zeros((1,) * (rank + 1), dtype=torch.int64)
    for c, extent, stride in zip(coordinates, view.extents, view.strides, strict=True):
        within = (c >= 0) & (c < wide(extent))
        inside = inside & within
        offset = offset + torch.where(within, c, 0) * wide(stride)
    return offset, inside
