"""Which parameters' memory a kernel may write, and whether it synchronises blocks: facts read off the module."""

from __future__ import annotations

import math
from collections.abc import Mapping

from . import ir

# Atomics of more elements than this accumulate data; locks, flags and counters are smaller.
SYNC_ELEMENTS = 64
_WRITERS = {
    "store_view_tko": 1, "store_ptr_tko": 0, "atomic_rmw_tko": 0, "atomic_cas_tko": 0, "atomic_red_view_tko": 0,
}  # operation: which operand is the pointer or view  # fmt: skip
_READERS = {
    "load_view_tko": 0, "load_ptr_tko": 0, "atomic_rmw_tko": 0, "atomic_cas_tko": 0, "atomic_red_view_tko": 0,
}  # fmt: skip
_ANYWHERE = frozenset({-1})  # the root of pointers that come out of memory or integers
_LOADED = frozenset({"load_ptr_tko", "load_view_tko", "int_to_ptr", "for", "loop", "if", "reduce", "scan"})
_SYNCHRONISING = frozenset({"acquire", "release", "acq_rel"})
_ORDERED = frozenset({"atomic_rmw_tko", "atomic_cas_tko", "atomic_red_view_tko", "load_ptr_tko", "store_ptr_tko",
                      "load_view_tko", "store_view_tko"})  # fmt: skip


def _addresses(kind: ir.Type) -> bool:
    if isinstance(kind, ir.TileType):
        return isinstance(kind.elem, ir.PtrElem)
    return isinstance(kind, ir.TensorViewType | ir.TileViewType)


def written_parameters(module: ir.Module) -> frozenset[int] | None:
    """Positions of the pointer parameters that stores and atomics may reach; None: any memory."""
    return _reached(module, _WRITERS)


def read_parameters(module: ir.Module) -> frozenset[int] | None:
    """Positions of the pointer parameters that loads and atomics may reach; None: any memory."""
    return _reached(module, _READERS)


def _reached(module: ir.Module, accesses: Mapping[str, int]) -> frozenset[int] | None:
    """``accesses``: by operation, which operand is the pointer or view."""
    roots: dict[int, frozenset[int]] = {
        slot: frozenset({k}) for k, slot in enumerate(module.body.arguments) if _addresses(module.args[k])
    }
    reached: set[int] = set()

    def visit(region: ir.Region) -> None:
        for slot, kind in zip(region.arguments, region.argument_types, strict=True):
            if _addresses(kind):
                roots.setdefault(slot, _ANYWHERE)
        for op in region.ops:
            if op.name in accesses:
                reached.update(roots.get(op.operands[accesses[op.name]], _ANYWHERE))
            for result, kind in zip(op.results, op.result_types, strict=True):
                if _addresses(kind):
                    roots[result] = _root(op, roots)
            for inner in op.regions:
                visit(inner)

    visit(module.body)
    return None if -1 in reached else frozenset(reached)


def _root(op: ir.Op, roots: dict[int, frozenset[int]]) -> frozenset[int]:
    if op.name == "get_global":
        return frozenset()
    if op.name in _LOADED:
        return _ANYWHERE
    sources = [roots[v] for v, kind in zip(op.operands, op.operand_types, strict=True) if _addresses(kind)]
    return frozenset().union(*sources) if sources else _ANYWHERE


def synchronises(region: ir.Region) -> bool:
    """Whether an atomic or ordered access of at most SYNC_ELEMENTS elements a tile acquires or releases."""
    for op in region.ops:
        if op.name in _ORDERED and op.attrs["semantics"] in _SYNCHRONISING:
            kinds = (*op.operand_types, *op.result_types)
            if max(math.prod(k.shape) for k in kinds if isinstance(k, ir.TileType)) <= SYNC_ELEMENTS:
                return True
        if any(synchronises(inner) for inner in op.regions):
            return True
    return False


def waits(region: ir.Region, in_loop: bool = False) -> bool:
    """Whether a ``loop`` may wait for another block: it holds an atomic or a load that is not weak."""
    return any(
        (in_loop and op.name in _ORDERED and op.attrs["semantics"] != "weak")
        or any(waits(inner, in_loop or op.name == "loop") for inner in op.regions)
        for op in region.ops
    )
