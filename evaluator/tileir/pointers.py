"""Element-wise access by address: gathers and scatters that stay inside the allocations the addresses derive from.

Addresses are bytes; for packed 4-bit elements they are half bytes (twice the byte address, plus one for the high
nibble).  Elements that are masked out are never looked at: their addresses may be anything.  An active address outside
its allocation is reported to the sanitizer, reads as zero and is not written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from . import ir
from .machine import Frame
from .memory import MEMORY_BITS, SPACE_BITS, Allocation, memory_dtype


@dataclass(frozen=True, eq=False, slots=True)
class Hit:
    """Accesses to one allocation: element ``index`` of its flat view where ``active``; both of the access' shape."""

    allocation: Allocation
    flat: Tensor
    index: Tensor
    active: Tensor | None  # None: all


def resolve(frame: Frame, op: ir.Op, address: Tensor, mask: Tensor | None, elem: str, access: str) -> Iterator[Hit]:
    """The allocations that the active addresses lie in; what lies nowhere is reported and left out.

    ``access`` is read, write or atomic; the sanitizer sees each target with it.
    """
    run = frame.run
    halves = MEMORY_BITS[elem] < 8
    if mask is not None:
        address, mask = torch.broadcast_tensors(address, mask)
        if mask.all():
            mask = None
    chosen = address if mask is None else address[mask]
    if not chosen.numel():
        return
    space = SPACE_BITS + (1 if halves else 0)
    low, high = (int(x) for x in torch.aminmax(chosen))
    for window in [low >> space] if low >> space == high >> space else torch.unique(chosen >> space).tolist():
        allocation = run.memory.owner(window << SPACE_BITS)
        here = mask
        if low >> space != high >> space:
            here = (address >> space) == window if mask is None else mask & ((address >> space) == window)
        if allocation is None:
            _stray(frame, op, address, here, "an address that derives from no allocation", access)
            continue
        flat = allocation.flat(memory_dtype(elem))
        size = flat.element_size()
        relative = address - (allocation.base * 2 if halves else allocation.base)
        index = relative if halves else relative >> (size.bit_length() - 1)
        limit = flat.numel() * 2 if halves else flat.numel()
        outside = (index < 0) | (index >= limit)
        if here is not None:
            outside &= here
        if outside.any():
            _stray(frame, op, index, outside, f"element outside {_name(allocation)} of {limit} elements", access)
            here = ~outside if here is None else here & ~outside
            if not here.any():
                continue
        if run.watcher is not None:
            if (
                not halves
                and size > 1
                and bool(((relative & (size - 1) != 0) & (True if here is None else here)).any())
            ):
                run.watcher.report(frame, op, "misaligned", f"an address that is no multiple of {size} bytes", None)
            run.watcher.elements(frame, op, allocation, index >> 1 if halves else index, here, size, access)
        yield Hit(allocation, flat, index, here)


def _name(allocation: Allocation) -> str:
    return repr(allocation.name) if allocation.name else f"allocation {allocation.index}"


def _stray(frame: Frame, op: ir.Op, index: Tensor, where: Tensor | None, message: str, access: str) -> None:
    if frame.run.watcher is not None:
        frame.run.watcher.stray(frame, op, index, where, message, access)


def gather(frame: Frame, op: ir.Op, address: Tensor, mask: Tensor | None, elem: str) -> Tensor:
    """The elements at ``address`` in their memory dtype (codes of 4-bit elements one a byte); zero where masked."""
    shape = address.shape if mask is None else torch.broadcast_shapes(address.shape, mask.shape)
    out: Tensor | None = None
    for target in resolve(frame, op, address, mask, elem, "read"):
        index = target.index if target.active is None else torch.where(target.active, target.index, 0)
        if MEMORY_BITS[elem] < 8:
            values = (target.flat.take(index >> 1) >> ((index & 1) * 4).to(torch.uint8)) & 15
        else:
            values = target.flat.take(index)
        if target.active is not None:
            values = torch.where(target.active, values, torch.zeros((), dtype=values.dtype))
        out = values if out is None else torch.where(target.active, values, out)  # type: ignore[arg-type]
    return torch.zeros(shape, dtype=memory_dtype(elem)) if out is None else out


def scatter(frame: Frame, op: ir.Op, address: Tensor, mask: Tensor | None, values: Tensor, elem: str) -> None:
    """Writes ``values`` (memory dtype) to ``address``; among equal addresses the last in row-major order wins."""
    shapes = (address.shape, values.shape) if mask is None else (address.shape, values.shape, mask.shape)
    shape = torch.broadcast_shapes(*shapes)
    address, values = address.expand(shape), values.expand(shape)
    for target in resolve(frame, op, address, mask, elem, "write"):
        active = target.active
        index = target.index.reshape(-1) if active is None else target.index[active]
        chosen = values.reshape(-1) if active is None else values[active]
        if MEMORY_BITS[elem] < 8:
            for nibble in (0, 1):
                here = (index & 1) == nibble
                at, shift = index[here] >> 1, 4 * nibble
                kept = target.flat[at] & (0xF0 if nibble == 0 else 0x0F)
                target.flat[at] = kept | ((chosen[here] & 15) << shift)
        else:
            target.flat.scatter_(0, index, chosen)
