"""A task's graph in few primitives, which is what the synthesizer schedules and prints.

Norms, ``linear``, ``heads``, ``rope`` … are spelled out in elementwise ops, reductions, views and matmuls; scalars are
folded; equal sub-expressions are one node.  Softmax stays whole, because attention is recognised by it;
:meth:`Primitives.spell_out_softmax` does it later.

Primitive ops: ``leaf[buffer]``, ``const[value]``, ``dim[expr]``, ``iota``, ``causal``, the elementwise ops of the op
table, ``permute[perm]``, ``select[axis, index]``, ``slice[axis, start]``, ``reshape``, ``reduce[kind, axis]`` (kind
sum, mean or max; the axis is kept as one of length 1), ``softmax``, ``matmul``, ``gather``, ``concat[axis]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_generated.runtime.expr import Expr, build, normalise
from knowledge_base.snf import op_table
from knowledge_base.snf.graph import FLOATS, Graph, Node

Shape = tuple[Expr, ...]

ELEMENTWISE = frozenset(name for name, op in op_table.OPS.items() if op.kind == "elementwise")
VIEWS = frozenset(("permute", "select", "slice", "reshape"))
SOURCES = frozenset(("leaf", "const", "dim", "iota", "causal"))


@dataclass(frozen=True, eq=False)
class Prim:
    """One primitive; compared by identity (equal ones are the same object).  ``name`` is only for readers."""

    op: str
    args: tuple[Prim, ...]
    attrs: tuple[tuple[str, Any], ...]
    shape: Shape
    dtype: str
    name: str

    def attr(self, key: str) -> Any:
        return dict(self.attrs)[key]

    @property
    def scalar(self) -> bool:
        """Whether this is a number made of constants and sizes alone; it takes the dtype of what it meets."""
        return self.op in ("const", "dim") or (
            self.op in ELEMENTWISE and self.shape == () and all(a.scalar for a in self.args)
        )


_FOLD: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: float(a**b),
    "minimum": min,
    "maximum": max,
    "neg": lambda a: -a,
    "abs": abs,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "square": lambda a: a * a,
    "tanh": math.tanh,
    "erf": math.erf,
}


class Primitives:
    """Makes primitives, each distinct one once."""

    def __init__(self) -> None:
        self._made: dict[Any, Prim] = {}
        # Steps inside one op of the graph (a norm's squares).  They are never stored: what is rounded in memory are
        # values that the graph names, so that all parts of a norm see the same numbers.
        self.inner: set[Prim] = set()

    def make(
        self, op: str, args: Sequence[Prim] = (), shape: Shape = (), dtype: str = "f32", name: str = "", **attrs: Any
    ) -> Prim:
        frozen = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in attrs.items()))
        # repr tells 1 from 1.0 and from True, and nan equals itself by it
        key = (op, tuple(id(a) for a in args), repr(frozen), shape, dtype)
        if key not in self._made:
            self._made[key] = Prim(op, tuple(args), frozen, shape, dtype, name)
        return self._made[key]

    def lower(self, node: Node, args: list[Prim]) -> Prim:
        """The primitive for a node of the graph; what was made on the way is inner."""
        before = len(self._made)
        result = _lower(self, node, args)
        self.inner.update(p for p in list(self._made.values())[before:] if p is not result)
        return result

    # ------------------------------------------------------------------------------------------ arithmetic

    def const(self, value: float) -> Prim:
        return self.make("const", dtype="f64", value=value)

    def elementwise(self, op: str, args: Sequence[Prim], dtype: str, name: str = "", **attrs: Any) -> Prim:
        if op in _FOLD and all(a.op == "const" for a in args):
            try:
                return self.const(_FOLD[op](*(a.attr("value") for a in args)))
            except (ArithmeticError, ValueError):
                pass  # 1/0, log(-1): left to the device, which has an answer for each
        shape = op_table.broadcast([a.shape for a in args])
        return self.make(op, args, shape, dtype, name, **attrs)

    def reduce(self, kind: str, x: Prim, axis: int, dtype: str, name: str = "") -> Prim:
        """The reduction with the axis kept."""
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        return self.make("reduce", [x], shape, dtype, name, kind=kind, axis=axis)

    def variance(self, x: Prim, axis: int, dtype: str) -> tuple[Prim, Prim]:
        """(x - mean, variance) with the axis kept, by the corrected two-pass method.

        The second pass also averages the deviations from the first mean, which is that mean's rounding error, and takes
        it out of both (Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983, eq. 1.7): data far
        from zero keep their digits, at no extra pass.
        """
        rough = self.reduce("mean", x, axis, dtype, "mean")
        deviation = self.elementwise("sub", [x, rough], dtype, "d")
        slip = self.reduce("mean", deviation, axis, dtype, "slip")
        squares = self.elementwise("square", [deviation], dtype, "d2")
        mean_square = self.reduce("mean", squares, axis, dtype, "mean_square")
        slip2 = self.elementwise("square", [slip], dtype, "slip2")
        gap = self.elementwise("sub", [mean_square, slip2], dtype, "gap")
        # rounding may take the difference of two equal numbers below zero, where a square root has no value
        variance = self.elementwise("maximum", [gap, self.const(0.0)], dtype, "variance")
        return self.elementwise("sub", [deviation, slip], dtype, "centred"), variance

    def spell_out_softmax(self, node: Prim) -> Prim:
        (x,) = node.args
        axis, dtype = len(x.shape) - 1, work_dtype(node.dtype)
        top = self.reduce("max", x, axis, dtype, "top")
        e = self.elementwise("exp", [self.elementwise("sub", [x, top], dtype, "below")], dtype, "e")
        total = self.reduce("sum", e, axis, dtype, "total")
        self.inner.update((e, *e.args))
        return self.elementwise("div", [e, total], node.dtype, node.name)

    # ------------------------------------------------------------------------------------------ views

    def reshape(self, x: Prim, shape: Shape, name: str = "") -> Prim:
        shape = tuple(normalise(s) for s in shape)
        if x.op == "reshape":
            x = x.args[0]
        if shape == x.shape:
            return x
        if x.op == "leaf":  # contiguous: the same buffer with other axes
            return self.make("leaf", (), shape, x.dtype, x.name, **dict(x.attrs))
        return self.make("reshape", [x], shape, x.dtype, name or x.name)

    def permute(self, x: Prim, perm: Sequence[int], name: str = "") -> Prim:
        if x.op == "permute":
            first = x.attr("perm")
            perm, x = [first[p] for p in perm], x.args[0]
        if list(perm) == list(range(len(perm))):
            return x
        shape = tuple(x.shape[p] for p in perm)
        return self.make("permute", [x], shape, x.dtype, name or x.name, perm=tuple(perm))

    def slice(self, x: Prim, axis: int, start: Expr, size: Expr, name: str = "") -> Prim:
        if start == 0 and op_table.same(size, x.shape[axis]):
            return x
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        return self.make("slice", [x], shape, x.dtype, name or x.name, axis=axis, start=start)

    def select(self, x: Prim, axis: int, index: Expr, name: str = "") -> Prim:
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        return self.make("select", [x], shape, x.dtype, name or x.name, axis=axis, index=index)

    def part(self, x: Prim, parts: Expr, width: Expr, index: int) -> Prim:
        """Part ``index`` of ``parts`` equal ones of the last axis, each ``width`` long; of a product it is the product
        with that part of its right operand."""
        if x.op == "matmul":
            right = self.part(x.args[1], parts, width, index)
            return self.make("matmul", [x.args[0], right], (*x.shape[:-1], width), x.dtype, x.name)
        if x.op in ELEMENTWISE:
            args = [a if a.shape[-1:] in ((), (1,)) else self.part(a, parts, width, index) for a in x.args]
            return self.make(x.op, args, (*x.shape[:-1], width), x.dtype, x.name, **dict(x.attrs))
        inner, axis = (x.args[0], x.attr("perm")[-1]) if x.op == "permute" else (x, len(x.shape) - 1)
        apart = self.reshape(inner, (*inner.shape[:axis], parts, width, *inner.shape[axis + 1 :]))
        chosen = self.select(apart, axis, index, x.name)
        return chosen if inner is x else self.permute(chosen, x.attr("perm"), x.name)


def work_dtype(dtype: str) -> str:
    """The dtype in which values stored as ``dtype`` are computed."""
    return "f32" if dtype in FLOATS else dtype


def operand_dtype(operands: Sequence[Prim]) -> str:
    """The dtype in which operands meet: their own if they share one, the float that holds both otherwise."""
    dtypes = {o.dtype for o in operands}
    if dtypes <= {"bf16", "f16", "f32", "f64"}:
        if len(dtypes) == 1:
            return dtypes.pop()
        return "f64" if "f64" in dtypes else "f32"
    return "f64"  # integers: exact up to 2^53


def accumulator_dtype(operands: str) -> str:
    """The dtype in which products of operands of a dtype are summed."""
    return "f64" if operands == "f64" else "f32"


def from_graph(graph: Graph) -> tuple[Primitives, dict[str, Prim]]:
    """The primitives of ``graph`` and the one for each of its values, by name."""
    made = Primitives()
    values: dict[str, Prim] = {
        t.name: made.make("leaf", (), t.shape, t.dtype, t.name, buffer=t.name) for t in graph.inputs
    }
    for node in graph.nodes:
        values[node.name] = made.lower(node, [values[a] for a in node.args])
    return made, values


def _lower(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    op, dtype, name = node.op, node.dtype, node.name
    if op in ELEMENTWISE:
        return made.elementwise(op, args, dtype, name, **{k: v for k, v in node.attrs if k != "dtype"})
    if op in _LOWER:
        return _LOWER[op](made, node, args)
    if op in ("gather", "softmax"):
        return made.make(op, args, node.shape, dtype, name)
    raise NotImplementedError(f"the synthesizer has no lowering for {op}")


def _number(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    value = node.attr("value") if node.op == "const" else node.attr("expr")
    if node.op == "dim" and not isinstance(value, int):
        return made.make("dim", (), (), "f64", node.name, expr=normalise(value))
    return made.const(value)


def _reduction(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    (x,) = args
    axis = len(x.shape) + node.attr("axis")
    work = work_dtype(node.dtype)
    if node.op == "var":
        kept = made.variance(x, axis, work)[1]
    else:
        kept = made.reduce(node.op, x, axis, work, node.name)
    if not node.attr("keepdims"):
        kept = made.select(kept, axis, 0, node.name)
    # the value has the graph's dtype where it is stored
    return made.elementwise("cast", [kept], node.dtype, node.name)


def _layernorm(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    x, weight, bias = args
    work = work_dtype(node.dtype)
    centred, variance = made.variance(x, len(x.shape) - 1, work)
    shifted = made.elementwise("add", [variance, made.const(node.attr("eps"))], work, "shifted")
    scale = made.elementwise("rsqrt", [shifted], work, "scale")
    normal = made.elementwise("mul", [centred, scale], work, "normal")
    scaled = made.elementwise("mul", [normal, weight], work, "scaled")
    return made.elementwise("add", [scaled, bias], node.dtype, node.name)


def _rmsnorm(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    x, weight = args
    work = work_dtype(node.dtype)
    squares = made.elementwise("square", [x], work, "x2")
    mean_square = made.reduce("mean", squares, len(x.shape) - 1, work, "mean_square")
    shifted = made.elementwise("add", [mean_square, made.const(node.attr("eps"))], work, "shifted")
    scale = made.elementwise("rsqrt", [shifted], work, "scale")
    normal = made.elementwise("mul", [x, scale], work, "normal")
    return made.elementwise("mul", [normal, weight], node.dtype, node.name)


def _matmul(made: Primitives, a: Prim, b: Prim, dtype: str, name: str) -> Prim:
    shape = (*op_table.broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1])
    return made.make("matmul", [a, b], shape, dtype, name)


def _linear(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    x, weight, *bias = args
    vector = len(x.shape) == 1
    rows = made.reshape(x, (1, *x.shape)) if vector else x
    y = _matmul(made, rows, made.permute(weight, (1, 0)), node.dtype, f"{node.name}_product" if bias else node.name)
    for b in bias:
        y = made.elementwise("add", [y, b], node.dtype, node.name)
    return made.reshape(y, node.shape, node.name) if vector else y


def _heads(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    (x,) = args
    rank = len(x.shape)
    n, width = node.shape[-3], node.shape[-1]
    parted = made.reshape(x, (*x.shape[:-1], n, width))
    return made.permute(parted, (*range(rank - 2), rank - 1, rank - 2, rank), node.name)


def _merge(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    (x,) = args
    rank = len(x.shape)
    return made.reshape(made.permute(x, (*range(rank - 3), rank - 2, rank - 3, rank - 1)), node.shape, node.name)


def _select(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    """One of the equal parts into which a product (with its bias) is split is a smaller product; others are views."""
    (x,) = args
    axis = node.attr("axis") % len(x.shape)
    whole = x.args[0] if x.op == "reshape" else x
    parted = len(x.shape) == len(whole.shape) + 1 and axis == len(x.shape) - 2 and x.shape[:axis] == whole.shape[:-1]
    product = whole
    while product.op in ELEMENTWISE and product.args:
        product = product.args[0]
    if parted and product.op == "matmul":
        return made.part(whole, x.shape[axis], x.shape[-1], node.attr("index"))
    return made.select(x, axis, node.attr("index"), node.name)


def _split(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    (x,) = args
    width = node.shape[-1]
    return made.slice(x, len(x.shape) - 1, build("*", node.attr("index"), width), width, node.name)


def _rope(made: Primitives, node: Node, args: list[Prim]) -> Prim:
    x, cos, sin = args
    axis, width, work = len(x.shape) - 1, x.shape[-1], work_dtype(node.dtype)
    half, rest = build("cdiv", width, 2), build("fdiv", width, 2)
    first, second = made.slice(x, axis, 0, half, "first"), made.slice(x, axis, half, rest, "second")
    turned = made.make(
        "concat", [made.elementwise("neg", [second], work, "minus"), first], x.shape, work, "turned", axis=axis
    )
    straight = made.elementwise("mul", [x, cos], work, "straight")
    across = made.elementwise("mul", [turned, sin], work, "across")
    return made.elementwise("add", [straight, across], node.dtype, node.name)


_LOWER: dict[str, Callable[[Primitives, Node, list[Prim]], Prim]] = {
    "const": _number,
    "dim": _number,
    "iota": lambda made, node, args: made.make("iota", (), node.shape, "i64", node.name),
    "causal_mask": lambda made, node, args: made.make("causal", (), node.shape, node.dtype, node.name),
    "sum": _reduction,
    "mean": _reduction,
    "max": _reduction,
    "var": _reduction,
    "layernorm": _layernorm,
    "rmsnorm": _rmsnorm,
    "linear": _linear,
    "matmul": lambda made, node, args: _matmul(made, args[0], args[1], node.dtype, node.name),
    "permute": lambda made, node, args: made.permute(args[0], node.attr("perm"), node.name),
    "reshape": lambda made, node, args: made.reshape(args[0], node.shape, node.name),
    "select": _select,
    "split": _split,
    "heads": _heads,
    "merge": _merge,
    "concat": lambda made, node, args: made.make(
        "concat", args, node.shape, node.dtype, node.name, axis=len(node.shape) + node.attr("axis")
    ),
    "rope": _rope,
}
