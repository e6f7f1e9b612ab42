"""What a graph means, run with torch on the CPU: in float64 (the reference) or eagerly as stored (the yardstick).

- ``fp64``: stored inputs are upcast exactly, nothing is rounded before the end; a cast among floats changes nothing.
  What becomes an integer may be moved by a rounding error before it: either side of a whole number is right there.
- ``eager``: node by node in the task's dtypes, each op as a PyTorch user would call it; constants and sizes are Python
  numbers.  Under precision tf32 the float32 operands of contractions are rounded to tf32, then multiplied in float32.

This module compares nothing and decides nothing: see the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from kernels_generated.runtime.expr import evaluate
from kernels_generated.runtime.plan import TORCH_NAMES

from .graph import FLOATS, Graph, Node, shape_at
from .op_table import OPS, is_scalar
from .ranges import WHOLE
from .task import Decomposition

if TYPE_CHECKING:
    import torch

Mode = Literal["fp64", "eager"]


class Undefined(ArithmeticError):
    """A value that becomes an integer is none, or none of its type: PyTorch promises nothing of the result."""


def torch_dtype(dtype: str) -> torch.dtype:
    """Our dtype's name as torch's dtype."""
    import torch

    made: torch.dtype = getattr(torch, TORCH_NAMES[dtype])
    return made


def run(
    graph: Graph,
    values: Mapping[str, torch.Tensor],
    mode: Mode = "fp64",
    precision: str | None = None,
    moved: float = 0.0,
) -> dict[str, torch.Tensor]:
    """The graph's outputs by name, from its inputs by name; ``precision`` instead of the graph's own, if given.

    moved: by how many units in the last place of its dtype a float is moved before it becomes an integer (mode fp64).
    Unless this is 0, a value beyond the integer's range raises Undefined.

    values: a tensor per input, in its declared dtype; sizes are taken from the graph's samples, so use ``task.at`` (or
    ``graph.at``) for others.  A tensor of another shape but the same count is reinterpreted.
    Returns float64 tensors in mode fp64 (integers stay int64), stored dtypes in mode eager.
    """
    precision = precision or graph.precision
    env: dict[str, Any] = {}
    for tensor in graph.inputs:
        value = values[tensor.name].reshape(shape_at(tensor.shape, graph.sizes))
        env[tensor.name] = _upcast(value) if mode == "fp64" else value
    scalars = {n.name for n in graph.nodes if is_scalar(n)}
    last_use = {arg: i for i, n in enumerate(graph.nodes) for arg in n.args}
    for i, node in enumerate(graph.nodes):
        compute = step(node, graph.sizes, mode, precision)
        given = [env[a] for a in node.args]
        if moved and becomes_whole(graph, node):
            given = [_moved(given[0], graph.value(node.args[0]).dtype, node.dtype, moved)]
        env[node.name] = compute(given)
        for arg in set(node.args):
            if last_use[arg] == i and arg not in graph.outputs and arg not in scalars:
                del env[arg]  # a GPT-2 at full size would not fit otherwise
    return {name: env[name] for name in graph.outputs}


def becomes_whole(graph: Graph, node: Node) -> bool:
    """Whether ``node`` makes integers of an array of floats."""
    value = graph.value(node.args[0]) if node.op == "cast" and node.dtype in WHOLE else None
    return value is not None and value.dtype in (*FLOATS, "f64") and not is_scalar(value)


def _moved(value: torch.Tensor, dtype: str, whole: str, ulps: float) -> torch.Tensor:
    """``value`` (float64, a ``dtype`` where it is stored) moved away from 0, or towards it where ``ulps`` is below 0.

    Raises Undefined where what is left of it without its fraction is no number of type ``whole``.
    """
    import torch

    bits = 31 if whole == "i32" else 63
    if not bool(((value > -(2.0**bits) - 1) & (value < 2.0**bits)).all()):
        raise Undefined(f"a value to become {whole} is none")
    moved = value * (1 + ulps * torch.finfo(torch_dtype(dtype)).eps)
    return torch.where((moved > -(2.0**bits) - 1) & (moved < 2.0**bits), moved, value)


def run_calls(
    decomposition: Decomposition, values: Mapping[str, torch.Tensor], mode: Mode = "fp64", precision: str | None = None
) -> dict[str, torch.Tensor]:
    """The target's outputs by running each call's task in order, buffers passed from call to call.

    In mode fp64 buffers stay float64 (no rounding between tasks), so the result equals ``run`` of the graph but for the
    order of float64 operations.
    """
    graph = decomposition.graph
    buffers: dict[str, Any] = {t.name: values[t.name] for t in graph.inputs}
    for call in decomposition.calls:
        sizes = {name: evaluate(expr, graph.sizes) for name, expr in call.sizes}
        task = call.task.at(**sizes)
        given = {t.name: buffers[b] for t, b in zip(task.inputs, call.arguments, strict=True)}
        made = run(task.graph, given, mode, precision)
        for result, name in zip(call.results, task.graph.outputs, strict=True):
            buffers[result] = made[name]
    return {name: buffers[name].reshape(shape_at(graph.value(name).shape, graph.sizes)) for name in graph.outputs}


def round_tf32(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to tf32's 10 mantissa bits, to nearest, ties to even; infinities and NaN stay."""
    import torch

    bits = x.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(torch.isfinite(x), rounded.view(torch.float32), x)


def _upcast(value: torch.Tensor) -> torch.Tensor:
    import torch

    if value.is_floating_point():
        return value.to(torch.float64)
    return value if value.dtype == torch.bool else value.to(torch.int64)


def step(node: Node, sizes: Mapping[str, int], mode: Mode, precision: str) -> Callable[[list[Any]], Any]:
    """What ``node`` computes of its arguments at ``sizes``: torch tensors, and numbers for scalars.

    All that can be known before is, so that what is returned calls torch alone.
    """
    import torch

    op, attrs = OPS[node.op], dict(node.attrs)
    for key in ("n", "expr"):
        if key in attrs:
            attrs[key] = evaluate(attrs[key], sizes)
    if "shape" in attrs:
        attrs["shape"] = shape_at(attrs["shape"], sizes)
    if node.op == "cast":
        attrs["dtype"] = torch.float64 if mode == "fp64" and node.dtype in FLOATS else torch_dtype(node.dtype)
    if is_scalar(node):

        def number(args: list[Any]) -> Any:
            """In float64."""
            found = op.run([torch.tensor(a, dtype=torch.float64) for a in args], attrs)
            return found.item() if args else found

        return number
    run, kind, stored, eager = op.run, op.kind, torch_dtype(node.dtype), mode == "eager"
    wide = torch.float32 if eager else torch.float64
    floats = kind in ("elementwise", "reduction") and node.dtype in (*FLOATS, "f64") and node.op != "cast"

    def compute(args: list[Any]) -> Any:
        if eager:
            args = _as_stored(kind, args, precision)
        if floats:
            args = [_float(a, wide) for a in args]  # torch would go by default dtype
        if op.tensors:
            like = next(a for a in args if isinstance(a, torch.Tensor))
            args = [a if isinstance(a, torch.Tensor) else like.new_full((), a) for a in args]
        out = run(args, attrs)
        if eager:
            return out if out.dtype == stored else out.to(stored)
        return out.to(wide) if out.is_floating_point() and out.dtype != wide else out

    return compute


def _float(value: Any, dtype: torch.dtype) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return float(value)
    return value if value.is_floating_point() or value.dtype == torch.bool else value.to(dtype)


def _as_stored(kind: str, args: list[Any], precision: str) -> list[Any]:
    """Arguments as eager PyTorch takes them: one float dtype for contractions and norms, tf32 where asked."""
    import torch

    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if kind in ("contraction", "row") and len({t.dtype for t in tensors}) > 1:
        wide = tensors[0].dtype
        for t in tensors[1:]:
            wide = torch.promote_types(wide, t.dtype)
        args = [a.to(wide) if isinstance(a, torch.Tensor) else a for a in args]
    if kind == "contraction" and precision == "tf32":
        args = [round_tf32(a) if i < 2 and a.dtype == torch.float32 else a for i, a in enumerate(args)]
    return args
