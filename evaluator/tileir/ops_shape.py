"""Operations that make, move or reinterpret elements without arithmetic: pure functions, lane axis first."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from . import dtypes, ir
from .memory import MEMORY_BITS


def tile_type(kind: ir.Type) -> ir.TileType:
    assert isinstance(kind, ir.TileType)
    return kind


def storage_of(elem: ir.Elem) -> torch.dtype:
    """The torch dtype of tiles of ``elem``; pointers are int64 addresses."""
    return torch.int64 if isinstance(elem, ir.PtrElem) else dtypes.STORAGE[elem]


def dense(value: ir.Dense, kind: ir.TileType) -> Tensor:
    """A constant's tile with a lane axis of 1; a splat is an expanded single element."""
    assert isinstance(kind.elem, str)
    elem, shape = kind.elem, kind.shape
    if value.raw is not None:
        return _raw(value.raw, elem).reshape(1, *shape)
    if isinstance(value.values, tuple):
        return _numbers(value.values, elem).reshape(1, *shape)
    one = _bits(int(value.values), elem) if value.bits else _numbers((value.values,), elem)
    return one.reshape((1,) * (len(shape) + 1)).expand(1, *shape)


def _numbers(values: tuple[int | float | bool, ...], elem: str) -> Tensor:
    if elem.startswith("i"):
        return torch.tensor(values, dtype=dtypes.STORAGE[elem] if elem != "i4" else torch.int8)
    return dtypes.encode(torch.tensor(values, dtype=torch.float64), elem)


def _bits(bits: int, elem: str) -> Tensor:
    dtype = dtypes.STORAGE[elem]
    size = dtype.itemsize
    return torch.frombuffer(bytearray(bits.to_bytes(size, "little")), dtype=torch.uint8).view(dtype)


def _raw(raw: bytes, elem: str) -> Tensor:
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    return data != 0 if elem == "i1" else data.view(dtypes.STORAGE[elem])


def constant(op: ir.Op) -> Tensor:
    return dense(op.attrs["value"], tile_type(op.result_types[0]))


def iota(op: ir.Op) -> Tensor:
    """0, 1, 2 …, wrapping in the element type."""
    kind = tile_type(op.result_types[0])
    return torch.arange(kind.shape[0], dtype=torch.int64).to(storage_of(kind.elem))[None]


def reshape(op: ir.Op, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], *tile_type(op.result_types[0]).shape)


def broadcast(op: ir.Op, x: Tensor) -> Tensor:
    return x.expand(x.shape[0], *tile_type(op.result_types[0]).shape)


def permute(op: ir.Op, x: Tensor) -> Tensor:
    return x.permute(0, *(p + 1 for p in op.attrs["permutation"]))


def cat(op: ir.Op, a: Tensor, b: Tensor) -> Tensor:
    a, b = equal_lanes(a, b)
    return torch.cat((a, b), op.attrs["dim"] + 1)


def equal_lanes(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors with one lane count: uniform ones expanded where any is not."""
    lanes = max(t.shape[0] for t in tensors)
    return tuple(t if t.shape[0] == lanes else t.expand(lanes, *t.shape[1:]) for t in tensors)


def select(op: ir.Op, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    if condition.dim() < a.dim():  # a scalar condition chooses whole tiles
        condition = condition.reshape(-1, *(1,) * (a.dim() - 1))
    return torch.where(condition, a, b)


def bitcast(op: ir.Op, x: Tensor) -> Tensor:
    """The same bits as another type of the same width."""
    target = storage_of(tile_type(op.result_types[0]).elem)
    if x.dtype == target:
        return x
    if torch.bool in (x.dtype, target):
        return x.to(target)
    return x.contiguous().view(target)


def _tile_windows(whole: tuple[int, ...], part: tuple[int, ...], indices: tuple[Tensor, ...], lanes: int) -> Tensor:
    """Element index (int64, [lanes, *part]) into the flattened ``whole`` of sub-tile number ``indices`` per lane.

    An index outside (undefined in the specification) wraps around the number of sub-tiles.
    """
    flat = torch.zeros((1,) * (len(part) + 1), dtype=torch.int64)
    for d, (n, t, i) in enumerate(zip(whole, part, indices, strict=True)):
        start = (i.to(torch.int64) % max(n // t, 1)) * t
        along = torch.arange(t).reshape(1, *(-1 if k == d else 1 for k in range(len(part))))
        flat = flat * n + (start.reshape(-1, *(1,) * len(part)) + along)
    return flat.expand(lanes, *part).reshape(lanes, -1)


def extract(op: ir.Op, x: Tensor, *indices: Tensor) -> Tensor:
    """Sub-tile number ``indices`` of ``x``."""
    whole, part = tile_type(op.operand_types[0]).shape, tile_type(op.result_types[0]).shape
    lanes = max(x.shape[0], *(i.shape[0] for i in indices)) if indices else x.shape[0]
    where = _tile_windows(whole, part, indices, lanes)
    flat = x.reshape(x.shape[0], -1).expand(lanes, math.prod(whole))
    return flat.gather(1, where).reshape(lanes, *part)


def insert(op: ir.Op, x: Tensor, into: Tensor, *indices: Tensor) -> Tensor:
    """``into`` with its sub-tile number ``indices`` replaced by ``x``."""
    part, whole = tile_type(op.operand_types[0]).shape, tile_type(op.operand_types[1]).shape
    lanes = max(x.shape[0], into.shape[0], *(i.shape[0] for i in indices))
    where = _tile_windows(whole, part, indices, lanes)
    flat = into.reshape(into.shape[0], -1).expand(lanes, math.prod(whole))
    source = x.reshape(x.shape[0], -1).expand(lanes, math.prod(part))
    return flat.scatter(1, where, source).reshape(lanes, *whole)


def _to_bytes(x: Tensor, elem: str) -> Tensor:
    """Little-endian bytes of a rank-1 tile, [lanes, bytes]; 4-bit elements two a byte, the first in the low half."""
    x = x.contiguous()
    if dtypes.BITS[elem] == 4:
        codes = x.view(torch.uint8) & 15
        return codes[:, 0::2] | (codes[:, 1::2] << 4)
    return x.view(torch.uint8) if x.dtype != torch.bool else x.to(torch.uint8)


def _from_bytes(x: Tensor, elem: str) -> Tensor:
    if dtypes.BITS[elem] == 4:
        codes = torch.stack((x & 15, x >> 4), -1).reshape(x.shape[0], -1)
        if elem == "i4":
            return ((codes ^ 8).to(torch.int8) - 8).to(torch.int8)
        return codes
    return x != 0 if elem == "i1" else x.contiguous().view(dtypes.STORAGE[elem])


def repack(op: ir.Op, x: Tensor) -> Tensor:
    """pack and unpack: a rank-1 tile's bytes read as another element type."""
    source, target = tile_type(op.operand_types[0]).elem, tile_type(op.result_types[0]).elem
    assert isinstance(source, str)
    assert isinstance(target, str)
    return _from_bytes(_to_bytes(x, source), target)


def offset(op: ir.Op, pointer: Tensor, count: Tensor) -> Tensor:
    """Pointers moved by ``count`` elements (a signed number)."""
    elem = tile_type(op.operand_types[0]).elem
    assert isinstance(elem, ir.PtrElem)
    bits = MEMORY_BITS[elem.pointee]
    moved = count.to(torch.int64)
    return pointer + (moved * (bits // 8) if bits >= 8 else moved // 2)


def identity(op: ir.Op, x: Tensor) -> Tensor:
    """Conversions between pointers and 64-bit integers: addresses are integers here."""
    return x


SHAPE_OPS: dict[str, Callable[..., Tensor]] = {
    "constant": constant, "iota": iota, "reshape": reshape, "broadcast": broadcast, "permute": permute, "cat": cat,
    "select": select, "bitcast": bitcast, "extract": extract, "insert": insert, "pack": repack, "unpack": repack,
    "offset": offset, "int_to_ptr": identity, "ptr_to_int": identity, "ptr_to_ptr": identity,
}  # fmt: skip
