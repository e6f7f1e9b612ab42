"""The everyday tasks: the named pieces that every transformer is made of, with their argument names and orders.

They are ordinary tasks: a piece of any target whose canonical sub-graph equals one of these *is* it.  Sample sizes are
those of the GPT-2 block (B=8, T=1024, C=768, H=12) in bf16; ``task.at(M=…)`` or ``everyday(name, M=…)`` gives others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernels_generated.runtime.expr import Expr, evaluate, holds, show, substitute
from knowledge_base.errors import UserError, nearest

from .builder import Builder, Value
from .graph import FLOATS, Graph, Tensor
from .normal import Normal, normal_form
from .task import Task, constraints

# Head widths that attention kernels are made for: powers of two that tiles take directly, and 80 (GPT-2's cousins).
HEAD_WIDTHS = (16, 32, 64, 80, 128)

_SAMPLES = {
    "M": 8192, "N": 768, "K": 768, "B": 8, "T": 1024, "S": 1024, "H": 12, "D": 64, "V": 50257, "P": 1024, "C": 768,
}  # fmt: skip
_WIDTHS = {"linear": {"N": 2304}, "linear_gelu": {"N": 3072}, "dense": {"N": 2304}, "dense_gelu": {"N": 3072}}


def _rows(op: str) -> Callable[[Builder], Value]:
    return lambda b: b.node(op, [b.input("x", "bf16", ("M", "N"))])


def _add(b: Builder) -> Value:
    return b.node("add", [b.input("a", "bf16", ("M", "N")), b.input("b", "bf16", ("M", "N"))])


def _layernorm(b: Builder) -> Value:
    x = b.input("x", "bf16", ("M", "N"))
    return b.node(
        "layernorm", [x, b.input("weight", "bf16", ("N",), "weight"), b.input("bias", "bf16", ("N",), "weight")]
    )


def _linear(b: Builder) -> Value:
    x = b.input("x", "bf16", ("M", "K"))
    return b.node("linear", [x, b.input("w", "bf16", ("N", "K"), "weight"), b.input("b", "bf16", ("N",), "weight")])


def _linear_nobias(b: Builder) -> Value:
    return b.node("linear", [b.input("x", "bf16", ("M", "K")), b.input("w", "bf16", ("N", "K"), "weight")])


def _linear_gelu(b: Builder) -> Value:
    return b.node("gelu", [_linear(b)])


def _linear_residual(b: Builder) -> Value:
    return b.node("add", [_linear(b), b.input("r", "bf16", ("M", "N"))])


def _dense(b: Builder) -> Value:
    x = b.input("x", "bf16", ("M", "K"))
    product = b.node("matmul", [x, b.input("w", "bf16", ("K", "N"), "weight")])
    return b.node("add", [product, b.input("b", "bf16", ("N",), "weight")])


def _dense_gelu(b: Builder) -> Value:
    return b.node("gelu", [_dense(b)])


def _dense_residual(b: Builder) -> Value:
    return b.node("add", [_dense(b), b.input("r", "bf16", ("M", "N"))])


def _scaled(b: Builder, q: Value, k: Value) -> Value:
    """q kᵀ / √D"""
    scores = b.node("matmul", [q, b.node("permute", [k], perm=(0, 1, 3, 2))], "scores")
    return b.node("div", [scores, b.node("sqrt", [b.dim("D")], "root")], "scaled")


def _core(b: Builder, q: Value, k: Value, v: Value) -> Value:
    """softmax(q kᵀ / √D + causal mask) v on [B, H, T, D]."""
    scaled = _scaled(b, q, k)
    masked = b.node("add", [scaled, b.node("causal_mask", [scaled], "mask")], "masked")
    return b.node("matmul", [b.node("softmax", [masked], "weights"), v], "values")


def _attention(b: Builder) -> Value:
    qkv = b.input("qkv", "bf16", ("B", "T", 3, "H", "D"))
    q, k, v = (
        b.node("permute", [b.node("select", [qkv], axis=2, index=i)], name, perm=(0, 2, 1, 3))
        for i, name in enumerate("qkv")
    )
    return b.node("permute", [_core(b, q, k, v)], perm=(0, 2, 1, 3))


def _attention_qkv(b: Builder) -> Value:
    q, k, v = (b.input(name, "bf16", ("B", "H", "T", "D")) for name in "qkv")
    return _core(b, q, k, v)


def _attention_decode(b: Builder) -> Value:
    q = b.input("q", "bf16", ("B", "H", 1, "D"))
    k, v = (b.input(name, "bf16", ("B", "H", "S", "D")) for name in "kv")
    last = b.input("last", "i64", ("B", 1, 1, 1))
    seen = b.node("le", [b.node("iota", [], "places", n="S"), last], "seen")
    shown = b.node("where", [seen, _scaled(b, q, k), b.const(-math.inf)], "shown")
    return b.node("matmul", [b.node("softmax", [shown], "weights"), v], "values")


def _embedding(b: Builder) -> Value:
    tokens = b.input("tokens", "i64", ("B", "T"))
    wte = b.input("wte", "bf16", ("V", "C"), "weight")
    wpe = b.input("wpe", "bf16", ("P", "C"), "weight")
    positions = b.node("iota", [], "positions", n="T")
    return b.node("add", [b.node("gather", [wte, tokens]), b.node("gather", [wpe, positions])])


_BUILDERS: dict[str, tuple[str, Callable[[Builder], Value]]] = {
    "gelu": ("GELU, tanh form", _rows("gelu")),
    "add": ("sum of two tensors", _add),
    "layernorm": ("layer normalisation over the last axis", _layernorm),
    "softmax": ("softmax over the last axis", _rows("softmax")),
    "linear": ("x wᵀ + b", _linear),
    "linear_nobias": ("x wᵀ", _linear_nobias),
    "linear_gelu": ("GELU(x wᵀ + b)", _linear_gelu),
    "linear_residual": ("x wᵀ + b + r", _linear_residual),
    "dense": ("x w + b, the weight stored as [K, N]", _dense),
    "dense_gelu": ("GELU(x w + b), the weight stored as [K, N]", _dense_gelu),
    "dense_residual": ("x w + b + r, the weight stored as [K, N]", _dense_residual),
    "attention": ("causal attention read from a QKV buffer", _attention),
    "attention_qkv": ("causal attention on separate q, k, v", _attention_qkv),
    "attention_decode": ("attention of one query on cached keys, up to the place `last`", _attention_decode),
    "embedding": ("token plus position embedding", _embedding),
}

NAMES = tuple(_BUILDERS)


def description(name: str) -> str:
    return _BUILDERS[name][0]


def everyday(name: str, dtype: str = "bf16", precision: str = "ieee", **sizes: int) -> Task:
    """The everyday task ``name`` (``linear-gelu`` is ``linear_gelu``) at the sample sizes, changed by ``sizes``.

    dtype: of all floating-point arguments.  Raises UserError for an unknown name, dtype or dimension.
    """
    key = name.replace("-", "_")
    if key not in _BUILDERS:
        near = nearest(name, NAMES)
        raise UserError(
            f"there is no everyday task {name!r}",
            f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(NAMES)}",
        )
    if dtype not in FLOATS:
        raise UserError(f"there is no everyday task in {dtype}", f"dtypes are {', '.join(FLOATS)}")
    return sized(_made(key, dtype, precision)[0], sizes)


def sized(task: Task, sizes: Mapping[str, int]) -> Task:
    """``task`` at other sample sizes.  Raises UserError for a dimension it does not have or a size below 1."""
    for name, size in sizes.items():
        if name not in task.sizes:
            raise UserError(f"{task.name} has no dimension {name!r}", f"it has {', '.join(task.sizes)}")
        if size < 1:
            raise UserError(f"{name}={size}: sizes are at least 1", f"say {name}=1 or more")
    for comparison, left, right in task.constraints:
        values = [evaluate(e, {**task.sizes, **sizes}) for e in (left, right)]
        if not holds(comparison, *values):
            raise UserError(
                f"{task.name} needs {show(left)} {comparison} {show(right)}, and these are {values[0]} and {values[1]}",
                f"choose sizes with {show(left)} {comparison} {show(right)}",
            )
    return task.at(**sizes) if sizes else task


def known(identity: str, dtypes: frozenset[str], precision: str) -> tuple[Task, Normal] | None:
    """The everyday task with this identity and its own normal form, if there is one for inputs of these dtypes."""
    floats = dtypes & set(FLOATS)
    if len(floats) != 1:
        return None
    return _by_identity(next(iter(floats)), precision).get(identity)


@functools.cache
def _by_identity(dtype: str, precision: str) -> dict[str, tuple[Task, Normal]]:
    return {made[0].identity: made for made in (_made(name, dtype, precision) for name in NAMES)}


@functools.cache
def _made(name: str, dtype: str, precision: str) -> tuple[Task, Normal]:
    """The task in normal form, under the names that its builder gives to arguments and dimensions."""
    builder = _Everyday(dtype)
    result = _BUILDERS[name][1](builder)
    written = builder.graph(_SAMPLES | _WIDTHS.get(name, {}), [result.name], precision=precision)
    normal = normal_form(written)
    dims = {d: str(theirs) for d, theirs in normal.sizes}
    names = {t.name: theirs for t, theirs in zip(normal.graph.inputs, normal.arguments, strict=True)}
    graph = _renamed(normal.graph, names, dims, written)
    constants = tuple((d, HEAD_WIDTHS) for d in graph.sizes if d in {dims[t] for t in normal.tiles})
    return Task(name, normal.identity, graph, precision, constants, constraints(graph)), normal


class _Everyday(Builder):
    """A Builder whose floating-point inputs have one dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self._dtype = dtype

    def input(self, name: str, dtype: str, shape: Sequence[Expr], role: str = "input") -> Tensor:
        return super().input(name, self._dtype if dtype in FLOATS else dtype, shape, role)


def _renamed(graph: Graph, names: Mapping[str, str], dims: Mapping[str, str], written: Graph) -> Graph:
    """``graph`` under other names, inputs and dimensions in the order of ``written``."""
    builder = Builder()
    by_name = {names[t.name]: t for t in graph.inputs}
    built: dict[str, Value] = {}
    by: dict[str, Expr] = dict(dims)
    for tensor in written.inputs:
        mine = by_name[tensor.name]
        shape = [substitute(e, by) for e in mine.shape]
        built[mine.name] = builder.input(tensor.name, mine.dtype, shape, mine.role)
    builder.reserved = frozenset(builder.values)
    for node in graph.nodes:
        attrs = {k: _size_attr(k, v, by) for k, v in node.attrs}
        built[node.name] = builder.node(node.op, [built[a] for a in node.args], node.op, **attrs)
    outputs = [built[o].name for o in graph.outputs]
    return builder.graph(written.sizes, outputs, precision=graph.precision)


def _size_attr(key: str, value: Any, by: Mapping[str, Expr]) -> Any:
    if key == "shape":
        return tuple(substitute(e, by) for e in value)
    return substitute(value, by) if key in ("n", "expr") else value
