"""Names that a task's structure gives to its dimensions, inputs and itself: M, N, K, B, H, T, D, x, w, b."""

from __future__ import annotations

from kernels_generated.runtime.expr import Expr

from .graph import Graph, Node
from .op_table import OPS

# What an argument of an op is called, by position; others are activations.
_ARGUMENTS = {
    "linear": ("x", "w", "b"), "layernorm": ("x", "weight", "bias"), "rmsnorm": ("x", "weight"),
    "gather": ("table", "index"), "rope": ("x", "cos", "sin"),
}  # fmt: skip
# Words that a candidate's ``launch`` needs for itself, and Python's own.
_TAKEN = {"y", "stream", "num_sms", "ct", "math", "torch", "launch", "kernel"}
MAX_NAMED_OPS = 4  # of a task's name


def inputs(graph: Graph) -> dict[str, str]:
    """A name for each input: by its first reader's use, activations x, r, then a number."""
    wishes: dict[str, str] = {}
    for node in graph.nodes:
        for i, arg in enumerate(node.args):
            wish = _ARGUMENTS.get(node.op, ())
            if i < len(wish):
                wishes.setdefault(arg, wish[i])
            elif node.op == "add" and OPS[_op(graph, node.args[1 - i])].kind in ("contraction", "row"):
                wishes.setdefault(arg, "r")
    out: dict[str, str] = {}
    for tensor in graph.inputs:
        default = "w" if tensor.role == "weight" else "x"
        out[tensor.name] = _fresh(wishes.get(tensor.name, default), {*out.values(), *_TAKEN})
    return out


def _op(graph: Graph, name: str) -> str:
    value = graph.value(name)
    return value.op if isinstance(value, Node) else "const"


def dimensions(graph: Graph) -> dict[str, str]:
    """A name for each dimension, by what the first op that says so does with its axis; else N."""
    wishes: dict[str, str] = {}

    def wish(size: Expr, name: str) -> None:
        if isinstance(size, str):
            wishes.setdefault(size, name)

    batched = any(n.op == "matmul" and len(graph.value(n.args[1]).shape) > 2 for n in graph.nodes)
    for node in graph.nodes:
        shapes = [graph.value(a).shape for a in node.args]
        if node.op == "matmul" and batched:
            for size, name in zip(node.shape[:-2], "BHG", strict=False):
                wish(size, name)
            scores = any(r.op not in ("permute", "reshape") for r in graph.readers(node.name))
            wish(node.shape[-2], "T")
            wish(node.shape[-1], "S" if scores else "E")
            wish(shapes[0][-1], "D")
        elif node.op in ("linear", "matmul"):
            wish(shapes[0][-1], "K")
            wish(node.shape[-1], "N")
        elif node.op == "gather":
            wish(shapes[0][0], "V")
        elif node.op == "iota":
            wish(node.attr("n"), "T")
        elif OPS[node.op].kind in ("row", "reduction"):
            axis = node.attr("axis", -1)
            wish(shapes[0][axis], "N")
    first = graph.value(graph.outputs[0]).shape
    if not batched and first and len(first) > 0:
        wish(first[0], "M")
    out: dict[str, str] = {}
    for symbol in graph.sizes:
        out[symbol] = _fresh(wishes.get(symbol, "N"), set(out.values()))
    return out


def task_name(graph: Graph, identity: str) -> str:
    """The ops that compute, in order, and six hex digits of the identity."""
    quiet = ("scalar", "view", "source")
    ops = [n.op for n in graph.nodes if OPS[n.op].kind not in quiet and not n.name.startswith("$")]
    words = [op for i, op in enumerate(ops) if i == 0 or op != ops[i - 1]] or ["copy"]
    return "_".join([*words[:MAX_NAMED_OPS], identity[:6]])


def _fresh(name: str, taken: set[str]) -> str:
    number, out = 1, name
    while out in taken:
        number += 1
        out = f"{name}{number}"
    return out
