"""Which 16-bit loads may deliver float32: those whose every reader would convert them anyway.

A bf16 or f16 value is exact in float32, and the functions of ftof and mmaf take either storage, so widening changes
no result.  It converts a tile once where it is loaded instead of once for every block that reads it.
"""

from __future__ import annotations

from . import ir

_NARROW = frozenset({"bf16", "f16"})
_MOVES = frozenset({"reshape", "permute"})  # pass the storage on as it is
Uses = dict[int, list[tuple[ir.Op, int]]]


def uses_of(region: ir.Region, uses: Uses | None = None) -> Uses:
    """Every use of every value: the operation and which operand."""
    uses = {} if uses is None else uses
    for op in region.ops:
        for place, value in enumerate(op.operands):
            uses.setdefault(value, []).append((op, place))
        for inner in op.regions:
            uses_of(inner, uses)
    return uses


def widens(op: ir.Op, uses: Uses) -> bool:
    """Whether the load ``op`` may deliver its tile as float32."""
    kind = op.result_types[0]
    return isinstance(kind, ir.TileType) and kind.elem in _NARROW and _readers_convert(op.results[0], uses)


def _readers_convert(value: int, uses: Uses) -> bool:
    readers = uses.get(value, [])
    return bool(readers) and all(_converts(op, place, uses) for op, place in readers)


def _converts(op: ir.Op, place: int, uses: Uses) -> bool:
    if op.name == "ftof":
        target = op.result_types[0]
        return isinstance(target, ir.TileType) and target.elem == "f32"
    if op.name == "mmaf":
        return place < 2
    if op.name == "taint":  # looks for zeros alone
        return True
    return op.name in _MOVES and _readers_convert(op.results[0], uses)
