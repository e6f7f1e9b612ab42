"""What SNF expressions stand for while they are read, and the state and services that reading them takes.

A value is one of: a tensor or node, a ``Size`` (integer over dimensions), a ``Real``, a ``Path`` in the parameter tree,
a tuple of values (``split``), the mask that waits for its operand, a dtype, a flag or a text.  :class:`Reader` turns
values into graph values and calls into nodes; which syntax is which value is :mod:`.expressions`'s.
"""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kernels_generated.runtime.expr import Expr, product
from knowledge_base.errors import nearest

from .builder import Builder, GraphTooLarge
from .dimensions import Dimensions, SizeError
from .errors import SnfError
from .graph import DTYPES, Node, Tensor
from .op_table import OPS, ShapeError


@dataclass(frozen=True)
class Size:
    expr: Expr


@dataclass(frozen=True)
class Real:
    value: float


@dataclass(frozen=True)
class Path:
    """A place in the parameter tree, printed as ``θ.blocks[0].ln1``."""

    text: str = "θ"

    def __truediv__(self, leaf: str) -> Path:
        return Path(f"{self.text}.{leaf}")


@dataclass(frozen=True)
class Dtype:
    name: str


@dataclass(frozen=True)
class Function:
    definition: ast.FunctionDef


class Mask:
    """``Mask_Causal`` before it has met its operand."""


MASK = Mask()
Tensorlike = Tensor | Node
Value = Any  # one of the classes above, a tuple of them, a bool or a str

# Attributes that may stand after the tensors without their name.
_POSITIONAL = {
    "heads": ("n",), "select": ("axis", "index"), "split": ("parts", "index"), "cast": ("dtype",), "iota": ("n",),
    **dict.fromkeys(("sum", "mean", "max", "var"), ("axis", "keepdims")),
}  # fmt: skip


class Reader(ABC):
    """One text's state while it is read: names, dimensions and the graph so far; and what any syntax may ask of it."""

    def __init__(self, name: str, lines: list[str], dims: Dimensions, taken: set[str]) -> None:
        self.name, self.lines, self.dims, self.taken = name, lines, dims, taken
        self.builder = Builder()
        self.builder.reserved = frozenset(taken)
        self.env: dict[str, Value] = {}
        self.globals: dict[str, Value] = self.env
        self.notes: list[str] = []
        self.assigned = "t"  # the name that the statement assigns: unnamed values and parameters are called after it
        self.targets = 1
        self.statement_value: ast.expr | None = None
        self.read_names: set[str] = set()
        self.implicit: dict[str, Expr] = {}  # nodes whose heads the text leaves out, with their number
        self.call_function: Callable[[Function, list[Value], ast.Call], Value] | None = None

    # ------------------------------------------------------------------------------------------------ errors

    def place(self, node: ast.AST) -> tuple[int, int]:
        """Line and column from 1, in characters (ast counts UTF-8 bytes)."""
        line: int = getattr(node, "lineno", 1)
        start: int = getattr(node, "col_offset", 0)
        source = self.lines[line - 1] if line <= len(self.lines) else ""
        return line, len(source.encode()[:start].decode(errors="ignore")) + 1

    def error(self, node: ast.AST, reason: str, mend: str = "") -> SnfError:
        line, column = self.place(node)
        return SnfError(self.name, line, column, reason, mend, self.lines[line - 1] if line <= len(self.lines) else "")

    @contextmanager
    def located(self, node: ast.AST) -> Iterator[None]:
        """Gives errors about shapes and sizes their place."""
        try:
            yield
        except (ShapeError, GraphTooLarge) as error:
            raise self.error(node, str(error)) from error
        except SizeError as error:
            raise self.error(node, str(error), error.mend) from error

    # ------------------------------------------------------------------------------------------------ values

    @abstractmethod
    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression.  Raises SnfError, Restart."""

    def tensor(self, value: Value, node: ast.AST) -> Tensorlike:
        """A value as a graph value: sizes and reals become scalars, a path must be a declared parameter."""
        if isinstance(value, Tensor | Node):
            return value
        if isinstance(value, Size):
            return self.builder.dim(value.expr, self.place(node))
        if isinstance(value, Real):
            return self.builder.const(value.value, self.place(node))
        if isinstance(value, Path):
            known = self.builder.values.get(value.text)
            if known is not None:
                return known
            raise self.error(
                node,
                f"parameter {value.text} is used as a tensor and not declared",
                f"declare {value.text}: bf16[V, C]",
            )
        if isinstance(value, Mask):
            raise self.error(node, "Mask_Causal stands for nothing here", "add it to the scores: scores + Mask_Causal")
        raise self.error(node, f"a tensor is needed here, not {_what(value)}")

    def size(self, node: ast.expr) -> Expr:
        value = self.evaluate(node)
        if isinstance(value, Size):
            return value.expr
        raise self.error(node, f"a size is needed here, not {_what(value)}", "sizes are integers over dimensions")

    def integer(self, node: ast.expr) -> int:
        """A number that the graph's structure depends on."""
        with self.located(node):
            return self.dims.fix(self.size(node))

    def emit(self, op: str, args: list[Tensorlike], node: ast.AST, **attrs: Any) -> Node:
        """Adds a node; what reads a value with implicit heads has them too, unless it makes them explicit."""
        made = self.builder.node(op, args, self.assigned, self.place(node), **attrs)
        self.read_names.update(made.args)
        if OPS[op].kind in ("elementwise", "row", "source"):
            for arg in args:
                if arg.name in self.implicit:
                    self.implicit[made.name] = self.implicit[arg.name]
        return made

    # ------------------------------------------------------------------------------------------------ calls

    def plain_call(self, op: str, spelling: str, node: ast.Call) -> Value:
        """An op as the table has it: tensors, then attributes by position or keyword."""
        positional, most = _POSITIONAL.get(op, ()), OPS[op].arity[1]
        args = [self.tensor(self.evaluate(a), a) for a in node.args[:most]]
        attrs: dict[str, Any] = {}
        for i, a in enumerate(node.args[most:]):
            if i >= len(positional):
                raise self.error(a, f"{spelling} takes {most + len(positional)} arguments at most")
            attrs[positional[i]] = self.attribute(op, positional[i], a, args)
        for keyword in node.keywords:
            key = keyword.arg or "**"
            known = [k for k, _ in OPS[op].attrs]
            if key not in known:
                near = nearest(key, known)
                raise self.error(
                    keyword.value, f"{spelling} has no {key}", f"it has {', '.join(near or known) or 'none'}"
                )
            attrs[key] = self.attribute(op, key, keyword.value, args)
        return self.emit(op, args, node, **attrs)

    def attribute(self, op: str, key: str, node: ast.expr, args: list[Tensorlike]) -> Any:
        """An attribute's value, checked and in the graph's form."""
        if key == "n":
            size = self.size(node)
            if op == "heads" and args and args[0].shape:
                self.dims.divide_exactly(args[0].shape[-1], size, "", self.taken)
            return size
        if key in ("axis", "index", "parts"):
            number = self.integer(node)
            rank = len(args[0].shape) if args else 0
            return number - rank if key == "axis" and number >= 0 and op != "select" else number
        value = self.evaluate(node)
        if key == "eps":
            if isinstance(value, Size) and isinstance(value.expr, int):
                value = Real(float(value.expr))
            if isinstance(value, Real) and 0 <= value.value < math.inf:
                return value.value
            raise self.error(node, "eps is a small number", "eps=1e-5")
        if key == "approximate" and value in ("tanh", "none"):
            return value
        if key == "keepdims" and isinstance(value, bool):
            return value
        if key == "dtype" and isinstance(value, Dtype):
            return value.name
        allowed = {"approximate": '"tanh" or "none"', "keepdims": "True or False", "dtype": ", ".join(DTYPES)}
        raise self.error(node, f"{key} can't be {_what(value)}", f"it is {allowed.get(key, 'a number')}")

    def reshape(self, x: Tensorlike, sizes: list[ast.expr], node: ast.Call) -> Node:
        """x.reshape(a, b, …) or of one tuple; one size may be -1."""
        if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
            sizes = sizes[0].elts
        shape = [self.size(s) for s in sizes]
        if shape.count(-1) == 1:
            rest = product([s for s in shape if s != -1])
            shape[shape.index(-1)] = self.dims.divide_exactly(product(x.shape), rest, "", self.taken)
        return self.emit("reshape", [x], node, shape=tuple(shape))


def _what(value: Value) -> str:
    if isinstance(value, Size):
        return "a size"
    if isinstance(value, Tensor | Node):
        return f"the tensor {value.name}"
    return {Real: "a real number", Path: "a parameter's path", tuple: "several values", Mask: "Mask_Causal"}.get(
        type(value), f"{value!r}"[:60]
    )
