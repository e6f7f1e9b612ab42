"""SNF text to Graph: the statements.  Parsed with ``ast``, never executed; see docs/snf.md for the language.

Expressions are in :mod:`knowledge_base.snf.expressions`.  The text is data from anyone: its length, nesting, loops and
the graph it makes are bounded, and every error names its line and column.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernels_generated.runtime import syntax
from kernels_generated.runtime.expr import evaluate, holds, symbols
from kernels_generated.runtime.expr import show as show_size
from knowledge_base.errors import UserError, nearest

from .dimensions import MAX_SAMPLE, Dimensions, Restart
from .errors import SnfError
from .expressions import CONSTANTS, Evaluator
from .graph import DTYPES, Graph, Node, Tensor, shape_at
from .op_table import is_scalar
from .ranges import WHOLE, Interval, indices, interval
from .reading import Function, Path, Real, Size, Value
from .task import needs

MAX_TEXT = 1 << 19  # characters: a 48-layer GPT-2 printed in full has about 150,000
MAX_LINE = 10_000
MAX_STATEMENTS = 50_000  # executed, loops unrolled
MAX_CALLS = 16  # functions within functions
MAX_RESTARTS = 64  # each rewrites or fixes one more dimension
MAX_RANK = 8

PRECISIONS = ("ieee", "tf32")


@dataclass(frozen=True)
class Parsed:
    """A graph, and what the reader of the text should know of how it was read."""

    graph: Graph
    notes: tuple[str, ...]
    samples: tuple[tuple[str, int], ...]  # every dimension the text declares


def parse(text: str, name: str = "<snf>") -> Graph:
    """The graph that ``text`` means.  Raises SnfError with line, column, reason and mend."""
    return parse_noted(text, name).graph


def parse_noted(text: str, name: str = "<snf>", shape: Mapping[str, int] | None = None) -> Parsed:
    """Like ``parse``, with notes; ``shape`` overrides the dimensions' samples.  Raises SnfError, UserError."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    tree = _tree(text, lines, name)
    taken = set(re.findall(r"\w+", text))  # every word: names that are never invented
    dims = Dimensions(dict(shape or {}))
    for _ in range(MAX_RESTARTS):
        reader = _Reader(name, lines, dims, taken)
        try:
            return reader.read(tree)
        except Restart:
            dims = dims.again()
        except RecursionError:
            break
    raise SnfError(name, 1, 1, "the sizes of this text depend on each other in too many ways", "simplify them")


def _tree(text: str, lines: list[str], name: str) -> ast.Module:
    if len(text) > MAX_TEXT:
        raise SnfError(name, 1, 1, f"text of {len(text):,} characters", f"SNF texts have at most {MAX_TEXT:,}")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            raise SnfError(name, number, MAX_LINE, f"line of {len(line):,} characters", f"at most {MAX_LINE:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return syntax.parse(text)
    except SyntaxError as error:
        row, column = error.lineno or 1, max(error.offset or 1, 1)
        source = lines[row - 1] if 0 < row <= len(lines) else ""
        raise SnfError(name, row, column, f"syntax: {error.msg}", "SNF lines are Python expressions", source) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SnfError(name, 1, 1, f"unreadable: {error or 'nested too deeply'}", "simplify the text") from None


class _Reader(Evaluator):
    """Executes statements into the graph."""

    def __init__(self, name: str, lines: list[str], dims: Dimensions, taken: set[str]) -> None:
        super().__init__(name, lines, dims, taken)
        self.precision = "ieee"
        self.outputs: list[tuple[str, ast.AST]] = []
        self.last: tuple[Value, ast.AST] | None = None
        self.call_function = self._function_call
        self._named: set[str] = set()  # nodes that have the name the text gave them
        self._places: dict[str, ast.AST] = {}  # where inputs were declared
        self._executed = 0
        self._calls = 0
        self._result_name = "t"  # what a function's result will be called

    def read(self, tree: ast.Module) -> Parsed:
        self._block(tree.body)
        outputs = self._outputs(tree)
        self._fix_numbers()
        with self.located(tree):
            free = self.dims.free()
        listed = tuple((d, values) for d, values in self.dims.listed.items() if d in free)
        graph = self.builder.graph(free, outputs, precision=self.precision)
        used = set(graph.sizes)
        graph = self.builder.graph(
            free, outputs, precision=self.precision, listed=tuple(x for x in listed if x[0] in used)
        )
        self._check_samples(graph)
        self._check_overrides()
        return Parsed(graph, tuple(dict.fromkeys(self.notes)), tuple(self.dims.samples.items()))

    # ------------------------------------------------------------------------------------------------ statements

    def _block(self, body: Sequence[ast.stmt]) -> Value | None:
        """Executes statements; the value of a ``return`` among them."""
        for statement in body:
            self._executed += 1
            if self._executed > MAX_STATEMENTS:
                raise self.error(statement, f"more than {MAX_STATEMENTS:,} statements after unrolling")
            if isinstance(statement, ast.Return):
                if not self._calls:
                    raise self.error(statement, "return stands outside a def", "say outputs = a, b")
                if statement.value is None:
                    raise self.error(statement, "return needs a value")
                self.assigned, self.targets, self.statement_value = self._result_name, 1, None
                return self.evaluate(statement.value)
            handler = self._STATEMENTS.get(type(statement))
            if handler is None:
                what = type(statement).__name__.lower()
                raise self.error(
                    statement, f"SNF has no {what} statement", "lines are name = expression, name: dtype[...], def, for"
                )
            handler(self, statement)
        return None

    def _assign(self, statement: ast.Assign) -> None:
        target = statement.targets[0]
        if len(statement.targets) > 1:
            raise self.error(statement, "one assignment a line", "write a = … and b = a")
        if isinstance(target, ast.Name) and target.id == "outputs":
            items = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            self.outputs = [(self._output(self.evaluate(item), item), item) for item in items]
            return
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [self._target(t) for t in targets]
        for i, name in enumerate(names):
            if name in names[:i] and name != "_":
                raise self.error(targets[i], f"{name} is assigned twice in one line", "choose another name")
        self.assigned, self.targets, self.statement_value = "_".join(names), len(names), statement.value
        value = self.evaluate(statement.value)
        if isinstance(target, ast.Tuple):
            if not isinstance(value, tuple) or len(value) != len(names):
                count = len(value) if isinstance(value, tuple) else 1
                raise self.error(statement, f"{len(names)} names and {count} value{'s' if count != 1 else ''}")
            values = value
        else:
            values = (value,)
        for name, one, place in zip(names, values, targets, strict=True):
            self._bind(name, one, place)

    def _target(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name):
            raise self.error(node, "only names are assigned", "write name = expression")
        if node.id in CONSTANTS or node.id.startswith(("θ_", "theta_")) or node.id in ("outputs", "precision"):
            raise self.error(node, f"{node.id} is a word of the language", "choose another name")
        if self.env is self.globals and isinstance(self.env.get(node.id), Size | Function):
            raise self.error(node, f"{node.id} is already a dimension or a function", "choose another name")
        return node.id

    def _bind(self, name: str, value: Value, node: ast.expr) -> None:
        if isinstance(value, Size) and isinstance(value.expr, int) and value.expr > 0 and self.env is self.globals:
            with self.located(node):
                value = Size(self.dims.declare(name, value.expr))
        elif isinstance(value, Size) and name in self.dims.overrides and value.expr != name:
            raise UserError(
                f"{self.name}: {name} is derived from other dimensions and can't be set",
                f"set {', '.join(self.dims.samples)} instead",
            )
        elif isinstance(value, Node) and not is_scalar(value):
            value = self._name_node(name, value)
        elif isinstance(value, tuple):
            self._named.update(part.name for part in value if isinstance(part, Node))
        elif not isinstance(value, Size | Real | Path | Node | Tensor):
            raise self.error(node, "this can't be given a name")
        self.env[name] = value
        if isinstance(value, Node | Tensor | tuple) and self.env is self.globals:
            self.last = (value, node)

    def _name_node(self, name: str, value: Node) -> Node:
        """A node made by this statement takes the name; an older one keeps its own."""
        if value.name in self._named or value.name in self.read_names:
            return value
        heads = self.implicit.pop(value.name, None)
        made = self.builder.rename(value, name)
        if heads is not None:
            self.implicit[made.name] = heads
        self._named.add(made.name)
        return made

    def _declare(self, statement: ast.AnnAssign) -> None:
        """``x: bf16[B, T]``, ``θ.wte: bf16[V, C]``, ``precision: tf32``."""
        annotation, target = statement.annotation, statement.target
        if statement.value is not None:
            raise self.error(statement, "a declaration has no value", "write x: bf16[M, N]")
        if isinstance(target, ast.Name) and target.id == "precision":
            self._set_precision(annotation)
            return
        if not isinstance(annotation, ast.Subscript):
            raise self.error(annotation, "a tensor is declared with its dtype and shape", "write x: bf16[M, N]")
        dtype, role = self._declared_dtype(annotation.value)
        items = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if len(items) > MAX_RANK:
            raise self.error(annotation, f"{len(items)} axes", f"tensors have at most {MAX_RANK}")
        shape = tuple(self.size(item) for item in items)
        name = target.id if isinstance(target, ast.Name) else ""
        if not name or name in CONSTANTS or name.startswith(("θ_", "theta_")):
            path = self.evaluate(target)
            if not isinstance(path, Path) or path.text == "θ":
                raise self.error(target, "only names and parameters are declared", "write θ.wte: bf16[V, C]")
            name, role = path.text, "weight"
        elif self.env is not self.globals or isinstance(self.env.get(name), Size | Function):
            raise self.error(target, f"{name} can't be declared here", "declare inputs at the top, under free names")
        if name in self.builder.values:
            raise self.error(target, f"{name} is already declared or used", "declare it once, before its first use")
        with self.located(target):
            made = self.builder.input(name, dtype, shape, role)
        self._places[name] = target
        if not name.startswith("θ"):
            self.env[name] = made

    def _declared_dtype(self, node: ast.expr) -> tuple[str, str]:
        role = "input"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "weight":
            role, word = "weight", node.attr
        else:
            word = node.id if isinstance(node, ast.Name) else "?"
        if word in DTYPES:
            return word, role
        aliases = {
            "bfloat16": "bf16", "float16": "f16", "half": "f16", "fp16": "f16", "float32": "f32", "fp32": "f32",
            "float": "f32", "int64": "i64", "long": "i64", "int32": "i32", "int": "i64", "float64": "f64",
        }  # fmt: skip
        near = [aliases[word]] if word in aliases else nearest(word, DTYPES)
        mend = f"did you mean {' or '.join(near)}?" if near else f"dtypes are {', '.join(DTYPES)}"
        raise self.error(node, f"there is no dtype {word}", mend)

    def _set_precision(self, node: ast.expr) -> None:
        word = node.id if isinstance(node, ast.Name) else "?"
        if word not in PRECISIONS:
            near = nearest(word, PRECISIONS) or list(PRECISIONS)
            raise self.error(node, f"there is no precision {word}", f"write precision: {' or '.join(near)}")
        self.precision = word

    def _expression(self, statement: ast.Expr) -> None:
        """A bare string (a comment), or ``D in (16, 32, 64)``: the values that kernels may fix D at."""
        node = statement.value
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return
        if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and len(node.ops) == 1):
            raise self.error(statement, "this line assigns nothing", "write name = expression")
        values = node.comparators[0]
        dim = self.size(node.left)
        items = values.elts if isinstance(values, ast.Tuple) else [values]
        numbers = [self.size(item) for item in items]
        if not isinstance(dim, str):
            raise self.error(node.left, "only a free dimension has listed values", "write D in (16, 32, 64)")
        if not numbers or not all(isinstance(n, int) and 1 <= n <= MAX_SAMPLE for n in numbers):
            raise self.error(values, "listed values are whole numbers", "write D in (16, 32, 64)")
        self.dims.listed[dim] = tuple(sorted({int(str(n)) for n in numbers}))

    def _define(self, statement: ast.FunctionDef) -> None:
        arguments = statement.args
        if arguments.defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg or arguments.posonlyargs:
            raise self.error(statement, "a def takes plain names", "def Block(h, θ):")
        if self.env is not self.globals:
            raise self.error(statement, "a def stands at the top", "move it out")
        self.env[statement.name] = Function(statement)

    def _loop(self, statement: ast.For) -> None:
        call = statement.iter
        ranged = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        if not ranged or not isinstance(statement.target, ast.Name) or statement.orelse:
            raise self.error(statement, "a loop is for l in range(n):", "for l in range(L): h = Block(h, θ.blocks[l])")
        assert isinstance(call, ast.Call)
        if not 1 <= len(call.args) <= 2 or call.keywords:
            raise self.error(call, "range takes a count, or a start and an end")
        bounds = [self.integer(a) for a in call.args]
        start, end = bounds if len(bounds) == 2 else (0, bounds[0])
        if end - start > MAX_STATEMENTS:
            raise self.error(call, f"a loop of {end - start:,} rounds", f"at most {MAX_STATEMENTS:,}")
        for number in range(start, end):
            self.env[statement.target.id] = Size(number)
            if self._block(statement.body) is not None:
                raise self.error(statement, "return stands in a loop", "return after it")

    def _function_call(self, function: Function, args: list[Value], node: ast.Call) -> Value:
        definition = function.definition
        names = [a.arg for a in definition.args.args]
        if len(names) != len(args):
            raise self.error(
                node, f"{definition.name} takes {len(names)} arguments ({', '.join(names)}), not {len(args)}"
            )
        if self._calls >= MAX_CALLS:
            raise self.error(node, f"calls nested deeper than {MAX_CALLS}", "SNF has no recursion")
        kept = (self.env, self.assigned, self.targets, self.statement_value, self._depth, self._result_name)
        self._result_name = self.assigned
        self.env, self._depth, self._calls = dict(zip(names, args, strict=True)), 0, self._calls + 1
        result = self._block(definition.body)
        self.env, self.assigned, self.targets, self.statement_value, self._depth, self._result_name = kept
        self._calls -= 1
        if result is None:
            raise self.error(definition, f"{definition.name} returns nothing", "end it with return …")
        return result

    # ------------------------------------------------------------------------------------------------ the end

    def _outputs(self, tree: ast.Module) -> list[str]:
        if not self.outputs:
            if self.last is None:
                raise self.error(tree, "nothing is computed", "assign something: y = GELU(x)")
            value, node = self.last
            last = value[-1] if isinstance(value, tuple) else value
            self.outputs = [(self._output(last, node), node)]
        names = [name for name, _ in self.outputs]
        for i, (name, node) in enumerate(self.outputs):
            if name in names[:i]:
                raise self.error(node, f"{name} is an output twice")
        return names

    def _output(self, value: Value, node: ast.AST) -> str:
        tensor = self.tensor(value, node)
        if isinstance(tensor, Tensor) or is_scalar(tensor):
            raise self.error(node, f"output {tensor.name.lstrip('$')} is not computed from tensors by this text")
        return tensor.name

    def _fix_numbers(self) -> None:
        """What was declared as a dimension and is in no shape is a number: ``beta = 2`` in ``x ** beta``."""
        values = self.builder.values.values()
        shaped = {s for value in values for size in value.shape for s in symbols(size)}
        used = {
            s for value in values if isinstance(value, Node) and value.op == "dim" for s in symbols(value.attr("expr"))
        }
        numbers = (used & set(self.dims.samples)) - shaped
        if numbers:
            self.dims.fixed |= numbers
            raise Restart

    def _check_samples(self, graph: Graph) -> None:
        for value in graph.values:
            sizes = shape_at(value.shape, graph.sizes)
            count = 1
            for size in sizes:
                count *= size
            if count < 1 or count > MAX_SAMPLE or any(s < 1 for s in sizes):
                where = value.where if isinstance(value, Node) else self.place(self._places.get(value.name, ast.Pass()))
                source = self.lines[where[0] - 1] if where[0] <= len(self.lines) else ""
                reason = f"{value.name} would have shape {list(sizes)} at the samples"
                raise SnfError(self.name, *where, reason, "sizes are at least 1, tensors at most 2^40 elements", source)

        for node, index, table in indices(graph):
            whole: dict[str, Interval] = {t.name: (0, 0) for t in graph.inputs if t.dtype in WHOLE}
            if None in interval(graph, index, whole):
                rows = show_size(table.shape[0])
                reason = f"nothing says that {index} stays within the {rows} rows of {table.name}"
                raise self._wrong(node, reason, f"bound it: Minimum(Maximum(i, 0), {rows} - 1)")
        for node, (comparison, left, right) in needs(graph):
            values = [evaluate(e, graph.sizes) for e in (left, right)]
            if not holds(comparison, *values):
                need = f"{show_size(left)} {comparison} {show_size(right)}"
                if not symbols(left) | symbols(right):
                    raise self._wrong(node, f"{need} never holds: an index is outside of what it looks into")
                reason = f"at the samples {need} does not hold: {values[0]} and {values[1]}"
                raise self._wrong(node, reason, f"choose sizes with {need}")

    def _wrong(self, node: Node, reason: str, mend: str = "") -> SnfError:
        line, column = node.where
        return SnfError(self.name, line, column, reason, mend, self.lines[line - 1] if line else "")

    def _check_overrides(self) -> None:
        rests = [r.rest for r in self.dims.rewrites.values()]
        for name in self.dims.overrides:
            if name not in self.dims.samples and name not in rests:
                known = [*self.dims.samples, *rests]
                near = nearest(name, known)
                mend = f"did you mean {' or '.join(near)}?" if near else f"dimensions are {', '.join(known) or 'none'}"
                raise UserError(f"{self.name} has no dimension {name}", mend)

    _STATEMENTS: ClassVar[dict[type[ast.stmt], Callable[[Any, Any], None]]] = {
        ast.Assign: _assign, ast.AnnAssign: _declare, ast.Expr: _expression, ast.FunctionDef: _define, ast.For: _loop,
    }  # fmt: skip
