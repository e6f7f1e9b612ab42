"""The graph an SNF text means: tensors in, nodes in order, outputs.

Arithmetic is real; a dtype says how a value is *stored*, so rounding happens where a task stores its outputs and
nowhere else.  Shapes are expressions over dimensions (:mod:`kernels_generated.runtime.expr`, in normal form).

Ops (``Node.op``; attributes in brackets; rank and shape rules in :mod:`knowledge_base.snf.op_table`):

- values: ``const[value]``, ``dim[expr]`` (a scalar whose value is a size), ``iota[n]`` (0 … n-1, int64),
  ``causal_mask`` (one argument whose last two axes give its shape; 0 where key <= query + (S - T), else -inf)
- elementwise, NumPy broadcasting: ``add sub mul div pow minimum maximum lt le gt ge eq ne where neg abs exp log sqrt
  rsqrt tanh erf sigmoid gelu[approximate] silu relu square cast[dtype]``
- reductions: ``sum mean max var[axis, keepdims]`` (axis negative, counted from the end)
- rows (last axis): ``softmax``, ``layernorm[eps](x, weight, bias)``, ``rmsnorm[eps](x, weight)``
- contractions: ``linear(x, weight[out, in][, bias])``, ``matmul(a, b)`` (batched, broadcasting)
- views: ``permute[perm]``, ``reshape[shape]``, ``select[axis, index]``, ``split[parts, index]`` (last axis),
  ``heads[n]`` ([B, T, C] to [B, n, T, C/n]), ``merge`` (its inverse)
- movement: ``concat[axis]``, ``gather(table[V, ...], index)``, ``rope(x, cos, sin)``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kernels_generated.runtime import expr as sizes_language
from kernels_generated.runtime.expr import Expr, evaluate

FLOATS = ("bf16", "f16", "f32")
DTYPES = (*FLOATS, "f64", "i32", "i64", "bool")


@dataclass(frozen=True)
class Tensor:
    """An input or parameter, stored contiguous and row-major.  ``role`` is input or weight."""

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    role: str = "input"


@dataclass(frozen=True)
class Node:
    """One application of an op.  ``args`` name tensors or earlier nodes; ``attrs`` are sorted (key, value) pairs.

    ``shape`` is what the op's shape rule gives; ``dtype`` is the dtype the value has if a task stores it.
    ``where`` is (line, column) in the SNF text, both from 1, and is no part of equality.
    """

    name: str
    op: str
    args: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...]
    shape: tuple[Expr, ...]
    dtype: str
    where: tuple[int, int] = field(default=(0, 0), compare=False)

    def attr(self, key: str, default: Any = None) -> Any:
        return dict(self.attrs).get(key, default)


@dataclass(frozen=True)
class Graph:
    """``dims`` are the free dimensions with their sample values; ``nodes`` are in topological order.

    precision: ieee, or tf32 (float32 operands of contractions may be rounded to tf32).
    listed: dimensions that kernels may fix at compile time, each with its values (``D in (16, 32, 64)``).
    Scalars (const, dim and what is computed from them) are nodes named ``$`` and their text: ``$0.5``, ``$sqrt(D)``.
    """

    dims: tuple[tuple[str, int], ...]
    inputs: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    precision: str = "ieee"
    listed: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.dims)

    def value(self, name: str) -> Tensor | Node:
        """The input or node called ``name``; KeyError if there is none."""
        return self._by_name[name]

    @property
    def values(self) -> list[Tensor | Node]:
        """Inputs, then nodes."""
        return [*self.inputs, *self.nodes]

    @cached_property
    def _by_name(self) -> dict[str, Tensor | Node]:
        return {v.name: v for v in self.values}

    def readers(self, name: str) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if name in n.args)

    def at(self, **sizes: int) -> Graph:
        """The same graph with other sample sizes.  Raises KeyError for a dimension it does not have."""
        unknown = sorted(set(sizes) - set(self.sizes))
        if unknown:
            raise KeyError(unknown[0])
        return replace(self, dims=tuple((name, sizes.get(name, value)) for name, value in self.dims))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; ``from_json(to_json())`` is equal (places in the text are left out)."""
        return {
            "dims": [list(d) for d in self.dims],
            "inputs": [[t.name, t.dtype, [sizes_language.to_json(s) for s in t.shape], t.role] for t in self.inputs],
            "nodes": [
                [n.name, n.op, list(n.args), {k: _attr_to_json(v) for k, v in n.attrs},
                 [sizes_language.to_json(s) for s in n.shape], n.dtype]
                for n in self.nodes
            ],
            "outputs": list(self.outputs),
            "precision": self.precision,
            "listed": [[name, list(values)] for name, values in self.listed],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Graph:
        def shape(items: list[Any]) -> tuple[Expr, ...]:
            return tuple(sizes_language.from_json(s) for s in items)

        return cls(
            tuple((str(name), int(value)) for name, value in data["dims"]),
            tuple(Tensor(name, dtype, shape(dims), role) for name, dtype, dims, role in data["inputs"]),
            tuple(
                Node(name, op, tuple(args), _attrs_from_json(attrs), shape(dims), dtype)
                for name, op, args, attrs, dims, dtype in data["nodes"]
            ),
            tuple(data["outputs"]),
            data["precision"],
            tuple((name, tuple(values)) for name, values in data["listed"]),
        )


# Attributes whose value is an expression or a tuple of them; all others are plain JSON values or tuples of ints.
_EXPRESSIONS = ("n", "expr", "shape")


def _attr_to_json(value: Any) -> Any:
    return [_attr_to_json(v) for v in value] if isinstance(value, tuple) else value


def _attrs_from_json(attrs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    def back(key: str, value: Any) -> Any:
        if key == "shape":
            return tuple(sizes_language.from_json(v) for v in value)
        if key in _EXPRESSIONS:
            return sizes_language.from_json(value)
        return tuple(value) if isinstance(value, list) else value

    return tuple(sorted((key, back(key, value)) for key, value in attrs.items()))


def shape_at(shape: tuple[Expr, ...], dims: Mapping[str, int]) -> tuple[int, ...]:
    """The shape as integers at ``dims``."""
    return tuple(evaluate(s, dims) for s in shape)
