"""What a kernel asks of sizes: comparisons and remainders inside its Tile IR, as conditions on a task's dimensions.

A ``launch`` that asks leaves a guard; a kernel that asks leaves nothing in the plan, and goes two ways all the same,
and so does a ``launch`` that takes a minimum.
Sizes on both sides of each condition are judged (:mod:`.sizes`).  Block numbers count as the last block's: a kernel
that does something else from block 200 on does so where the grid is larger.

Nor does a kernel ask that takes a row of 768 for one tile of 1,024, or walks 26 tiles of 32 where there are 24: it is
right up to there.  What its tiles hold, once or as often as a number in it says, are its :func:`capacities`.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping

from evaluator.kernel import Kernel
from evaluator.tileir import TileIRError, ir
from kernels_generated.runtime.expr import Expr, ExprError, build, symbols
from kernels_generated.runtime.plan import ArrayParameter, Guard, Launch, LaunchPlan

MOST = 200  # conditions of a plan; a kernel that asks more is not asked about all
MULTIPLE = 512  # a guard may want a multiple of as much
LARGEST = 2000  # characters of an expression's text: longer ones grow without bound in unrolled code

_COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less_than": "<", "less_than_or_equal": "<=", "greater_than": ">",
    "greater_than_or_equal": ">=",
}  # fmt: skip
_ARITHMETIC = {"addi": "+", "subi": "-", "muli": "*", "mini": "min", "maxi": "max", "remi": "mod"}
_SAME = frozenset({"assume", "exti", "trunci"})


def conditions(plan: LaunchPlan, kernels: Mapping[str, bytes]) -> tuple[Guard, ...]:
    """The conditions of the plan's kernels on dimensions, each once, in the order in which kernels have them.

    Before a kernel's come those of its launch: the minima and maxima in its grid and its scalars.
    """
    found: dict[Guard, None] = {}
    for step in plan.steps:
        if isinstance(step, Launch):
            passed = [p.value for p in step.parameters if not isinstance(p, ArrayParameter)]
            for e in (*step.grid, *(e for e in passed if not isinstance(e, float | bool))):
                found |= dict.fromkeys(_turns(e))
            try:
                module = Kernel.of(kernels[step.kernel]).module
            except TileIRError:  # whoever runs it says so
                continue
            for guard in _Reader(plan, step, module).conditions:
                found[guard] = None
                if len(found) == MOST:
                    return tuple(found)
    return tuple(found)


def capacities(plan: LaunchPlan, kernels: Mapping[str, bytes], sizes: Mapping[str, int]) -> tuple[Guard, ...]:
    """What holds at ``sizes`` and may be all that the plan's kernels reach: an extent is no longer than some tiles.

    As many tiles as a loop has turns or a grid has blocks, where that is a number; else one.
    """
    found: dict[Guard, None] = {}
    for step in plan.launches:
        try:
            module = Kernel.of(kernels[step.kernel]).module
        except TileIRError:  # whoever runs it says so
            continue
        for extent, reached in _Reader(plan, step, module).reached():
            guard = Guard("<=", extent, reached)
            if symbols(extent) and symbols(extent) <= set(sizes) and reached > 1 and guard.holds(sizes):
                found[guard] = None
    return tuple(guard for guard in found if _serves_more(plan, guard))


def _serves_more(plan: LaunchPlan, capacity: Guard) -> bool:
    """Whether the plan's guards leave sizes beyond a capacity to it, where that is the capacity of one dimension."""
    if not isinstance(capacity.left, str) or not isinstance(capacity.right, int):
        return True
    mine = [g for g in plan.guards if symbols(g.left) | symbols(g.right) == {capacity.left}]
    beyond = ({capacity.left: capacity.right + more} for more in range(1, MULTIPLE + 1))
    return any(all(guard.holds(at) for guard in mine) for at in beyond)


def _turns(e: Expr) -> Iterator[Guard]:
    """Where a minimum or maximum inside an expression changes from one side to the other."""
    if isinstance(e, tuple):
        op, a, b = e
        if op in ("min", "max") and symbols(a) | symbols(b):
            yield Guard("<=", a, b)
        yield from _turns(a)
        yield from _turns(b)


class _Reader:
    """One kernel's integers as expressions of dimensions, as far as they are any; ``conditions``: what it asks."""

    def __init__(self, plan: LaunchPlan, launch: Launch, module: ir.Module) -> None:
        self.grid = launch.grid
        # An extent of an array, and that of the tiles that are cut out of it.
        self.windows: dict[tuple[Expr, int], None] = {}
        self.arrays: dict[Expr, None] = {}  # extents of arrays, and how many elements they have
        self.points: set[int] = set()  # extents of tiles that are gathered or scattered
        self.counts: set[int] = {1}  # how many tiles there may be one after another: turns of loops, blocks, positions
        self.counts |= {n for n in launch.grid if isinstance(n, int)}
        self.offsets: set[int] = set()  # whole numbers in the text: where a tile of points may begin
        self.known: dict[int, Expr] = {}
        self.shapes: dict[int, list[Expr | None]] = {}  # of views: tensors' sizes, or how many tiles there are
        words: list[Expr | None] = []
        for parameter in launch.parameters:
            if isinstance(parameter, ArrayParameter):
                view = plan.views[parameter.view]
                self.arrays |= dict.fromkeys((*view.shape, functools.reduce(lambda a, b: build("*", a, b), view.shape)))
                words += [None, *view.shape, *view.strides]
            else:
                value = parameter.value
                words.append(None if isinstance(value, float | bool) else value)
        for slot, word in zip(module.body.arguments, words, strict=False):
            self.learn(slot, word)
        self.conditions = list(self.walk(module.body))

    def learn(self, slot: int, value: Expr | None) -> None:
        if value is not None and len(str(value)) <= LARGEST:
            self.known[slot] = value

    def walk(self, region: ir.Region) -> Iterator[Guard]:
        """Learns what the operations make, in their order, and yields what they ask."""
        for op in region.ops:
            yield from self.condition(op)
            with contextlib.suppress(ExprError, ZeroDivisionError):  # of a value that no size has nothing is known
                self.read(op)
            for inner in op.regions:
                if op.name == "for" and op.operands[1] in self.known:
                    self.count(self.known[op.operands[1]])
                    self.learn(inner.arguments[0], build("-", self.known[op.operands[1]], 1))
                yield from self.walk(inner)

    def count(self, value: Expr | None) -> None:
        if isinstance(value, int) and value > 1:
            self.counts.add(value)

    def reached(self) -> Iterator[tuple[Expr, int]]:
        """(an extent of an array, how much of it tiles cover: one, or as many as a number in the kernel)."""
        for count in self.counts:
            for extent, tile in self.windows:
                yield extent, tile * count
            for points in self.points:
                for extent in self.arrays:
                    yield extent, points * count
        for begin in self.offsets:
            for points in self.points:
                for extent in self.arrays:
                    yield extent, begin + points

    def condition(self, op: ir.Op) -> Iterator[Guard]:
        a, b = (self.known.get(v) for v in op.operands[:2]) if len(op.operands) > 1 else (None, None)
        if a is None or b is None or not symbols(a) | symbols(b):
            return
        if op.name == "cmpi":
            yield Guard(_COMPARISONS[op.attrs["predicate"]], a, b)
        elif op.name in ("mini", "maxi"):
            yield Guard("<=", a, b)
        elif op.name == "remi" and b != 0:
            yield Guard("==", build("mod", a, b), 0)

    def read(self, op: ir.Op) -> None:
        """Learns what ``op`` makes."""
        name, operands = op.name, op.operands
        values = [self.known.get(v) for v in operands]
        if name in ("load_view_tko", "store_view_tko"):
            for value in values:
                self.count(value + 1 if isinstance(value, int) else None)
        elif name in ("load_ptr_tko", "store_ptr_tko"):
            extents = op.operand_types[0].shape if isinstance(op.operand_types[0], ir.TileType) else ()
            self.points |= {*extents, math.prod(extents)}
        if name == "constant":
            literal = op.attrs["value"].values
            if isinstance(literal, int) and not isinstance(literal, bool) and not op.attrs["value"].bits:
                self.learn(op.results[0], literal)
                self.offsets.add(literal)
        elif name in _SAME:
            self.learn(op.results[0], values[0])
        elif name in _ARITHMETIC or name == "divi":
            a, b = values
            if a is not None and b is not None:
                kind = "cdiv" if op.attrs.get("rounding") == "positive_inf" else "fdiv"
                self.learn(op.results[0], build(_ARITHMETIC.get(name, kind), a, b))
        elif name == "get_num_tile_blocks":
            for slot, size in zip(op.results, self.grid, strict=True):
                self.learn(slot, size)
        elif name == "get_tile_block_id":
            for slot, size in zip(op.results, self.grid, strict=True):
                self.learn(slot, build("-", size, 1))
        elif name == "make_tensor_view":
            dynamic = iter(values[1:])
            self.shapes[op.results[0]] = [s if s is not None else next(dynamic) for s in op.attrs["shape"]]
        elif operands and operands[0] in self.shapes:
            self.read_view(op, self.shapes[operands[0]])

    def read_view(self, op: ir.Op, shape: list[Expr | None]) -> None:
        kind = op.result_types[0]
        if isinstance(kind, ir.TileViewType):
            extents = [shape[d] for d in kind.dim_map]
            steps = kind.traversal if kind.kind == "strided" else kind.tile
            self.windows |= {(e, n): None for e, n in zip(extents, kind.tile, strict=True) if e is not None}
            self.shapes[op.results[0]] = [
                None if e is None else build("cdiv", e, s) for e, s in zip(extents, steps, strict=True)
            ]
        elif op.name in ("get_tensor_shape", "get_index_space_shape"):
            for slot, size in zip(op.results, shape, strict=True):
                self.learn(slot, size)
