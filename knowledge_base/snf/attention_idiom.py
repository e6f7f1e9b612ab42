"""Finds attention in a graph, in all the spellings that libraries have one call for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from kernels_generated.runtime.expr import Expr

from .graph import Graph, Node
from .op_table import same


@dataclass(frozen=True)
class Attention:
    """softmax(scale · q kᵀ + mask) v, by the names of its values; ``kt`` is kᵀ.

    factors: what makes the scale of 1, in order: ``mul`` or ``div``, each by a scalar.
    causal: a mask lets each of as many queries as keys see what is not behind it.
    absorbed: nodes whose values nobody else needs.
    """

    q: str
    kt: str
    v: str
    factors: tuple[tuple[str, str], ...]
    causal: bool
    absorbed: frozenset[str]

    def scale(self, numbers: Mapping[str, float]) -> float:
        """The scale where the scalars have these values."""
        scale = 1.0
        for op, number in self.factors:
            scale = scale * numbers[number] if op == "mul" else scale / numbers[number]
        return scale


def attention(
    graph: Graph, node: Node, numbers: Collection[str], equal: Callable[[Expr, Expr], bool] = same
) -> Attention | None:
    """The attention whose result is ``node``, if it is one that libraries have.

    numbers: the graph's scalars.  equal: says whether there are as many queries as keys.  A causal mask must be square:
    another one PyTorch aligns at the first key, SNF at the last one.
    """

    def found(name: str, *ops: str) -> Node | None:
        value = graph.value(name)
        return value if isinstance(value, Node) and value.op in ops else None

    if node.op != "matmul" or (softmax := found(node.args[0], "softmax")) is None:
        return None
    absorbed = {softmax.name}
    scores, masked = softmax.args[0], None
    if (add := found(scores, "add")) is not None:
        masked = next((mask for a in add.args if (mask := found(a, "causal_mask")) is not None), None)
        if masked is None:
            return None
        absorbed |= {add.name, masked.name}
        scores = next((a for a in add.args if a != masked.name), masked.name)
    factors: list[tuple[str, str]] = []
    while (scaled := found(scores, "mul", "div")) is not None:
        number = next((a for a in scaled.args if a in numbers), None)
        if number is None or (scaled.op == "div" and number != scaled.args[1]):
            return None
        absorbed.add(scaled.name)
        factors.insert(0, (scaled.op, number))
        scores = next(a for a in scaled.args if a != number)
    if (product := found(scores, "matmul")) is None:
        return None
    absorbed.add(product.name)
    rows, columns = product.shape[-2:]
    if masked is not None and not (equal(rows, columns) and all(map(equal, masked.shape, (rows, columns)))):
        return None
    if not _inside(graph, absorbed, node):
        return None
    return Attention(
        product.args[0], product.args[1], node.args[1], tuple(factors), masked is not None, frozenset(absorbed)
    )


def _inside(graph: Graph, names: Collection[str], end: Node) -> bool:
    """Whether nothing but ``end`` and the named ones themselves uses what those give."""
    inside = {*names, end.name}
    return all(name not in graph.outputs and {r.name for r in graph.readers(name)} <= inside for name in names)
