"""Builds a Graph node by node: the parser, the canonical form and the everyday tasks all go through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernels_generated.runtime.expr import Expr, symbols

from .graph import Graph, Node, Tensor
from .op_table import apply, is_scalar
from .printer import scalar_text

Value = Tensor | Node

# A GPT-2 with 48 layers has about 2,000 nodes; ten times that is still quick, and a text can't make us build more.
MAX_VALUES = 20_000
MAX_SCALAR_TEXT = 200  # characters: a number's formula is short in any honest text


class GraphTooLarge(ValueError):
    """A graph of more than MAX_VALUES values, or a scalar formula of absurd length."""


class Builder:
    """Inputs and nodes so far.  Equal scalars (constants, sizes) are one node, named by what they are: ``$0.5``."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.reserved: frozenset[str] = frozenset()  # names that are never invented
        self._numbers: dict[str, int] = {}

    def input(self, name: str, dtype: str, shape: Sequence[Expr], role: str = "input") -> Tensor:
        tensor = Tensor(name, dtype, tuple(shape), role)
        self._add(tensor)
        return tensor

    def node(
        self, op: str, args: Sequence[Value], name: str = "t", where: tuple[int, int] = (0, 0), **attrs: Any
    ) -> Node:
        """Adds ``op(args)``; a name already taken gets a number.  Raises ShapeError, GraphTooLarge.

        Names in ``reserved`` are kept for :meth:`rename`.
        """
        made = apply(op, name, args, where, **attrs)
        if is_scalar(made):
            text = scalar_text(op, [a.name[1:] for a in args], dict(made.attrs))
            if len(text) > MAX_SCALAR_TEXT:
                raise GraphTooLarge(f"a number written in more than {MAX_SCALAR_TEXT} characters")
            made = replace(made, name="$" + text)
            known = self.values.get(made.name)
            if isinstance(known, Node):
                return known
        else:
            made = replace(made, name=self.free(name))
        self._add(made)
        return made

    def const(self, value: float, where: tuple[int, int] = (0, 0)) -> Node:
        return self.node("const", [], where=where, value=value)

    def dim(self, expr: Expr, where: tuple[int, int] = (0, 0)) -> Node:
        """The size ``expr`` as a number; a plain constant when it is one."""
        return self.const(expr, where) if isinstance(expr, int) else self.node("dim", [], where=where, expr=expr)

    def free(self, name: str) -> str:
        """``name``, or ``name_2``, ``name_3`` … when it is taken or reserved."""
        number, taken = self._numbers.get(name, 1), name
        while taken in self.values or taken in self.reserved:
            number += 1
            taken = f"{name}_{number}"
        self._numbers[name] = number
        return taken

    def rename(self, node: Node, name: str) -> Node:
        """Gives a node that nothing reads yet the name that the text gives it, numbered if it is taken."""
        made = replace(node, name=name if name not in self.values else self.free(name))
        del self.values[node.name]
        self._add(made)
        return made

    def _add(self, value: Value) -> None:
        if len(self.values) >= MAX_VALUES:
            raise GraphTooLarge(f"more than {MAX_VALUES} values")
        assert value.name not in self.values, value.name
        self.values[value.name] = value

    def graph(self, dims: Mapping[str, int], outputs: Sequence[str], **more: Any) -> Graph:
        """The graph of what the outputs need, with those of ``dims`` that occur in it, in the order given."""
        needed = set(outputs)
        for value in reversed(list(self.values.values())):
            if isinstance(value, Node) and value.name in needed:
                needed.update(value.args)
        kept = self._ordered([v for v in self.values.values() if v.name in needed])
        occur = {symbol for value in kept for expr in expressions_of(value) for symbol in symbols(expr)}
        return Graph(
            tuple((name, sample) for name, sample in dims.items() if name in occur),
            tuple(v for v in kept if isinstance(v, Tensor)),
            tuple(v for v in kept if isinstance(v, Node)),
            tuple(outputs),
            **more,
        )

    def _ordered(self, values: Sequence[Value]) -> list[Value]:
        """The values with each scalar just before its first reader, which is where printing puts it."""
        out: dict[str, Value] = {}

        def emit(value: Value) -> None:
            if isinstance(value, Node):
                for arg in value.args:
                    if arg.startswith("$") and arg not in out:
                        emit(self.values[arg])
            out[value.name] = value

        for value in values:
            if not is_scalar(value):
                emit(value)
        return list(out.values())


def expressions_of(value: Value) -> list[Expr]:
    """The sizes that a value names: its shape's and its attributes'."""
    out = list(value.shape)
    if isinstance(value, Node):
        for key, attr in value.attrs:
            if key == "shape":
                out.extend(attr)
            elif key in ("n", "expr"):
                out.append(attr)
    return out
