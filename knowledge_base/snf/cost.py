"""What a graph costs by definition: operations by unit, and the bytes that any kernel must read and write.

Counts are of the arithmetic that the ops' definitions name (see ``flops`` in the op table), not of instructions.  Reads
are compulsory ones: each input once, of a gathered table only the rows that are looked up.  Under a causal mask the two
products of attention count the visible half only, as a kernel skips the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels_generated.runtime.expr import evaluate
from knowledge_base.element_types import BYTES

from .graph import Graph, Node, Tensor, shape_at
from .op_table import OPS, is_scalar


@dataclass(frozen=True)
class Cost:
    """flops: operations by unit: matmul (a multiply-add is two), elementwise, special (exp, tanh, division, roots)."""

    flops: Mapping[str, int]
    read_bytes: int
    write_bytes: int

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.write_bytes


def cost(graph: Graph, sizes: Mapping[str, int] | None = None) -> Cost:
    """The graph's cost at ``sizes`` (default: its samples).  Raises ExprError for a dimension without size."""
    dims = {**graph.sizes, **(sizes or {})}
    visible = _visible(graph, dims)
    flops: dict[str, int] = {}
    for node in graph.nodes:
        if is_scalar(node):
            continue
        shapes = [graph.value(a).shape for a in node.args]
        for unit, count in OPS[node.op].flops(node.shape, shapes).items():
            numerator, denominator = visible.get(node.name, (1, 1))
            flops[unit] = flops.get(unit, 0) + evaluate(count, dims) * numerator // denominator
    written = sum(_bytes(graph.value(name), dims) for name in graph.outputs)
    return Cost(flops, sum(_read(graph, t, dims) for t in graph.inputs), written)


def _bytes(value: Tensor | Node, dims: Mapping[str, int]) -> int:
    count = 1
    for size in shape_at(value.shape, dims):
        count *= size
    return count * BYTES[value.dtype]


def _read(graph: Graph, tensor: Tensor, dims: Mapping[str, int]) -> int:
    """A tensor once; of a table that is only gathered from, the rows looked up (at most the whole table)."""
    whole = _bytes(tensor, dims)
    readers = [n for n in graph.readers(tensor.name) if n.op != "causal_mask"]
    if readers and all(n.op == "gather" and n.args[0] == tensor.name for n in readers):
        return min(whole, sum(_bytes(n, dims) for n in readers))
    return whole


def _visible(graph: Graph, dims: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The share of its work that a causal mask leaves to each node of attention, from one product to the other.

    Forward from the masked sum to the product with the values; back from it to the product that made the scores.
    """
    share: dict[str, tuple[int, int]] = {}
    products: dict[str, tuple[int, int]] = {}
    for node in graph.nodes:
        args = [graph.value(a) for a in node.args]
        if node.op == "add" and any(isinstance(a, Node) and a.op == "causal_mask" for a in args):
            share[node.name] = _seen(*shape_at(node.shape[-2:], dims))
        found = [share[a] for a in node.args if a in share]
        if found and node.op == "matmul":
            products[node.name] = found[0]
        elif found and OPS[node.op].kind in ("elementwise", "row"):
            share[node.name] = found[0]
    for node in reversed(graph.nodes):
        readers = [n for n in graph.readers(node.name) if n.op != "causal_mask"]
        if len(readers) == 1 and readers[0].name in share and readers[0].shape == node.shape:
            if OPS[node.op].kind == "elementwise":
                share.setdefault(node.name, share[readers[0].name])
            elif node.op == "matmul":
                products.setdefault(node.name, share[readers[0].name])
    return share | products


def _seen(rows: int, columns: int) -> tuple[int, int]:
    """(pairs that a bottom-right aligned causal mask shows, all pairs)."""
    short = min(rows, columns)
    return short * (short + 1) // 2 + rows * max(0, columns - rows), rows * columns
