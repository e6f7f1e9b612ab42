"""Spellings that are more than one op: parameters that Linear and the norms own, split, and heads left implicit.

In ``Softmax(q @ k.T / sqrt(D_h) + Mask_Causal)`` with q wider than D_h the scale says how wide a head is: the product
is taken per head, and the later ``att @ v`` splits v and merges the result.  The reader is told so in a note.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from kernels_generated.runtime.expr import Expr
from kernels_generated.runtime.expr import show as show_size
from knowledge_base.errors import nearest

from .graph import Node, Tensor
from .op_table import divide, is_scalar, same, text
from .reading import Path, Reader, Size, Tensorlike, Value


def _keywords(reader: Reader, node: ast.Call, allowed: tuple[str, ...]) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for keyword in node.keywords:
        if keyword.arg not in allowed:
            near = nearest(keyword.arg or "", list(allowed)) or list(allowed)
            raise reader.error(
                keyword.value, f"there is no argument {keyword.arg}", f"did you mean {' or '.join(near)}?"
            )
        found[str(keyword.arg)] = keyword.value
    return found


def _parameter(reader: Reader, path: Path, leaf: str, dtype: str, shape: tuple[Expr, ...], node: ast.AST) -> Tensorlike:
    """The parameter ``path.leaf``: declared or used before, else made with this shape."""
    name = (path / leaf).text
    known = reader.builder.values.get(name)
    if known is None:
        return reader.builder.input(name, dtype, shape, "weight")
    if len(known.shape) != len(shape) or not all(map(same, known.shape, shape)):
        raise reader.error(node, f"{name} is {text(known.shape)} elsewhere and would be {text(shape)} here")
    return known


def _unnamed(reader: Reader) -> Path:
    """A fresh path called after the assigned name: θ.h, θ.h_2 …"""
    root = reader.env.get("θ", Path())
    path = (root if isinstance(root, Path) else Path()) / reader.assigned
    number = 1
    first = path.text
    while any(f"{path.text}.{leaf}" in reader.builder.values for leaf in ("weight", "bias")):
        number += 1
        path = Path(f"{first}_{number}")
    return path


def _is_tensor(reader: Reader, value: Value) -> bool:
    if isinstance(value, Path):
        return value.text in reader.builder.values
    return isinstance(value, Tensor | Node)


def linear(reader: Reader, node: ast.Call, widen: int | None = None) -> Node:
    """Linear(x), Linear(x, n), Linear(x, n, θ.p), Linear(x, θ.p), each with bias=False; Linear(x, w[, b]) on tensors.

    widen: without a width, this many times x's (``Linear(x).split()``).
    """
    options = _keywords(reader, node, ("bias",))
    bias = reader.evaluate(options["bias"]) if "bias" in options else True
    if not isinstance(bias, bool):
        raise reader.error(options["bias"], "bias is True or False")
    if not 1 <= len(node.args) <= 3:
        raise reader.error(node, "Linear takes an input, a width and a parameter", "Linear(x, n, θ.p)")
    x = reader.tensor(reader.evaluate(node.args[0]), node.args[0])
    rest = [reader.evaluate(a) for a in node.args[1:]]
    if rest and _is_tensor(reader, rest[0]):
        weights = [reader.tensor(v, a) for v, a in zip(rest, node.args[1:], strict=True)]
        return reader.emit("linear", [x, *weights], node)
    width: Expr | None = None
    if rest and isinstance(rest[0], Size):
        width = rest.pop(0).expr
    path = rest.pop(0) if rest else _unnamed(reader)
    if rest or not isinstance(path, Path):
        raise reader.error(node.args[1], "after its input Linear takes a width, then a parameter", "Linear(x, n, θ.p)")
    if not x.shape:
        raise reader.error(node, "Linear needs an axis to work on")
    if _is_tensor(reader, path):
        if bias:
            raise reader.error(node, f"{path.text} is a tensor and has no bias of its own", "say bias=False")
        made = reader.emit("linear", [x, reader.tensor(path, node)], node)
        if width is not None and not same(made.shape[-1], width):
            raise reader.error(node, f"{path.text} makes {show_size(made.shape[-1])} features, not {show_size(width)}")
        return made
    declared = reader.builder.values.get((path / "weight").text)
    if width is None and declared is not None and len(declared.shape) == 2:
        width = declared.shape[0]
    elif width is None:
        width = reader.dims.combine("*", widen or 1, x.shape[-1])
    dtype = x.dtype
    args = [x, _parameter(reader, path, "weight", dtype, (width, x.shape[-1]), node)]
    if bias:
        args.append(_parameter(reader, path, "bias", dtype, (width,), node))
    return reader.emit("linear", args, node)


def _norm(op: str, leaves: tuple[str, ...]) -> Callable[[Reader, ast.Call], Node]:
    def sugared(reader: Reader, node: ast.Call) -> Node:
        """Norm(x), Norm(x, θ.p), Norm(x, weight, …) on tensors; eps as a keyword."""
        options = _keywords(reader, node, ("eps",))
        attrs = {key: reader.attribute(op, key, value, []) for key, value in options.items()}
        if not node.args:
            raise reader.error(node, "a norm needs its input", "LayerNorm(x, θ.p)")
        x = reader.tensor(reader.evaluate(node.args[0]), node.args[0])
        rest = [reader.evaluate(a) for a in node.args[1:]]
        if rest and _is_tensor(reader, rest[0]):
            weights = [reader.tensor(v, a) for v, a in zip(rest, node.args[1:], strict=True)]
            return reader.emit(op, [x, *weights], node, **attrs)
        path = rest[0] if rest else _unnamed(reader)
        if len(rest) > 1 or not isinstance(path, Path):
            raise reader.error(node, "a norm takes its input and a parameter", "LayerNorm(x, θ.p, eps=1e-5)")
        if not x.shape:
            raise reader.error(node, "a norm needs an axis to work on")
        weights = [_parameter(reader, path, leaf, x.dtype, (x.shape[-1],), node) for leaf in leaves]
        return reader.emit(op, [x, *weights], node, **attrs)

    return sugared


def split(reader: Reader, node: ast.Call) -> tuple[Node, ...]:
    """x.split(n): n equal parts of the last axis; without n one for each name (a Linear without width grows to fit)."""
    assert isinstance(node.func, ast.Attribute)
    options = _keywords(reader, node, ("parts",))
    counts = [*node.args, *options.values()]
    if len(counts) > 1:
        raise reader.error(node, "split takes the number of parts", "x.split(3)")
    inner = node.func.value
    parts = reader.targets if node is reader.statement_value and reader.targets > 1 else 3
    if counts:
        parts = reader.integer(counts[0])
    elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "Linear":
        return _parts(reader, linear(reader, inner, widen=parts), parts, node)
    return _parts(reader, reader.tensor(reader.evaluate(inner), inner), parts, node)


def _parts(reader: Reader, x: Tensorlike, parts: int, node: ast.AST) -> tuple[Node, ...]:
    if not 1 <= parts <= 1024:
        raise reader.error(node, f"{parts} parts", "split into 1 to 1024 parts")
    if x.shape:
        reader.dims.divide_exactly(x.shape[-1], parts, "", reader.taken)
    return tuple(reader.emit("split", [x], node, parts=parts, index=i) for i in range(parts))


def _split_call(reader: Reader, node: ast.Call) -> Any:
    """Split(x, n) is x.split(n); Split(x, n, i) is one part."""
    if len(node.args) == 3:
        return reader.plain_call("split", "Split", node)
    if len(node.args) != 2:
        raise reader.error(node, "Split takes a tensor and the number of parts", "Split(x, 3)")
    x = reader.tensor(reader.evaluate(node.args[0]), node.args[0])
    return _parts(reader, x, reader.integer(node.args[1]), node)


def _concat(reader: Reader, node: ast.Call) -> Node:
    """Concat(a, b, …, axis=-1); a tuple of tensors will do."""
    options = _keywords(reader, node, ("axis",))
    values: list[Tensorlike] = []
    for a in node.args:
        value = reader.evaluate(a)
        values.extend(reader.tensor(v, a) for v in (value if isinstance(value, tuple) else (value,)))
    attrs = {key: reader.attribute("concat", key, value, values) for key, value in options.items()}
    return reader.emit("concat", values, node, **attrs)


def _shaped(op: str) -> Callable[[Reader, ast.Call], Node]:
    """Reshape(x, a, b, …) and Permute(x, 0, 2, 1): any number of integers after the tensor."""

    def sugared(reader: Reader, node: ast.Call) -> Node:
        if not node.args or node.keywords:
            raise reader.error(node, "this op takes a tensor and integers")
        x = reader.tensor(reader.evaluate(node.args[0]), node.args[0])
        if op == "reshape":
            return reader.reshape(x, node.args[1:], node)
        return reader.emit("permute", [x], node, perm=tuple(reader.integer(a) for a in node.args[1:]))

    return sugared


def _size_function(op: str) -> Callable[[Reader, ast.Call], Any]:
    def sugared(reader: Reader, node: ast.Call) -> Any:
        if len(node.args) != 2 or node.keywords:
            raise reader.error(node, f"{op} takes two sizes")
        return Size(reader.dims.combine(op, *[reader.size(a) for a in node.args]))

    return sugared


# ---------------------------------------------------------------------------------------------------- implicit heads


def _root_of(reader: Reader, value: Tensorlike, inverse: bool) -> Expr | None:
    """D where ``value`` is √D (or 1/√D with ``inverse``) of a named size D."""
    if not is_scalar(value) or not isinstance(value, Node):
        return None
    args = [reader.builder.values[a] for a in value.args]

    def size(of: Tensorlike) -> Expr | None:
        return of.attr("expr") if isinstance(of, Node) and of.op == "dim" else None

    if value.op == ("rsqrt" if inverse else "sqrt"):
        return size(args[0])
    if value.op == "pow" and isinstance(args[1], Node) and args[1].attr("value") == (-0.5 if inverse else 0.5):
        return size(args[0])
    if inverse and value.op == "div" and isinstance(args[0], Node) and args[0].attr("value") in (1, 1.0):
        return _root_of(reader, args[1], False)
    return None


def scaled(reader: Reader, op: str, a: Tensorlike, b: Tensorlike, node: ast.AST) -> Node | None:
    """``q @ k.T / sqrt(D)`` with D narrower than q: the same per head; None where nothing is implicit."""
    if op not in ("mul", "div"):
        return None
    scores, scale = (b, a) if op == "mul" and is_scalar(a) else (a, b)
    width = _root_of(reader, scale, inverse=op == "mul")
    if width is None or not isinstance(scores, Node) or scores.op != "matmul":
        return None
    q, kt = (reader.builder.values[name] for name in scores.args)
    if not isinstance(kt, Node) or kt.op != "permute" or same(q.shape[-1], width):
        return None
    k = reader.builder.values[kt.args[0]]
    heads = divide(q.shape[-1], width)
    if heads is None or len(q.shape) != len(k.shape) or divide(k.shape[-1], heads) is None:
        return None
    note = (
        f"q is {show_size(q.shape[-1])} wide and the scale names {show_size(width)}: read as {show_size(heads)} heads"
    )
    line, _ = reader.place(node)
    reader.notes.append(f"line {line}: {note}")
    split_q, split_k = (reader.emit("heads", [x], node, n=heads) for x in (q, k))
    rank = len(split_k.shape)
    turned = reader.emit("permute", [split_k], node, perm=(*range(rank - 2), rank - 1, rank - 2))
    product = reader.emit("matmul", [split_q, turned], node)
    made = reader.emit(op, [product, scale] if scores is a else [scale, product], node)
    reader.implicit[made.name] = heads
    return made


def contraction(reader: Reader, a: Tensorlike, b: Tensorlike, node: ast.AST) -> Node:
    """a @ b; where a has implicit heads and b has not, b is split and the result merged."""
    heads = reader.implicit.get(a.name)
    if heads is None or len(b.shape) != len(a.shape) - 1:
        return reader.emit("matmul", [a, b], node)
    values = reader.emit("heads", [b], node, n=heads)
    return reader.emit("merge", [reader.emit("matmul", [a, values], node)], node)


SUGAR: dict[str, Callable[[Reader, ast.Call], Any]] = {
    "Linear": linear,
    "LayerNorm": _norm("layernorm", ("weight", "bias")),
    "RMSNorm": _norm("rmsnorm", ("weight",)),
    "split": split,
    "Split": _split_call,
    "Concat": _concat,
    "Reshape": _shaped("reshape"),
    "Permute": _shaped("permute"),
    "cdiv": _size_function("cdiv"),
    "min": _size_function("min"),
    "max": _size_function("max"),
}
