"""Atomic operations: each element of a tile is a transaction of its own, in the order of lanes and elements.

Equal addresses therefore accumulate, and each element gets the value that stood there just before it.  Elements are
applied in *rounds*: the first occurrence of every address together, then the second, and so on, so the usual case of
different addresses costs one vectorised read, compute, write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import ir
from .machine import Frame, Step
from .memory import memory_dtype
from .ops_shape import tile_type
from .pointers import resolve
from .tiles import addresses_of

_SIGN_BIT = {torch.int8: -(1 << 7), torch.int16: -(1 << 15), torch.int32: -(1 << 31), torch.int64: -(1 << 63)}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _unsigned(choose: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def apply(a: Tensor, b: Tensor) -> Tensor:
        flip = _SIGN_BIT[a.dtype]  # flipping the sign bit turns unsigned order into signed order
        return choose(a ^ flip, b ^ flip) ^ flip

    return apply


def _add_float(a: Tensor, b: Tensor) -> Tensor:
    return (a.to(torch.float32) + b.to(torch.float32)).to(a.dtype) if a.dtype.itemsize < 4 else a + b


MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "add": torch.add,
    "addf": _add_float,
    "max": torch.maximum,
    "min": torch.minimum,
    "umax": _unsigned(torch.maximum),
    "umin": _unsigned(torch.minimum),
    "xchg": lambda old, new: new,
}


def rounds(index: Tensor) -> list[Tensor]:
    """Positions of ``index`` (1-d) in groups without equal values; occurrence k of a value is in group k."""
    count = index.numel()
    if count <= 1:
        return [torch.arange(count)]
    order = torch.argsort(index, stable=True)
    sorted_ = index[order]
    fresh = torch.ones(count, dtype=torch.bool)
    fresh[1:] = sorted_[1:] != sorted_[:-1]
    if bool(fresh.all()):
        return [torch.arange(count)]
    place = torch.arange(count)
    first = torch.where(fresh, place, 0).cummax(0).values
    rank = place - first
    by_rank = torch.argsort(rank, stable=True)
    sizes = torch.bincount(rank).tolist()
    return [order[part] for part in by_rank.split(sizes)]


def apply(
    flat: Tensor, index: Tensor, values: Sequence[Tensor], update: Callable[..., Tensor], wanted: bool
) -> Tensor | None:
    """``flat[index] = update(old, *values)`` element by element; the old values in order, if ``wanted``."""
    old = torch.empty(index.shape, dtype=flat.dtype) if wanted else None
    for at in rounds(index):
        where = index[at]
        before = flat[where]
        flat[where] = update(before, *(v[at] for v in values))
        if old is not None:
            old[at] = before
    return old


def transact(
    frame: Frame,
    op: ir.Op,
    address: Tensor,
    mask: Tensor | None,
    operands: Sequence[Tensor],
    update: Callable[..., Tensor],
    elem: str,
    masked: Tensor | None,
) -> Tensor:
    """Runs the transactions of all lanes and returns the old values (``masked``, or zero, where masked out)."""
    lanes = len(frame.ids)
    shape = torch.broadcast_shapes(
        address.shape, *(v.shape for v in operands), *(() if mask is None else (mask.shape,))
    )
    shape = torch.Size((lanes, *shape[1:]))
    address = address.expand(shape)
    dtype = memory_dtype(elem)
    spread = [v.to(dtype) if v.dtype == torch.bool else v for v in operands]
    spread = [v.expand(shape) for v in spread]
    out = torch.zeros(shape, dtype=dtype) if masked is None else masked.expand(shape).clone()
    for target in resolve(frame, op, address, mask, elem, "atomic"):
        active = target.active
        pick = (lambda t: t.reshape(-1)) if active is None else (lambda t, a=active: t[a])  # type: ignore[misc]
        old = apply(target.flat, pick(target.index), [pick(v) for v in spread], update, True)
        assert old is not None
        if active is None:
            out = old.reshape(shape)
        else:
            out[active] = old
    return out


def _bind_rmw(op: ir.Op) -> Step:
    pointer, value, *rest = op.operands
    mask = rest[0] if rest else None
    update = MODES[op.attrs["mode"]]
    elem = str(tile_type(op.operand_types[1]).elem)
    result = op.results[0]

    def step(frame: Frame) -> None:
        env = frame.env
        keep = None if mask is None else env[mask]
        env[result] = transact(frame, op, env[pointer], keep, [env[value]], update, elem, None)

    return step


def _swap_equal_bits(old: Tensor, expected: Tensor, new: Tensor) -> Tensor:
    bits = _BITS[old.dtype.itemsize]
    return torch.where(old.view(bits) == expected.view(bits), new, old)


def _bind_cas(op: ir.Op) -> Step:
    pointer, expected, value, *rest = op.operands
    mask = rest[0] if rest else None
    elem = str(tile_type(op.operand_types[1]).elem)
    result = op.results[0]

    def step(frame: Frame) -> None:
        env = frame.env
        keep = None if mask is None else env[mask]
        operands = [env[expected], env[value]]
        env[result] = transact(frame, op, env[pointer], keep, operands, _swap_equal_bits, elem, env[expected])

    return step


def _bind_red_view(op: ir.Op) -> Step:
    view, *indices, value = op.operands
    update = MODES[op.attrs["mode"]]

    def step(frame: Frame) -> None:
        env = frame.env
        address, inside = addresses_of(frame, op, env[view], [env[i] for i in indices])
        transact(frame, op, address, inside, [env[value]], update, env[view].tensor.elem, None)

    return step


ATOMIC_OPS: dict[str, Callable[[ir.Op], Step]] = {
    "atomic_rmw_tko": _bind_rmw,
    "atomic_cas_tko": _bind_cas,
    "atomic_red_view_tko": _bind_red_view,
}
