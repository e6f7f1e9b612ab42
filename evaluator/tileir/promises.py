"""Promises a kernel was compiled under, checked against the arguments of a launch: divisibility, bounds, no overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import ir
from .memory import Allocation, Memory
from .program import Program


@dataclass(frozen=True, slots=True)
class PassedArray:
    """An array argument as passed: ``address`` is virtual, ``strides`` count elements of ``itemsize`` bytes.

    ``position`` is that of its pointer among the kernel's parameters; None inside a list.
    """

    name: str
    position: int | None
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def end(self) -> int:
        """The address behind its last element."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.address + (last + 1) * self.itemsize


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that a launch's arguments break.  ``op``: the ``assume`` that made it, where one did."""

    kind: str
    message: str
    op: ir.Op | None = None
    allocation: Allocation | None = None


def broken(
    program: Program, words: Sequence[int | float | bool], arrays: Sequence[PassedArray], memory: Memory
) -> Iterator[Broken]:
    """Arrays beyond their buffers, violated ``assume``s on parameters, and arrays that overlap."""
    arrays = [a for a in arrays if 0 not in a.shape]
    for array in arrays:
        allocation = memory.owner(array.address)
        if allocation is not None and not allocation.base <= array.address <= array.end <= allocation.end:
            message = f"array argument {array.name} reaches beyond its buffer of {allocation.nbytes} bytes"
            yield Broken("view-extent", message, allocation=allocation)
    # The front end itself promises that the stride of an axis of length 1 is aligned: only 0 is multiplied by it.
    idle = {
        array.position + 1 + len(array.shape) + axis
        for array in arrays
        if array.position is not None
        for axis, length in enumerate(array.shape)
        if length == 1
    }
    yield from _assumptions(program, words, idle)
    for i, one in enumerate(arrays):
        for other in arrays[i + 1 :]:
            if (_written(program, one) or _written(program, other)) and shared_byte(one, other) is not None:
                message = f"array arguments {one.name} and {other.name} overlap, and the kernel writes one of them"
                yield Broken("overlap", message, allocation=memory.owner(one.address))


def _assumptions(program: Program, words: Sequence[Any], idle: set[int]) -> Iterator[Broken]:
    """Follows chains of ``assume`` from the parameters; predicates on computed values are no promise of the caller.

    idle: parameters whose value does not matter.
    """
    position = {slot: k for k, slot in enumerate(program.module.body.arguments)}
    for op in program.module.body.ops:
        if op.name != "assume" or op.operands[0] not in position:
            continue
        place = position[op.results[0]] = position[op.operands[0]]
        wrong = _wrong(op.attrs["assume"], int(words[place]))
        if wrong and place not in idle:
            kind = op.operand_types[0]
            pointer = isinstance(kind, ir.TileType) and isinstance(kind.elem, ir.PtrElem)
            what = "address" if pointer else f"value {words[place]}"
            message = f"parameter {place}: its {what} {wrong}, against what the kernel was compiled to assume"
            yield Broken("assumption", message, op)


def _wrong(assumption: ir.Assumption, word: int) -> str:
    if assumption.kind == "div_by" and word % assumption.divisor:
        return f"is not divisible by {assumption.divisor}"
    if assumption.low is not None and word < assumption.low:
        return f"is less than {assumption.low}"
    if assumption.high is not None and word > assumption.high:
        return f"is greater than {assumption.high}"
    return ""


def _written(program: Program, array: PassedArray) -> bool:
    return program.writes is None or array.position in program.writes


def shared_byte(one: PassedArray, other: PassedArray) -> int | None:
    """The first address that elements of both occupy; neither is empty.

    None where there is none: interleaved views (q, k, v of one buffer) have none.
    """
    start, end = min(one.address, other.address), max(one.end, other.end)
    if one.address >= other.end or other.address >= one.end:
        return None
    touched: list[torch.Tensor] = []
    for a in (one, other):
        strides = (*(s * a.itemsize for s in a.strides), 1)
        shape = (1 if s == 0 else n for n, s in zip(a.shape, a.strides, strict=True))  # once is enough
        touched.append(torch.zeros(end - start, dtype=torch.bool))
        torch.as_strided(touched[-1], (*shape, a.itemsize), strides, a.address - start).fill_(True)
    both = touched[0] & touched[1]
    return start + int(torch.nonzero(both)[0]) if bool(both.any()) else None
