"""``reduce`` and ``scan``: an associative combine region over one axis of some tiles.

The region's arguments are pairs per operand: what was combined so far, then what comes after it (scan's example in the
Tile IR specification names them ``acc`` and ``elem``), so a function that does not commute sees its operands in order.
The region runs vectorised, its scalars being whole tiles: a reduction combines neighbours in a tree of log2(n) levels,
a scan doubles its reach each step.  Regions of one well-known operation go to torch's own reductions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import ir
from .machine import Block, Frame, Step
from .ops_shape import equal_lanes, tile_type


class _Combine:
    """The region as a function of the earlier and the later part, one tile an operand each."""

    def __init__(self, op: ir.Op, body: Block):
        self.body = body
        self.steps = body.segments[0][0]
        self.outside = list(body.captures)

    def __call__(self, frame: Frame, earlier: list[Tensor], later: list[Tensor]) -> list[Tensor]:
        env = frame.env
        rank = earlier[0].dim()
        kept: list[tuple[int, Any]] = []
        for slot in self.outside:  # scalars from outside, one a lane, must not meet the elements' axes
            value = env[slot]
            if isinstance(value, Tensor) and value.dim() == 1 and value.shape[0] > 1:
                kept.append((slot, value))
                env[slot] = value.reshape(-1, *(1,) * (rank - 1))
        for k, (left, right) in enumerate(zip(earlier, later, strict=True)):
            env[self.body.arguments[2 * k]] = left
            env[self.body.arguments[2 * k + 1]] = right
        for step in self.steps:
            step(frame)
        out = [env[v] for v in self.body.operands]
        for slot, value in kept:
            env[slot] = value
        shape = torch.broadcast_shapes(*(t.shape for t in earlier))
        return [t.expand(shape) if t.dim() == rank else t.reshape(-1, *(1,) * (rank - 1)).expand(shape) for t in out]


def _known(op: ir.Op) -> tuple[str, ir.Op] | None:
    """The single operation of a region ``yield op(a, b)``, if it is that."""
    body = op.regions[0]
    if len(body.arguments) != 2 or len(body.ops) != 2:
        return None
    inner, last = body.ops
    if set(inner.operands) != set(body.arguments) or last.operands != inner.results:
        return None
    return inner.name, inner


def _fast_reduce(op: ir.Op):  # type: ignore[no-untyped-def]
    """A torch reduction (tile, dim) for well-known regions, or None.  It may return None where it does not apply."""
    known = _known(op)
    elem = tile_type(op.operand_types[0]).elem
    if known is None:
        return None
    name, inner = known
    plain = elem in ("f32", "f64", "f16", "bf16") and not inner.attrs.get("flush_to_zero")
    if name == "addf" and plain and inner.attrs["rounding"] == "nearest_even":
        return lambda x, d: x.sum(d, dtype=torch.float32).to(x.dtype) if x.dtype != torch.float64 else x.sum(d)
    if name in ("maxf", "minf") and plain:
        extremum = torch.amax if name == "maxf" else torch.amin
        if inner.attrs["propagate_nan"]:
            return extremum

        def without_nan(x: Tensor, d: int) -> Tensor | None:
            out = extremum(x, d)
            return None if out.isnan().any() else out  # torch lets NaN win, the operation does not

        return without_nan
    if name in ("maxi", "mini") and inner.attrs["signedness"] == "signed" and elem != "i1":
        return torch.amax if name == "maxi" else torch.amin
    if name == "addi" and elem != "i1":
        return lambda x, d: x.sum(d, dtype=x.dtype)
    if elem == "i1" and name in ("andi", "ori"):
        return torch.all if name == "andi" else torch.any
    return None


def bind_reduce(op: ir.Op, body: Block, module: ir.Module) -> Step:
    combine, fast, axis = _Combine(op, body), _fast_reduce(op), op.attrs["dim"] + 1

    def step(frame: Frame) -> None:
        env = frame.env
        tiles = [env[v] for v in op.operands]
        if fast is not None:
            out = fast(tiles[0], axis)
            if out is not None:
                env[op.results[0]] = out
                return
        tiles = [t.movedim(axis, -1) for t in equal_lanes(*tiles)]
        while tiles[0].shape[-1] > 1:
            n = tiles[0].shape[-1]
            left = [t[..., 0 : n - n % 2 : 2] for t in tiles]
            right = [t[..., 1::2] for t in tiles]
            joined = combine(frame, left, right)
            tiles = [torch.cat((j, t[..., -1:]), -1) if n % 2 else j for j, t in zip(joined, tiles, strict=True)]
        for slot, tile in zip(op.results, tiles, strict=True):
            env[slot] = tile[..., 0]

    return step


def bind_scan(op: ir.Op, body: Block, module: ir.Module) -> Step:
    combine, axis, reverse = _Combine(op, body), op.attrs["dim"] + 1, op.attrs["reverse"]

    def step(frame: Frame) -> None:
        env = frame.env
        tiles = [t.movedim(axis, -1) for t in equal_lanes(*(env[v] for v in op.operands))]
        if reverse:
            tiles = [t.flip(-1) for t in tiles]
        reach, n = 1, tiles[0].shape[-1]
        while reach < n:
            later = [t[..., reach:] for t in tiles]
            earlier = [t[..., :-reach] for t in tiles]
            joined = combine(frame, earlier, later)
            tiles = [torch.cat((t[..., :reach], j), -1) for t, j in zip(tiles, joined, strict=True)]
            reach *= 2
        if reverse:
            tiles = [t.flip(-1) for t in tiles]
        for slot, tile in zip(op.results, tiles, strict=True):
            env[slot] = tile.movedim(-1, axis)

    return step
