"""What a kernel asks of sizes: comparisons and remainders inside its Tile IR, as conditions on a task's dimensions.

A ``launch`` that asks leaves a guard; a kernel that asks leaves nothing in the plan, and goes two ways all the same,
and so does a ``launch`` that takes a minimum.
Sizes on both sides of each condition are judged (:mod:`.sizes`).  Block numbers count as the last block's: a kernel
that does something else from block 200 on does so where the grid is larger.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from evaluator.kernel import Kernel
from evaluator.tileir import TileIRError, ir
from kernels_generated.runtime.expr import Expr, ExprError, build, symbols
from kernels_generated.runtime.plan import ArrayParameter, Guard, Launch, LaunchPlan

MOST = 200  # conditions of a plan; a kernel that asks more is not asked about all
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
            for guard in _Reader(plan, step, module).conditions(module.body):
                found[guard] = None
                if len(found) == MOST:
                    return tuple(found)
    return tuple(found)


def _turns(e: Expr) -> Iterator[Guard]:
    """Where a minimum or maximum inside an expression changes from one side to the other."""
    if isinstance(e, tuple):
        op, a, b = e
        if op in ("min", "max") and symbols(a) | symbols(b):
            yield Guard("<=", a, b)
        yield from _turns(a)
        yield from _turns(b)


class _Reader:
    """One kernel's integers as expressions of dimensions, as far as they are any."""

    def __init__(self, plan: LaunchPlan, launch: Launch, module: ir.Module) -> None:
        self.grid = launch.grid
        self.known: dict[int, Expr] = {}
        self.shapes: dict[int, list[Expr | None]] = {}  # of views: tensors' sizes, or how many tiles there are
        words: list[Expr | None] = []
        for parameter in launch.parameters:
            if isinstance(parameter, ArrayParameter):
                view = plan.views[parameter.view]
                words += [None, *view.shape, *view.strides]
            else:
                value = parameter.value
                words.append(None if isinstance(value, float | bool) else value)
        for slot, word in zip(module.body.arguments, words, strict=False):
            self.learn(slot, word)

    def learn(self, slot: int, value: Expr | None) -> None:
        if value is not None and len(str(value)) <= LARGEST:
            self.known[slot] = value

    def conditions(self, region: ir.Region) -> Iterator[Guard]:
        for op in region.ops:
            yield from self.condition(op)
            with contextlib.suppress(ExprError, ZeroDivisionError):  # of a value that no size has nothing is known
                self.read(op)
            for inner in op.regions:
                if op.name == "for" and op.operands[1] in self.known:
                    self.learn(inner.arguments[0], build("-", self.known[op.operands[1]], 1))
                yield from self.conditions(inner)

    def condition(self, op: ir.Op) -> Iterator[Guard]:
        a, b = (self.known.get(v) for v in op.operands[:2]) if len(op.operands) > 1 else (None, None)
        if a is None or b is None or not symbols(a) | symbols(b):
            return
        if op.name == "cmpi":
            yield Guard(_COMPARISONS[op.attrs["predicate"]], a, b)
        elif op.name == "remi" and b != 0:
            yield Guard("==", build("mod", a, b), 0)

    def read(self, op: ir.Op) -> None:
        """Learns what ``op`` makes."""
        name, operands = op.name, op.operands
        values = [self.known.get(v) for v in operands]
        if name == "constant":
            literal = op.attrs["value"].values
            if isinstance(literal, int) and not isinstance(literal, bool) and not op.attrs["value"].bits:
                self.learn(op.results[0], literal)
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
            self.shapes[op.results[0]] = [
                None if e is None else build("cdiv", e, s) for e, s in zip(extents, steps, strict=True)
            ]
        elif op.name in ("get_tensor_shape", "get_index_space_shape"):
            for slot, size in zip(op.results, shape, strict=True):
                self.learn(slot, size)
