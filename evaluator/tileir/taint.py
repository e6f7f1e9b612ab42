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
from .slicing import LOOPS, STORES, stored

_LOOKING = MASKING | TILES.keys() | LOADS | STORES | PARTIAL | ATOMIC_OPS.keys()  # their taints depend on values
_SILENT = frozenset({"print_tko", "assert"})


def tainted(module: ir.Module) -> ir.Module:
    """The module with taints beside its values."""
    writer = _Writer(module)
    body = writer.region(module.body, ())
    return replace(module, body=body, names=(*module.names, *(f"taint {k}" for k in range(len(writer.taints)))))


def _shape(kind: ir.Type) -> tuple[int, ...] | None:
    return kind.shape if isinstance(kind, ir.TileType) else None


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
                if op.name != "if":
                    first, offset = (3, 1) if op.name == "for" else (0, 0)
                    for k, start in enumerate(op.operands[first:]):
                        if start in self.suspects:
                            self.suspects.add(op.regions[0].arguments[k + offset])
                            self.suspects |= {op.results[k]} if op.name == "for" else set()
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
        return partial or op.name in LOADS or (op.name in ATOMIC_OPS)

    def handed(self, op: ir.Op, inside: tuple[ir.Op, ...]) -> list[tuple[int, tuple[int, ...]]]:
        """A terminator's operands, each with the values that it becomes."""
        if op.name == "return" or not inside:
            return []
        if op.name == "yield":
            return [(v, (r,)) for v, r in zip(op.operands, inside[-1].results, strict=True)]
        loop = next(outer for outer in reversed(inside) if outer.name != "if")
        arguments = loop.regions[0].arguments[1 if loop.name == "for" else 0 :]
        if op.name == "break":
            return [(v, (r,)) for v, r in zip(op.operands, loop.results, strict=True)]
        both = zip(op.operands, arguments, loop.results if loop.name == "for" else arguments, strict=True)
        return [(v, (a, r)) for v, a, r in both]

    # ------------------------------------------------------------------------------------------ what is written

    def taint(self, value: int) -> int:
        """The slot of the value's taint."""
        return self.taints.setdefault(value, len(self.module.names) + len(self.taints))

    def region(self, region: ir.Region, inside: tuple[ir.Op, ...]) -> ir.Region:
        ops: list[ir.Op] = []
        for op in region.ops:
            if op.name in TERMINATORS:
                more = [v for v, to in self.handed(op, inside) if any(t in self.suspects for t in to)]
                ops.append(self.extended(op, op.operands, more, ops))
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
        values = tuple(
            v if op.name in _LOOKING and self.is_looked_at(op, k) else None for k, v in enumerate(op.operands)
        )
        taints = tuple(self.taint(v) if v in self.suspects else None for v in op.operands)
        outside = tuple(self.taint(v) for v in self.read(op)[len(op.operands) :] if v in self.suspects)
        tiles = [(r, _shape(k)) for r, k in zip(op.results, op.result_types, strict=True) if r in self.suspects]
        return ir.Op(
            "taint",
            tuple(self.taint(r) for r, _ in tiles),
            tuple(v for v in (*values, *taints, *outside) if v is not None),
            {"of": op, "values": values, "taints": taints, "outside": outside},
            (),
            tuple(ir.TileType(shape or (), "i8") for _, shape in tiles),
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
            given = {"of": op, "values": (), "taints": taints, "outside": ()}
            ops.append(ir.Op("taint_looked_at", (), taints, given, (), (), loc=op.loc))

    def extended(self, op: ir.Op, operands: Sequence[int], more: Sequence[int], ops: list[ir.Op]) -> ir.Op:
        """``op`` with these operands and the taints of ``more`` behind them; clean ones are made before it."""
        kinds = dict(zip(op.operands, op.operand_types, strict=True))
        slots = []
        for value in more:
            if value in self.suspects:
                slots.append(self.taint(value))
            else:
                slots.append(self.taint(-1 - len(self.taints)))
                kind = ir.TileType(_shape(kinds[value]) or (), "i8")
                ops.append(ir.Op("taint_clean", (slots[-1],), (), {}, (), (kind,), loc=op.loc))
        types = tuple(ir.TileType(_shape(kinds[value]) or (), "i8") for value in more)
        return replace(op, operands=(*operands, *slots), operand_types=(*op.operand_types, *types))

    def control(self, op: ir.Op, inside: tuple[ir.Op, ...], ops: list[ir.Op]) -> ir.Op:
        first = {"if": 1, "for": 3, "loop": 0}[op.name]
        self.look(op, op.operands[:first], ops)
        if op.name != "if":
            body, offset = op.regions[0], 1 if op.name == "for" else 0
            carried = body.arguments[offset:]
            also = op.results if op.name == "for" else carried
            wanted = [k for k, pair in enumerate(zip(carried, also, strict=True)) if self.suspects & {*pair}]
            op = self.extended(op, op.operands, [op.operands[first + k] for k in wanted], ops)
            kinds = tuple(ir.TileType(_shape(body.argument_types[offset + k]) or (), "i8") for k in wanted)
            arguments = (*body.arguments, *(self.taint(carried[k]) for k in wanted))
            body = self.region(
                replace(body, arguments=arguments, argument_types=(*body.argument_types, *kinds)), (*inside, op)
            )
            regions: tuple[ir.Region, ...] = (body,)
        else:
            regions = tuple(self.region(inner, (*inside, op)) for inner in op.regions)
        results = [(r, k) for r, k in zip(op.results, op.result_types, strict=True) if r in self.suspects]
        return replace(
            op,
            regions=regions,
            results=(*op.results, *(self.taint(r) for r, _ in results)),
            result_types=(*op.result_types, *(ir.TileType(_shape(k) or (), "i8") for _, k in results)),
        )
