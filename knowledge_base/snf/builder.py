"""Builds a Graph node by node: the parser, the canonical form and the everyday tasks all go through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernels_generated.runtime.expr import Expr, show

from .graph import Graph, Node, Tensor
from .ops import apply

Value = Tensor | Node

# A GPT-2 with 48 layers has about 2,000 nodes; ten times that is still quick, and a text can't make us build more.
MAX_VALUES = 20_000


class TooLarge(ValueError):
    """A graph of more than MAX_VALUES values."""


class Builder:
    """Inputs and nodes so far.  Equal scalars (constants, sizes) are one node, named by what they are: ``$0.5``."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}

    def input(self, name: str, dtype: str, shape: Sequence[Expr], role: str = "input") -> Tensor:
        tensor = Tensor(name, dtype, tuple(shape), role)
        self._add(tensor)
        return tensor

    def node(
        self, op: str, args: Sequence[Value], name: str = "", where: tuple[int, int] = (0, 0), **attrs: Any
    ) -> Node:
        """Adds ``op(args)``; a name already taken gets a number.  Raises ShapeError, TooLarge."""
        made = apply(op, self.free(name or "t"), args, where, **attrs)
        self._add(made)
        return made

    def const(self, value: float, where: tuple[int, int] = (0, 0)) -> Node:
        return self._scalar(f"${value!r}", "const", (), where, value=value)

    def dim(self, expr: Expr, where: tuple[int, int] = (0, 0)) -> Node:
        """The size ``expr`` as a number; a plain constant when it is one."""
        if isinstance(expr, int):
            return self.const(expr, where)
        return self._scalar(f"${show(expr)}", "dim", (), where, expr=expr)

    def free(self, name: str) -> str:
        """``name``, or ``name_2``, ``name_3`` … when it is taken."""
        taken, number = name, 1
        while taken in self.values:
            number += 1
            taken = f"{name}_{number}"
        return taken

    def _scalar(self, name: str, op: str, args: Sequence[Value], where: tuple[int, int], **attrs: Any) -> Node:
        known = self.values.get(name)
        if isinstance(known, Node):
            return known
        made = apply(op, name, args, where, **attrs)
        self._add(made)
        return made

    def _add(self, value: Value) -> None:
        if len(self.values) >= MAX_VALUES:
            raise TooLarge(f"more than {MAX_VALUES} values")
        assert value.name not in self.values, value.name
        self.values[value.name] = value

    def graph(self, dims: dict[str, int], outputs: Sequence[str]) -> Graph:
        """The graph of what the outputs need."""
        needed = set(outputs)
        for value in reversed(list(self.values.values())):
            if isinstance(value, Node) and value.name in needed:
                needed.update(value.args)
        kept = [v for v in self.values.values() if v.name in needed]
        return Graph(
            tuple(dims.items()),
            tuple(v for v in kept if isinstance(v, Tensor)),
            tuple(v for v in kept if isinstance(v, Node)),
            tuple(outputs),
        )
