"""A kernel without its values: what is left says which block writes which element, and computes nothing else.

Stores become *touches* (:mod:`.ops_touch`), atomics whose old value nobody needs as well, but where blocks count (they
take work, or wait for each other) all atomics on integers stay what they are; everything that no address, mask, trip
count or branch round them depends on is left out.  A matrix product's loop over K goes, the loop of a persistent kernel
stays.  Such a module runs over a grid of any size in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from . import ir
from .ops_atomic import ATOMIC_OPS
from .program import TERMINATORS, free_values, walk

STORES = frozenset({"store_view_tko", "store_ptr_tko"})
LOOPS = frozenset({"for", "loop"})


def stores_alone(module: ir.Module) -> ir.Module:
    """The module's stores, and what they need to be made where they are made."""
    slicer = _Slicer()
    while slicer.grown:
        slicer.grown = False
        slicer.mark(module.body, ())
    return replace(module, body=slicer.region(module.body, ()))


class _Slicer:
    """What is needed so far; marking is repeated until nothing is added, as loops hand values round."""

    def __init__(self) -> None:
        self.values: set[int] = set()
        self.ops: set[int] = set()  # by id: operations are compared by identity
        self.grown = True
        self.counting = False  # an atomic is needed with its value: what others do to the counter is, too

    def need(self, values: Sequence[int]) -> None:
        if not self.values.issuperset(values):
            self.values.update(values)
            self.grown = True

    def keep(self, op: ir.Op, operands: Sequence[int]) -> None:
        if id(op) not in self.ops:
            self.ops.add(id(op))
            self.grown = True
        self.need(operands)

    # ------------------------------------------------------------------------------------------ marking

    def mark(self, region: ir.Region, inside: tuple[ir.Op, ...]) -> None:
        """Marks what is needed of ``region``; ``inside``: the control operations round it, the outermost first."""
        for op in reversed(region.ops):
            if op.name in TERMINATORS:
                self.need([v for v, wanted in zip(op.operands, self.passed(op, inside), strict=True) if wanted])
            elif op.name in STORES or op.name in ATOMIC_OPS:
                self.keep(op, op.operands if self.is_whole(op) else _touch(op).operands)
            elif op.name == "if" or op.name in LOOPS:
                self.control(op, inside)
            elif any(r in self.values for r in op.results):
                self.keep(op, [*op.operands, *(v for inner in op.regions for v in free_values(inner))])

    def is_whole(self, op: ir.Op) -> bool:
        """Whether the operation is needed with its value: an atomic whose result is used, or one that counts."""
        if op.name not in ATOMIC_OPS:
            return False
        if op.results[0] in self.values and not self.counting:
            self.counting = self.grown = True
        kind = op.operand_types[stored(op)[0]]
        counts = self.counting and isinstance(kind, ir.TileType) and str(kind.elem).startswith("i")
        return op.results[0] in self.values or counts

    def control(self, op: ir.Op, inside: tuple[ir.Op, ...]) -> None:
        for inner in op.regions:
            self.mark(inner, (*inside, op))
        holds = any(id(o) in self.ops for inner in op.regions for o in walk(inner))
        if not holds and not any(r in self.values for r in op.results) and not self.leaves(op, inside):
            return
        first = operands_before_values(op)
        wanted = self.carried(op) if op.name in LOOPS else ()
        if op.name == "for":  # what it carries is its result, too
            self.need([r for r, w in zip(op.results, wanted, strict=True) if w])
            self.need([a for a, w in zip(op.regions[0].arguments[1:], wanted, strict=True) if w])
        starts = [v for v, w in zip(op.operands[first:], wanted, strict=True) if w] if op.name in LOOPS else []
        self.keep(op, [*op.operands[:first], *starts])

    def leaves(self, op: ir.Op, inside: tuple[ir.Op, ...]) -> bool:
        """Whether blocks leave by ``op`` something that is needed: the kernel, or a loop that is kept."""
        kept = any(outer.name in LOOPS and id(outer) in self.ops for outer in inside)
        ways = _ways_out(op)
        return "return" in ways or (kept and op.name == "if" and bool(ways & {"break", "continue"}))

    def carried(self, op: ir.Op) -> list[bool]:
        """Which of the values that a loop hands round are needed."""
        arguments = op.regions[0].arguments[1 if op.name == "for" else 0 :]
        wanted = [a in self.values for a in arguments]
        if op.name == "for":
            wanted = [w or r in self.values for w, r in zip(wanted, op.results, strict=True)]
        return wanted

    def passed(self, op: ir.Op, inside: tuple[ir.Op, ...]) -> list[bool]:
        """Which of a terminator's operands are needed."""
        if op.name == "return" or not inside:
            return [False] * len(op.operands)
        if op.name == "yield":
            return [r in self.values for r in inside[-1].results]
        loop = next(outer for outer in reversed(inside) if outer.name in LOOPS)
        return self.carried(loop) if op.name == "continue" else [r in self.values for r in loop.results]

    # ------------------------------------------------------------------------------------------ what is left

    def region(self, region: ir.Region, inside: tuple[ir.Op, ...]) -> ir.Region:
        ops: list[ir.Op] = []
        for op in region.ops:
            if op.name in TERMINATORS:
                ops.append(_chosen(op, operands=self.passed(op, inside)))
            elif id(op) not in self.ops:
                continue
            elif op.name in STORES or (op.name in ATOMIC_OPS and not self.is_whole(op)):
                ops.append(_touch(op))
            elif op.name == "if" or op.name in LOOPS:
                ops.append(self.left(op, inside))
            else:
                ops.append(op)
        return replace(region, ops=tuple(ops))

    def left(self, op: ir.Op, inside: tuple[ir.Op, ...]) -> ir.Op:
        regions = tuple(self.region(inner, (*inside, op)) for inner in op.regions)
        results = [r in self.values for r in op.results]
        if op.name in LOOPS:
            first, wanted = operands_before_values(op), self.carried(op)
            body = regions[0]
            arguments = [True] * (len(body.arguments) - len(wanted)) + wanted
            body = replace(
                body, arguments=_picked(body.arguments, arguments),
                argument_types=_picked(body.argument_types, arguments),
            )  # fmt: skip
            op, regions = _chosen(op, operands=[True] * first + wanted), (body,)
        return replace(_chosen(op, results=results), regions=regions)


def operands_before_values(op: ir.Op) -> int:
    """How many operands stand before those that a loop starts with: bounds and step, or an ``if``'s condition."""
    return {"for": 3, "loop": 0, "if": 1}[op.name]


def _ways_out(op: ir.Op) -> set[str]:
    """How blocks may leave ``op`` otherwise than at its end: break and continue are those of loops round it."""
    found: set[str] = set()
    for region in op.regions:
        for inner in region.ops:
            if inner.name in TERMINATORS:
                found |= {inner.name} - {"yield"}
            elif inner.regions:
                found |= _ways_out(inner)
    return found & {"return"} if op.name in LOOPS else found


def _touch(op: ir.Op) -> ir.Op:
    """The store, or the atomic, without values: array and indices, or pointers and mask."""
    values = stored(op)
    name = {"store_view_tko": "touch_view", "atomic_red_view_tko": "touch_view_atomic"}.get(op.name)
    name = name or ("touch_pointer" if op.name == "store_ptr_tko" else "touch_pointer_atomic")
    rest = [k not in values for k in range(len(op.operands))]
    return replace(_chosen(op, operands=rest, results=[False] * len(op.results)), name=name)


def stored(op: ir.Op) -> tuple[int, ...]:
    """Which operands of a store or an atomic are what is stored."""
    return {
        "store_view_tko": (0,), "store_ptr_tko": (1,), "atomic_rmw_tko": (1,), "atomic_cas_tko": (1, 2),
        "atomic_red_view_tko": (len(op.operands) - 1,),
    }[op.name]  # fmt: skip


def _chosen(op: ir.Op, operands: Sequence[bool] | None = None, results: Sequence[bool] | None = None) -> ir.Op:
    if operands is not None:
        op = replace(op, operands=_picked(op.operands, operands), operand_types=_picked(op.operand_types, operands))
    if results is not None:
        op = replace(op, results=_picked(op.results, results), result_types=_picked(op.result_types, results))
    return op


def _picked(items: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(item for item, w in zip(items, wanted, strict=True) if w)
