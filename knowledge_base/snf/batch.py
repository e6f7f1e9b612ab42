"""Which dimension of a task is a batch: each of its positions is computed from that position alone.

An operator may take any number of leading axes in place of such a dimension, as ``torch.nn.functional.linear`` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_generated.runtime.expr import Expr, symbols

from .graph import Graph, Node, Tensor
from .op_table import kind
from .task import Task


def batch(task: Task) -> str:
    """The dimension that is the first axis of every output and a batch; empty where there is none."""
    graph = task.graph
    firsts = {value.shape[0] if value.shape else 1 for value in map(graph.value, graph.outputs)}
    dim = firsts.pop() if len(firsts) == 1 else 1
    if not isinstance(dim, str) or dim in task.size_arguments:
        return ""
    inputs_fit = all(_leads(t.shape, dim) and (t.role == "input" or not _has(t.shape, dim)) for t in graph.inputs)
    some = any(_has(t.shape, dim) for t in graph.inputs)
    return dim if some and inputs_fit and all(_apart(graph, node, dim) for node in graph.nodes) else ""


def _has(shape: Sequence[Expr], dim: str) -> bool:
    return any(dim in symbols(size) for size in shape)


def _leads(shape: Sequence[Expr], dim: str) -> bool:
    """Whether ``dim`` is the first axis by itself, or not there at all."""
    return not _has(shape[1:], dim) and (not _has(shape[:1], dim) or shape[0] == dim)


def _apart(graph: Graph, node: Node, dim: str) -> bool:
    """Whether the node computes each position of the batch by itself."""
    args = [graph.value(name) for name in node.args]
    batched = [arg for arg in args if _has(arg.shape, dim)]
    if not batched:
        # A number or a table that is made of the dimension's size (a mean's divisor, positions) changes with it.
        used = [value for key, value in node.attrs if key in ("n", "expr")]
        return not _has(node.shape, dim) and not _has(used, dim)
    if not _has(node.shape, dim):
        # Of a batched value nothing else may be left than its trailing axes, as a mask of them.
        return kind(node.op) == "source" and not _has(batched[0].shape[-2:], dim)
    return _leads(node.shape, dim) and _keeps(node, args, batched)


def _keeps(node: Node, args: Sequence[Tensor | Node], batched: Sequence[Tensor | Node]) -> bool:
    """Whether an op whose result has the batch first takes it from the first axis of its arguments."""
    rank = len(node.shape)
    what = kind(node.op)
    if what == "source":
        return False  # a mask says where a position is
    if what == "elementwise" or node.op == "rope":
        return all(len(arg.shape) == rank for arg in batched)
    if node.op == "gather":
        return batched == [args[1]]
    if node.op == "matmul":
        left_rows = rank == 2 and batched == [args[0]]
        return left_rows or all(len(arg.shape) == rank >= 3 for arg in batched)
    if node.op == "linear":
        return batched == [args[0]]
    if what == "row":
        return rank >= 2 and batched == [args[0]]
    if node.op == "permute":
        perm = node.attr("perm")
        return perm[0] == 0
    return True  # views, reductions of other axes and concatenations along them leave a first axis where it is
