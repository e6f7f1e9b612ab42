"""Honest kernels with one thing changed in their Tile IR, drawn by hypothesis: what nobody would think of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from evaluator.tileir import ir
from evaluator.tileir.ir import Op

PREDICATES = ("equal", "not_equal", "less_than", "less_than_or_equal", "greater_than", "greater_than_or_equal")
OTHERS = {
    "addf": "subf", "subf": "addf", "mulf": "addf", "divf": "mulf", "maxf": "minf", "minf": "maxf", "addi": "subi",
    "subi": "addi", "muli": "addi", "maxi": "mini", "mini": "maxi", "andi": "ori", "ori": "andi", "exp": "exp2",
    "exp2": "exp",
}  # fmt: skip
LEAVES = frozenset({"yield", "continue", "break", "return"})
Draw = Callable[[st.SearchStrategy[Any]], Any]


def _places(region: ir.Region, known: tuple[tuple[int, ir.Type], ...] = ()) -> Iterator[tuple[Op, Any]]:
    """Every operation with the values, and their types, that are known where it stands."""
    known = (*known, *zip(region.arguments, region.argument_types, strict=True))
    for op in region.ops:
        yield op, known
        for inner in op.regions:
            yield from _places(inner, known)
        known = (*known, *zip(op.results, op.result_types, strict=True))


def _changes(op: Op, known: Any) -> Iterator[tuple[str, Callable[[Draw], Op | None]]]:
    """The ways to change the operation: a word for each, and what then stands there (None: nothing)."""
    if "predicate" in op.attrs:
        others = [p for p in PREDICATES if p != op.attrs["predicate"]]
        yield "another comparison", lambda draw: _with(op, predicate=draw(st.sampled_from(others)))
    if op.name == "constant" and op.attrs["value"].raw is None and isinstance(op.attrs["value"].values, int | float):
        yield "another constant", lambda draw: _with(op, value=_constant(draw, op.attrs["value"]))
    if op.name in OTHERS:
        yield "another operation", lambda draw: replace(op, name=OTHERS[op.name])
    if len(op.operands) > 1 and op.operand_types[-1] == op.operand_types[-2]:
        swapped = (*op.operands[:-2], op.operands[-1], op.operands[-2])
        yield "operands change places", lambda draw: replace(op, operands=swapped)
    for k, (value, kind) in enumerate(zip(op.operands, op.operand_types, strict=True)):
        like = [v for v, other in known if other == kind and v != value]
        if like and not isinstance(kind, ir.TokenType):
            yield "another operand", lambda draw, k=k, like=like: _operand(op, k, draw(st.sampled_from(like)))
    if not op.results and op.name not in LEAVES and not op.regions:
        yield "left out", lambda draw: None
    if "store" in op.name and op.name not in LEAVES:
        yield "left out", lambda draw: None
    if op.attrs.get("semantics", "weak") != "weak":
        orders = ("relaxed", "acquire", "release")
        yield "another order", lambda draw: _with(op, semantics=draw(st.sampled_from(orders)))


def _with(op: Op, **attrs: Any) -> Op:
    return replace(op, attrs={**op.attrs, **attrs})


def _constant(draw: Draw, value: ir.Dense) -> ir.Dense:
    if value.bits or isinstance(value.values, bool):
        return replace(value, values=0)
    by = draw(st.sampled_from((1, -1, 3))) if isinstance(value.values, int) else draw(st.sampled_from((1.05, 0.5, 0.0)))
    return replace(value, values=value.values + by if isinstance(by, int) else value.values * by)


def _operand(op: Op, k: int, value: int) -> Op:
    return replace(op, operands=(*op.operands[:k], value, *op.operands[k + 1 :]))


def _rewritten(region: ir.Region, old: Op, new: Op | None) -> ir.Region:
    ops = []
    for op in region.ops:
        if op is old:
            ops += [] if new is None else [new]
        else:
            inner = tuple(_rewritten(r, old, new) for r in op.regions)
            ops.append(
                op if all(a is b for a, b in zip(inner, op.regions, strict=True)) else replace(op, regions=inner)
            )
    if len(ops) == len(region.ops) and all(a is b for a, b in zip(ops, region.ops, strict=True)):
        return region
    return replace(region, ops=tuple(ops))


@st.composite
def mutants(draw: Draw, module: ir.Module) -> tuple[str, ir.Module]:
    """(what was changed, the module)."""
    places = [(op, known, c) for op, known in _places(module.body) for c in _changes(op, known)]
    op, _, (word, change) = draw(st.sampled_from(places))
    new = change(draw)
    where = module.location(op)
    said = f"{word}: {op.name} at line {where.line if where else '?'}: {op.operands} -> {new and new.operands}"
    if new is not None and new.attrs != op.attrs:
        said += f" { ({k: v for k, v in new.attrs.items() if op.attrs.get(k) != v}) }"
    return said, replace(module, body=_rewritten(module.body, op, new))
