"""A kernel that also follows what nobody has made: memory that was never written, padding, undefined results.

A *taint* says of each element of a tile where such a value came in: bits of :data:`.ops_taint.ORIGINS`, or none.
:func:`tainted` gives a module in which an operation ``taint`` stands beside every operation through which taints can
come in or go on (how: :mod:`.ops_taint`), and one beside every branch, loop, view, store and atomic, to look whether it
depends on any.  The values themselves are computed as before.  What memory holds of them is :mod:`.tracker`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from . import ir
from .ops_atomic import ATOMIC_OPS
from .ops_taint import LOADS, MASKING, PARTIAL, TILES
from .program import TERMINATORS, free_values
from .slicing import LOOPS, STORES, operands_before_values, stored

_LOOKING = MASKING | TILES.keys() | LOADS | STORES | PARTIAL | ATOMIC_OPS.keys()  # their taints depend on values
_SILENT = frozenset({"print_tko", "assert"})


def tainted(module: ir.Module) -> ir.Module:
    """The module with taints beside its values."""
    writer = _Writer(module)
    body = writer.region(module.body, ())
    return replace(module, body=body, names=(*module.names, *(f"taint {k}" for k in range(len(writer.taints)))))


def _shape(kind: ir.Type) -> tuple[int, ...] | None:
    return kind.shape if isinstance(kind, ir.TileType) else None


def _of(kind: ir.Type) -> ir.TileType:
    """The type of a tile's taint."""
    return ir.TileType(_shape(kind) or (), "i8")


def _carried(loop: ir.Op) -> list[tuple[int, ...]]:
    """What each value that a loop hands round is called: an argument of its body, and of a ``for`` also its result."""
    if loop.name == "for":
        return list(zip(loop.regions[0].arguments[1:], loop.results, strict=True))
    return [(argument,) for argument in loop.regions[0].arguments]


class _Writer:
    def __init__(self, module: ir.Module):
        self.module = module
        self.suspects: set[int] = set()
        grown = -1
        while grown != len(self.suspects):  # loops hand values round
            grown = len(self.suspects)
            self.mark(module.body, ())
        self.taints: dict[int, int] = {}  # the slot of a value's taint; of -1, -2, … where it is clean

    # ------------------------------------------------------------------------------------------ what may be tainted

    def mark(self, region: ir.Region, inside: tuple[ir.Op, ...]) -> None:
        for op in region.ops:
            if op.name in TERMINATORS:
                self.suspects |= {t for v, to in self.handed(op, inside) if v in self.suspects for t in to}
            elif op.name == "if" or op.name in LOOPS:
                if op.name in LOOPS:
                    starts = op.operands[operands_before_values(op) :]
                    self.suspects |= {v for s, pair in zip(starts, _carried(op), strict=True)
                                      if s in self.suspects for v in pair}  # fmt: skip
                for inner in op.regions:
                    self.mark(inner, (*inside, op))
            elif self.starts(op) or any(v in self.suspects for v in self.read(op)):
                kinds = zip(op.results, op.result_types, strict=True)
                self.suspects |= {r for r, kind in kinds if _shape(kind) is not None}

    def read(self, op: ir.Op) -> tuple[int, ...]:
        """The operands, and what the region of a reduction takes from outside."""
        return (*op.operands, *sorted(v for inner in op.regions for v in free_values(inner)))

    def starts(self, op: ir.Op) -> bool:
        """Whether taints can come in here."""
        partial = op.name in PARTIAL and bool(_shape(op.result_types[0]))
        return partial or op.name in LOADS or op.name in ATOMIC_OPS

    def handed(self, op: ir.Op, inside: tuple[ir.Op, ...]) -> list[tuple[int, tuple[int, ...]]]:
        """A terminator's operands, each with the values that it becomes."""
        if op.name == "return" or not inside:
            return []
        if op.name == "yield":
            return [(v, (r,)) for v, r in zip(op.operands, inside[-1].results, strict=True)]
        loop = next(outer for outer in reversed(inside) if outer.name in LOOPS)
        if op.name == "break":
            return [(v, (r,)) for v, r in zip(op.operands, loop.results, strict=True)]
        return list(zip(op.operands, _carried(loop), strict=True))

    # ------------------------------------------------------------------------------------------ what is written

    def taint(self, value: int) -> int:
        """The slot of the value's taint."""
        return self.taints.setdefault(value, len(self.module.names) + len(self.taints))

    def region(self, region: ir.Region, inside: tuple[ir.Op, ...]) -> ir.Region:
        ops: list[ir.Op] = []
        for op in region.ops:
            if op.name in TERMINATORS:
                more = [v for v, to in self.handed(op, inside) if any(t in self.suspects for t in to)]
                ops.append(self.extended(op, more, ops))
            elif op.name == "if" or op.name in LOOPS:
                ops.append(self.control(op, inside, ops))
            else:
                if op.name == "make_tensor_view":
                    self.look(op, op.operands, ops)
                ops.append(op)
                if self.follows(op):
                    ops.append(self.beside(op))
        return replace(region, ops=tuple(ops))

    def follows(self, op: ir.Op) -> bool:
        if op.name in STORES or op.name in ATOMIC_OPS:
            return True
        return op.name not in _SILENT and any(r in self.suspects for r in op.results)

    def beside(self, op: ir.Op) -> ir.Op:
        """The operation that computes the taint of ``op``'s results, or of the memory that it writes."""
        values = tuple(v if self.is_looked_at(op, k) else None for k, v in enumerate(op.operands))
        taints = tuple(self.taint(v) if v in self.suspects else None for v in op.operands)
        outside = tuple(self.taint(v) for v in self.read(op)[len(op.operands) :] if v in self.suspects)
        tiles = [(r, k) for r, k in zip(op.results, op.result_types, strict=True) if r in self.suspects]
        return ir.Op(
            "taint",
            tuple(self.taint(r) for r, _ in tiles),
            tuple(v for v in (*values, *taints, *outside) if v is not None),
            {"of": op, "values": values, "taints": taints, "outside": outside},
            (),
            tuple(_of(kind) for _, kind in tiles),
            loc=op.loc,
        )

    def is_looked_at(self, op: ir.Op, k: int) -> bool:
        """Whether the rule needs the operand's value: not what is stored, and no token."""
        if op.name not in _LOOKING or isinstance(op.operand_types[k], ir.TokenType):
            return False
        if op.name in TILES:
            return k >= TILES[op.name]
        return not (op.name in STORES and k in stored(op)) and not (op.name == "select" and k > 0)

    def look(self, op: ir.Op, values: Sequence[int], ops: list[ir.Op]) -> None:
        """Before ``op``: whether it depends on taints of these."""
        taints = tuple(self.taint(v) for v in values if v in self.suspects)
        if taints:
            ops.append(ir.Op("taint_looked_at", (), taints, {"of": op, "taints": taints}, (), (), loc=op.loc))

    def extended(self, op: ir.Op, more: Sequence[int], ops: list[ir.Op]) -> ir.Op:
        """``op`` with the taints of ``more``, operands of its own, behind its operands; clean ones are made before."""
        kinds = {v: _of(kind) for v, kind in zip(op.operands, op.operand_types, strict=True)}
        slots = []
        for value in more:
            if value in self.suspects:
                slots.append(self.taint(value))
            else:
                slots.append(self.taint(-1 - len(self.taints)))
                ops.append(ir.Op("taint_clean", (slots[-1],), (), {}, (), (kinds[value],), loc=op.loc))
        types = (*op.operand_types, *(kinds[value] for value in more))
        return replace(op, operands=(*op.operands, *slots), operand_types=types)

    def control(self, op: ir.Op, inside: tuple[ir.Op, ...], ops: list[ir.Op]) -> ir.Op:
        first = operands_before_values(op)
        self.look(op, op.operands[:first], ops)
        regions = op.regions
        if op.name in LOOPS:
            (body,), carried = regions, _carried(op)
            wanted = [k for k, values in enumerate(carried) if self.suspects & {*values}]
            arguments = (*body.arguments, *(self.taint(carried[k][0]) for k in wanted))
            counted = len(body.arguments) - len(carried)
            kinds = (*body.argument_types, *(_of(body.argument_types[counted + k]) for k in wanted))
            regions = (replace(body, arguments=arguments, argument_types=kinds),)
            op = self.extended(op, [op.operands[first + k] for k in wanted], ops)
        regions = tuple(self.region(inner, (*inside, op)) for inner in regions)
        results = [(r, k) for r, k in zip(op.results, op.result_types, strict=True) if r in self.suspects]
        return replace(
            op,
            regions=regions,
            results=(*op.results, *(self.taint(r) for r, _ in results)),
            result_types=(*op.result_types, *(_of(kind) for _, kind in results)),
        )
