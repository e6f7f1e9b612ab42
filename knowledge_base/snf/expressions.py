"""Evaluates SNF expressions (Python's syntax tree, never executed) into graph values.

An expression's value is one of: a tensor or node, a ``Size`` (integer over dimensions), a ``Real``, a ``Path`` in the
parameter tree, a tuple of values (``split``), the mask that waits for its operand, a dtype, a flag or a text.
:mod:`knowledge_base.snf.forms` has the spellings that are more than one op, :mod:`knowledge_base.snf.parser` the
statements.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from kernels_generated.runtime.expr import Expr, product
from knowledge_base.errors import nearest

from .builder import Builder, TooLarge
from .errors import SnfError
from .graph import DTYPES, Node, Tensor
from .ops import OPS, SPELLINGS, ShapeError, is_scalar
from .sizes import Dimensions, SizeError

MAX_DEPTH = 100  # nesting of one expression


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

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.MatMult: "matmul",
    ast.FloorDiv: "fdiv", ast.Mod: "mod",
}  # fmt: skip
_SIZE_OPS = {"add": "+", "sub": "-", "mul": "*", "fdiv": "fdiv", "mod": "mod"}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
# Attributes that may stand after the tensors without their name.
_POSITIONAL = {
    "heads": ("n",), "select": ("axis", "index"), "split": ("parts", "index"), "cast": ("dtype",), "iota": ("n",),
    **dict.fromkeys(("sum", "mean", "max", "var"), ("axis", "keepdims")),
}  # fmt: skip
METHODS = ("split", "reshape")
CONSTANTS: dict[str, Value] = {
    "Mask_Causal": MASK, "inf": Real(math.inf), "θ": Path(), "theta": Path(), **{d: Dtype(d) for d in DTYPES},
}  # fmt: skip


class Evaluator:
    """One text's state while it is read: names, dimensions and the graph so far."""

    def __init__(self, name: str, lines: list[str], dims: Dimensions, taken: set[str]) -> None:
        from .forms import FORMS

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
        self._forms = FORMS
        self._depth = 0

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
        except (ShapeError, TooLarge) as error:
            raise self.error(node, str(error)) from error
        except SizeError as error:
            raise self.error(node, str(error), error.mend) from error

    # ------------------------------------------------------------------------------------------------ evaluation

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression.  Raises SnfError, Restart."""
        handler = self._HANDLERS.get(type(node))
        if handler is None:
            raise self.error(node, f"SNF has no {_kind(node)}", "expressions are arithmetic, @, comparisons and ops")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error(node, f"expression nested deeper than {MAX_DEPTH}", "give its parts names")
        try:
            with self.located(node):
                return handler(self, node)
        finally:
            self._depth -= 1

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

    def _constant(self, node: ast.Constant) -> Value:
        value = node.value
        if isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return Size(self.dims.combine("+", value, 0))
        if isinstance(value, float):
            if math.isinf(value):
                raise self.error(node, "this number is too large for a float64", "write inf if infinity is meant")
            return Real(value)
        raise self.error(node, f"SNF has no constant {value!r}")

    def _name(self, node: ast.Name) -> Value:
        name = node.id
        for scope in (self.env, self.globals, CONSTANTS):
            if name in scope:
                return scope[name]
        for prefix in ("θ_", "theta_"):
            if name.startswith(prefix) and len(name) > len(prefix):
                root = self.env.get("θ", Path())
                return (root if isinstance(root, Path) else Path()) / name[len(prefix) :]
        near = nearest(name, [*self.env, *self.globals, *CONSTANTS, *SPELLINGS])
        mend = f"did you mean {' or '.join(near)}? " if near else ""
        raise self.error(
            node, f"{name} is not defined", f"{mend}Declare an input as {name}: bf16[...], a dimension as {name} = 128"
        )

    def _attribute(self, node: ast.Attribute) -> Value:
        value = self.evaluate(node.value)
        if isinstance(value, Path) and not (node.attr == "T" and value.text in self.builder.values):
            return value / node.attr
        if node.attr == "T":
            x = self.tensor(value, node.value)
            rank = len(x.shape)
            if rank < 2:
                raise self.error(node, f".T exchanges the last two axes, {x.name} has {rank}")
            return self.emit("permute", [x], node, perm=(*range(rank - 2), rank - 1, rank - 2))
        near = nearest(node.attr, ["T", *METHODS])
        raise self.error(
            node,
            f"a tensor has no .{node.attr}",
            f"did you mean .{near[0]}?" if near else "it has .T, .split, .reshape",
        )

    def _subscript(self, node: ast.Subscript) -> Value:
        value = self.evaluate(node.value)
        if isinstance(value, Path):
            return Path(f"{value.text}[{self.integer(node.slice)}]")
        if isinstance(value, tuple):
            index = self.integer(node.slice)
            if not -len(value) <= index < len(value):
                raise self.error(node, f"there are {len(value)} parts, none is number {index}")
            return value[index]
        raise self.error(node, "tensors are not indexed in SNF", "use Select(x, axis, index), Gather or .split(n)")

    def _tuple(self, node: ast.Tuple) -> Value:
        return tuple(self.evaluate(item) for item in node.elts)

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        if not isinstance(node.op, ast.USub):
            raise self.error(node, f"SNF has no {_kind(node.op)}", "use Where and comparisons")
        if isinstance(value, Size):
            return Size(self.dims.combine("-", 0, value.expr))
        if isinstance(value, Real):
            return Real(-value.value)
        return self.emit("neg", [self.tensor(value, node.operand)], node)

    def _binary(self, node: ast.BinOp) -> Value:
        op = _BINARY.get(type(node.op))
        if op is None:
            raise self.error(
                node, f"SNF has no {_kind(node.op)}", "arithmetic is + - * / ** and @; sizes also take // and %"
            )
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if isinstance(left, Size) and isinstance(right, Size) and op in _SIZE_OPS:
            if op == "fdiv" and not isinstance(right.expr, int):
                wish = self.assigned if node is self.statement_value else ""
                return Size(self.dims.divide_exactly(left.expr, right.expr, wish, self.taken))
            return Size(self.dims.combine(_SIZE_OPS[op], left.expr, right.expr))
        if op in ("fdiv", "mod"):
            raise self.error(node, "// and % are for sizes only", "use / for numbers and tensors")
        folded = self._fold(op, left, right, node)
        if folded is not None:
            return folded
        if op == "add" and (left is MASK or right is MASK):
            scores = self.tensor(left if right is MASK else right, node)
            return self.emit("add", [scores, self.emit("causal_mask", [scores], node)], node)
        a, b = self.tensor(left, node.left), self.tensor(right, node.right)
        from .forms import contraction, scaled

        if op == "matmul":
            return contraction(self, a, b, node)
        return scaled(self, op, a, b, node) or self.emit(op, [a, b], node)

    def _fold(self, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
        """Arithmetic on plain numbers; None where a tensor or a dimension takes part."""
        numbers = []
        for value in (left, right):
            if isinstance(value, Real):
                numbers.append(value.value)
            elif isinstance(value, Size) and isinstance(value.expr, int):
                numbers.append(value.expr)
            else:
                return None
        a, b = numbers
        try:
            if op == "pow":
                out = math.pow(a, b)
            else:
                out = {"add": a + b, "sub": a - b, "mul": a * b}[op] if op != "div" else a / b
            if math.isinf(out) and not (math.isinf(a) or math.isinf(b)):
                raise OverflowError
        except (ZeroDivisionError, OverflowError, ValueError, KeyError) as error:
            raise self.error(node, f"{a!r} {op} {b!r} has no value") from error
        whole = op == "pow" and isinstance(a, int) and isinstance(b, int) and abs(out) < 2**40 and out == int(out)
        return Size(int(out)) if whole else Real(float(out))

    def _compare(self, node: ast.Compare) -> Value:
        op = _COMPARE.get(type(node.ops[0]))
        if len(node.ops) != 1 or op is None:
            raise self.error(node, "a comparison is between two values", "use < <= > >= == != once, and Where")
        args = [self.tensor(self.evaluate(n), n) for n in (node.left, node.comparators[0])]
        if all(is_scalar(a) for a in args):
            raise self.error(node, "comparing two numbers decides nothing at run time", "compare tensors")
        return self.emit(op, args, node)

    # ------------------------------------------------------------------------------------------------ calls

    def _call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        if not isinstance(node.func, ast.Name):
            raise self.error(node, "only ops and functions are called")
        name = node.func.id
        function = self.env.get(name, self.globals.get(name))
        if isinstance(function, Function):
            assert self.call_function is not None
            if node.keywords:
                raise self.error(node, f"{name} takes its arguments by position")
            return self.call_function(function, [self.evaluate(a) for a in node.args], node)
        if name in self._forms:
            return self._forms[name](self, node)
        if name not in SPELLINGS:
            functions = [k for k, v in self.globals.items() if isinstance(v, Function)]
            near = nearest(name, [*SPELLINGS, *self._forms, *functions])
            mend = f"did you mean {' or '.join(near)}?" if near else f"ops are {', '.join(sorted(SPELLINGS))}"
            raise self.error(node.func, f"there is no op {name}", mend)
        return self._plain_call(SPELLINGS[name], name, node)

    def _plain_call(self, op: str, spelling: str, node: ast.Call) -> Value:
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

    def _method(self, node: ast.Call, function: ast.Attribute) -> Value:
        if function.attr == "split":
            return self._forms["split"](self, node)
        if function.attr == "reshape":
            return self.reshape(self.tensor(self.evaluate(function.value), node), node.args, node)
        near = nearest(function.attr, list(METHODS))
        raise self.error(
            node,
            f"there is no .{function.attr}()",
            f"did you mean .{near[0]}?" if near else "methods: .split, .reshape",
        )

    def reshape(self, x: Tensorlike, sizes: list[ast.expr], node: ast.Call) -> Node:
        """x.reshape(a, b, …) or of one tuple; one size may be -1."""
        if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
            sizes = sizes[0].elts
        shape = [self.size(s) for s in sizes]
        if shape.count(-1) == 1:
            rest = product([s for s in shape if s != -1])
            shape[shape.index(-1)] = self.dims.divide_exactly(product(x.shape), rest, "", self.taken)
        return self.emit("reshape", [x], node, shape=tuple(shape))

    _HANDLERS: ClassVar[dict[type[ast.expr], Callable[[Any, Any], Value]]] = {
        ast.Constant: _constant, ast.Name: _name, ast.Attribute: _attribute, ast.Subscript: _subscript,
        ast.Tuple: _tuple, ast.UnaryOp: _unary, ast.BinOp: _binary, ast.Compare: _compare, ast.Call: _call,
    }  # fmt: skip


def _kind(node: ast.AST) -> str:
    """A syntax node's class name in words: BoolOp is 'bool op'."""
    text = "".join(f" {c.lower()}" if c.isupper() else c for c in type(node).__name__).strip()
    return {"list": "list: use a tuple", "if exp": "if: use Where", "bool op": "and/or: use Where"}.get(text, text)


def _what(value: Value) -> str:
    if isinstance(value, Size):
        return "a size"
    if isinstance(value, Tensor | Node):
        return f"the tensor {value.name}"
    return {Real: "a real number", Path: "a parameter's path", tuple: "several values", Mask: "Mask_Causal"}.get(
        type(value), f"{value!r}"[:60]
    )
