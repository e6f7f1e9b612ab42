"""Where the tiles of many lanes lie: lanes' start coordinates turned into few strided copies.

A tile access gives each lane a start coordinate per tile dimension.  Blocks of a grid mostly want the *product* of a
few rows and a few columns, many of them the same tile; so the lanes' starts are decomposed into distinct starts per
dimension (``Lattice``; a few of them where a batch of lanes is no product).  A product is cut into pieces that one
``as_strided`` can move: runs of whole tiles in arithmetic progression, and the clipped tiles at the
tensor's edge.  Coordinates count elements.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

OUTSIDE = 1 << 60  # a start that is outside every tensor (an index that is negative as a signed number)


Window = tuple[tuple[int, ...], tuple[int, ...], int]  # size, stride, offset for as_strided


def apart(window: Window) -> bool:
    """Whether no two elements of the window have the same place; False where that takes a closer look."""
    reach = 0  # of the dimensions with smaller strides
    for stride, size in sorted(zip(window[1], window[0], strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += (size - 1) * stride
    return True


@dataclass(frozen=True, slots=True)
class Lattice:
    """``starts[k]`` are the distinct starts along tile dimension k; the tiles are their product.

    ``axes`` are the dimensions with more than one start, slowest first in the order of the product's rows.  Of the
    ``lanes`` that it is of number i has row ``inverse[i]``; None says that it has row i.  A uniform access has no axes:
    one row for all lanes.
    """

    starts: tuple[tuple[int, ...], ...]
    axes: tuple[int, ...]
    inverse: np.ndarray | None
    lanes: slice

    @property
    def rows(self) -> int:
        return math.prod(len(self.starts[k]) for k in self.axes)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(self.starts[k]) for k in self.axes)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a lattice that lies inside the tensor: one strided copy.

    ``where`` slices the product's array (axes, then tile dimensions); ``start`` are the first element's coordinates,
    ``steps`` the distance along each axis in elements of that dimension, ``counts`` and ``valid`` the sizes.
    """

    where: tuple[slice, ...]
    start: tuple[int, ...]
    steps: tuple[int, ...]
    counts: tuple[int, ...]
    valid: tuple[int, ...]

    def window(self, strides: Sequence[int], axes: Sequence[int]) -> Window:
        """(size, stride, offset) of the copy, in elements, for a tensor of these strides per tile dimension."""
        offset = sum(map(int.__mul__, self.start, strides))
        stride = tuple(s * strides[k] for s, k in zip(self.steps, axes, strict=True))
        return self.counts + self.valid, stride + tuple(strides), offset


@functools.lru_cache(maxsize=512)
def _distinct(starts: bytes) -> tuple[tuple[int, ...], np.ndarray]:
    """The distinct int64 numbers, ascending, and which of them each number is."""
    values, inverse = np.unique(np.frombuffer(starts, dtype=np.int64), return_inverse=True)
    return tuple(values.tolist()), inverse


@functools.lru_cache(maxsize=512)
def _arrange(starts: tuple[bytes | None, ...], lanes: int) -> tuple[tuple[int, ...], np.ndarray | None] | None:
    """(axes, inverse) of the product of the varying dimensions; None where the lanes' tiles are no product.

    Loops ask for the same rows or columns of tiles again and again, so answers are kept.
    """
    found = {k: _distinct(s) for k, s in enumerate(starts) if s is not None}
    varying = {k: (len(values), inverse) for k, (values, inverse) in found.items() if len(values) > 1}
    best: tuple[tuple[int, ...], np.ndarray] | None = None
    if not varying:
        return (), None
    rows = math.prod(n for n, _ in varying.values())
    if rows > lanes:  # a grid's last, partial batch counts up like a product but ends before its corner
        return None
    identity = np.arange(lanes)
    for axes in itertools.permutations(varying):
        code = np.zeros(lanes, dtype=np.int64)
        for k in axes:
            code = code * varying[k][0] + varying[k][1]
        if np.array_equal(code, identity):
            return axes, None
        best = best or (axes, code)
    assert best is not None
    return best if len(np.unique(best[1])) == rows else None


@functools.lru_cache(maxsize=512)
def _runs(starts: tuple[bytes | None, ...], lanes: int) -> tuple[tuple[int, int], ...]:
    """Where to cut the lanes so that each run is a product: a batch may begin and end in the middle of a row."""
    if _arrange(starts, lanes) is not None:
        return ((0, lanes),)
    columns = {k: np.frombuffer(s, dtype=np.int64) for k, s in enumerate(starts) if s is not None}
    changes = {k: (np.flatnonzero(np.diff(column)) + 1).tolist() for k, column in columns.items()}
    slow = min((k for k in changes if changes[k]), key=lambda k: len(changes[k]))
    edges = [0, *changes[slow], lanes]
    others = [
        tuple(column[a:b].tobytes() for k, column in columns.items() if k != slow) for a, b in itertools.pairwise(edges)
    ]
    # Rows with the same columns stay together, if that divides anything.
    fewer = [edge for edge, (a, b) in zip(edges[1:-1], itertools.pairwise(others), strict=True) if a != b]
    out: list[tuple[int, int]] = []
    for a, b in itertools.pairwise([0, *fewer, lanes] if fewer else edges):
        out += [(a + c, a + d) for c, d in _runs(_part(starts, a, b), b - a)]
    return tuple(out)


def _part(starts: tuple[bytes | None, ...], first: int, end: int) -> tuple[bytes | None, ...]:
    """Of the lanes from ``first`` until ``end``."""
    return tuple(None if s is None else s[8 * first : 8 * end] for s in starts)


def decompose(starts: Sequence[int | np.ndarray], lanes: int) -> list[Lattice]:
    """The lattices of the lanes' starts (an int where all lanes agree), in the order of lanes; mostly a single one."""
    keys = tuple(None if isinstance(s, int) else s.astype(np.int64, copy=False).tobytes() for s in starts)
    out: list[Lattice] = []
    for first, end in _runs(keys, lanes):
        mine = _part(keys, first, end)
        distinct = tuple((s,) if k is None else _distinct(k)[0] for s, k in zip(starts, mine, strict=True))
        arranged = _arrange(mine, end - first)
        assert arranged is not None
        out.append(Lattice(distinct, *arranged, slice(first, end)))  # type: ignore[arg-type]
    return out


@dataclass(frozen=True, slots=True)
class _Segment:
    at: int
    count: int
    start: int
    step: int
    valid: int


def _segments(starts: tuple[int, ...], tile: int, extent: int) -> list[_Segment]:
    """Runs of whole tiles, then the clipped ones; tiles outside the tensor have no segment."""
    whole = 0
    while whole < len(starts) and starts[whole] + tile <= extent:
        whole += 1
    out: list[_Segment] = []
    if whole:
        step = starts[1] - starts[0] if whole > 1 else 0
        if all(starts[i] - starts[0] == i * step for i in range(whole)):
            out.append(_Segment(0, whole, starts[0], step, tile))
        else:
            out += [_Segment(i, 1, starts[i], 0, tile) for i in range(whole)]
    out += [_Segment(i, 1, s, 0, extent - s) for i, s in enumerate(starts) if i >= whole and s < extent]
    return out


def pieces(lattice: Lattice, tile: Sequence[int], extents: Sequence[int]) -> Iterator[Piece]:
    """The parts of the lattice's tiles that lie inside a tensor of ``extents`` (per tile dimension)."""
    per_dim = [_segments(s, t, e) for s, t, e in zip(lattice.starts, tile, extents, strict=True)]
    for chosen in itertools.product(*per_dim):
        on_axes = [chosen[k] for k in lattice.axes]
        yield Piece(
            tuple(slice(s.at, s.at + s.count) for s in on_axes) + tuple(slice(0, s.valid) for s in chosen),
            tuple(s.start for s in chosen),
            tuple(s.step for s in on_axes),
            tuple(s.count for s in on_axes),
            tuple(s.valid for s in chosen),
        )


def is_whole(lattice: Lattice, tile: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether all tiles lie inside the tensor, so that no element is padding."""
    return all(s[-1] + t <= e for s, t, e in zip(lattice.starts, tile, extents, strict=True))


def to_lanes(lattice: Lattice, rows: Tensor, tile: Sequence[int]) -> Tensor:
    """The product's array (axes, then tile) as one tile per lane (or a single one for all)."""
    flat = rows.reshape(lattice.rows, *tile)
    if lattice.inverse is None:
        return flat
    return flat.index_select(0, torch.from_numpy(lattice.inverse))


def to_rows(lattice: Lattice, lanes: Tensor, tile: Sequence[int]) -> Tensor:
    """Lanes' tiles as the product's array; where several lanes share a row the last one wins."""
    if lattice.inverse is not None:
        last = np.zeros(lattice.rows, dtype=np.int64)
        last[lattice.inverse] = np.arange(len(lattice.inverse))  # numpy: the last assignment stands
        if lanes.shape[0] > 1:
            lanes = lanes.index_select(0, torch.from_numpy(last))
    elif not lattice.axes and lanes.shape[0] > 1:
        lanes = lanes[-1:]
    if lanes.shape[0] == 1 and lattice.rows > 1:
        lanes = lanes.expand(lattice.rows, *lanes.shape[1:])
    return lanes.reshape(*lattice.counts, *tile)
