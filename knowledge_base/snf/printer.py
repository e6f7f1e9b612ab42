"""Prints a Graph as SNF in its plainest form: one assignment a node, everything declared.

``parse(show(graph)) == graph`` for every graph that the parser makes, and ``show(parse(text))`` is the same text after
another round.  Scalars stand where they are used; they are named by their text (``$sqrt(D_h)``), so both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernels_generated.runtime.expr import Expr
from kernels_generated.runtime.expr import show as show_size

from .graph import Graph, Tensor
from .op_table import OPS, REQUIRED

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "matmul": "@",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip


def show(graph: Graph) -> str:
    """The graph as SNF text."""
    lines = []
    if graph.dims:
        names, samples = zip(*graph.dims, strict=True)
        lines.append(f"{', '.join(names)} = {', '.join(map(str, samples))}")
    for name, values in graph.listed:
        lines.append(f"{name} in ({', '.join(map(str, values))},)")
    if graph.precision != "ieee":
        lines.append(f"precision: {graph.precision}")
    lines.extend(declaration(t) for t in graph.inputs)
    if lines:
        lines.append("")
    texts: dict[str, str] = {t.name: t.name for t in graph.inputs}
    for node in graph.nodes:
        if node.name.startswith("$"):
            texts[node.name] = node.name[1:]
        else:
            texts[node.name] = node.name
            lines.append(f"{node.name} = {expression(node.op, [texts[a] for a in node.args], dict(node.attrs))}")
    lines.append(f"outputs = {', '.join(graph.outputs)}")
    return "\n".join(lines) + "\n"


def declaration(tensor: Tensor) -> str:
    """``x: bf16[M, K]``; a weight outside the parameter tree is ``w: weight.bf16[N, K]``."""
    shape = ", ".join(show_size(s) for s in tensor.shape) or "()"
    mark = "weight." if tensor.role == "weight" and not tensor.name.startswith("θ") else ""
    return f"{tensor.name}: {mark}{tensor.dtype}[{shape}]"


def expression(op: str, args: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """The right-hand side for an op on arguments given as text."""
    if op == "const":
        return repr(attrs["value"])
    if op == "dim":
        return show_size(attrs["expr"])
    if op in INFIX:
        return f"{args[0]} {INFIX[op]} {args[1]}"
    if op == "neg":
        return f"-{args[0]}"
    if op == "permute":
        perm = attrs["perm"]
        last_two = (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2)
        return f"{args[0]}.T" if tuple(perm) == last_two else _call("Permute", [*args, *map(str, perm)])
    if op == "reshape":
        return _call("Reshape", [*args, *map(show_size, attrs["shape"])])
    positional = [show_size(attrs[k]) for k in ("n", "parts", "axis", "index") if k in attrs and _required(op, k)]
    if op == "cast":
        positional.append(attrs["dtype"])
    keywords = [f"{k}={_literal(v)}" for k, v in attrs.items() if not _required(op, k) and v != dict(OPS[op].attrs)[k]]
    return _call(OPS[op].spellings[0], [*args, *positional, *keywords])


def scalar_text(op: str, args: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """A scalar's text, closed so that it can stand anywhere: numbers and calls bare, the rest in parentheses."""
    text = expression(op, args, attrs)
    plain = (
        text.replace("_", "a").isalnum()
        or text.replace(".", "", 1).isdigit()
        or op not in (*INFIX, "dim", "const", "neg")
    )
    return text if plain else f"({text})"


def _call(name: str, args: Sequence[str]) -> str:
    return f"{name}({', '.join(args)})"


def _required(op: str, key: str) -> bool:
    return dict(OPS[op].attrs)[key] is REQUIRED


def _literal(value: Expr | float | bool | str) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
