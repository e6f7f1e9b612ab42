"""Evaluates SNF expressions (Python's syntax tree, never executed) into graph values.

:mod:`.reading` has the values, :mod:`.sugar` the spellings that are more than one op, :mod:`.parser` the statements.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, ClassVar

from knowledge_base.errors import nearest

from .graph import DTYPES
from .op_table import SPELLINGS, is_scalar
from .reading import MASK, Dtype, Function, Path, Reader, Real, Size, Value
from .sugar import SUGAR, contraction, scaled

MAX_DEPTH = 100  # nesting of one expression

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.MatMult: "matmul",
    ast.FloorDiv: "fdiv", ast.Mod: "mod",
}  # fmt: skip
_SIZE_OPS = {"add": "+", "sub": "-", "mul": "*", "fdiv": "fdiv", "mod": "mod"}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
METHODS = ("split", "reshape")
CONSTANTS: dict[str, Value] = {
    "Mask_Causal": MASK, "inf": Real(math.inf), "θ": Path(), "theta": Path(), **{d: Dtype(d) for d in DTYPES},
}  # fmt: skip


class Evaluator(Reader):
    """Reads expressions: each kind of syntax has a handler."""

    _depth = 0

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
            if len(scores.shape) > 1 and scores.shape[-2] == 1:
                line, _ = self.place(node)
                self.notes.append(f"line {line}: of a single query Mask_Causal masks nothing: it belongs to the scores")
            return self.emit("add", [scores, self.emit("causal_mask", [scores], node)], node)
        a, b = self.tensor(left, node.left), self.tensor(right, node.right)
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
        if name in SUGAR:
            return SUGAR[name](self, node)
        if name not in SPELLINGS:
            functions = [k for k, v in self.globals.items() if isinstance(v, Function)]
            near = nearest(name, [*SPELLINGS, *SUGAR, *functions])
            mend = f"did you mean {' or '.join(near)}?" if near else f"ops are {', '.join(sorted(SPELLINGS))}"
            raise self.error(node.func, f"there is no op {name}", mend)
        return self.plain_call(SPELLINGS[name], name, node)

    def _method(self, node: ast.Call, function: ast.Attribute) -> Value:
        if function.attr == "split":
            return SUGAR["split"](self, node)
        if function.attr == "reshape":
            return self.reshape(self.tensor(self.evaluate(function.value), node), node.args, node)
        near = nearest(function.attr, list(METHODS))
        raise self.error(
            node,
            f"there is no .{function.attr}()",
            f"did you mean .{near[0]}?" if near else "methods: .split, .reshape",
        )

    _HANDLERS: ClassVar[dict[type[ast.expr], Callable[[Any, Any], Value]]] = {
        ast.Constant: _constant, ast.Name: _name, ast.Attribute: _attribute, ast.Subscript: _subscript,
        ast.Tuple: _tuple, ast.UnaryOp: _unary, ast.BinOp: _binary, ast.Compare: _compare, ast.Call: _call,
    }  # fmt: skip


def _kind(node: ast.AST) -> str:
    """A syntax node's class name in words: BoolOp is 'bool op'."""
    text = "".join(f" {c.lower()}" if c.isupper() else c for c in type(node).__name__).strip()
    return {"list": "list: use a tuple", "if exp": "if: use Where", "bool op": "and/or: use Where"}.get(text, text)
