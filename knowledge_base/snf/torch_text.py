"""A task as PyTorch: the source of a module with one function, as somebody who uses PyTorch would write it.

Each node is a line, which :mod:`knowledge_base.snf.op_table` words; numbers stand where they are used, and attention is
one call.  The function is for all sizes that the task is for, and for arguments of any floating-point
dtype: it names no dtype but those that the task casts to.  On arguments in the task's own dtypes it gives, to the bit,
what :mod:`knowledge_base.snf.reference` gives in mode eager; attention may round differently, and where products may
be rounded to tf32, the text leaves that to PyTorch's settings.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import keyword
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernels_generated.runtime.expr import Expr, show, symbols
from kernels_generated.runtime.plan import TORCH_NAMES

from .attention_idiom import Attention, attention
from .graph import FLOATS, Node
from .op_table import OPS, closed, fill, is_scalar, promote, same_shape
from .task import Task, Told, told_by

WIDTH = 120  # columns
_IMPORTED = ("math", "torch", "F")
_REAL = (*FLOATS, "f64")


def torch_text(task: Task) -> str:
    """The source of a module whose one function, ``task.name``, computes the task.

    It takes the task's inputs in order, then ``task.untold_sizes`` as ints, and returns the output, or a tuple of the
    outputs.  It changes no argument, can be differentiated and traced, and runs where its arguments are.  The text is
    formatted as ``ruff format`` leaves it.
    """
    function = _Function(task)
    body = function.body()
    used = _names("\n".join(body))
    name = _identifier(task.name)
    arguments = [f"{function.names[t.name]}: torch.Tensor" for t in task.inputs]
    arguments += [f"{function.names[d]}: int" for d in task.untold_sizes]
    outputs = len(task.graph.outputs)
    result = "torch.Tensor" if outputs == 1 else f"tuple[{', '.join(['torch.Tensor'] * outputs)}]"
    head = f"def {name}({', '.join(arguments)}) -> {result}:"
    if len(head) > WIDTH:
        head = "\n".join([f"def {name}(", *(f"    {a}," for a in arguments), f") -> {result}:"])
    lines = [
        function.says(name), "", *(["import math", ""] if "math" in used else []), "import torch",
        *(["import torch.nn.functional as F"] if "F" in used else []), "", "", head,
        *(line for statement in body for line in _laid_out(statement)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Value:
    """How the text calls a value, and what is known of a tensor's dtype; a number has none.

    sources: what decides the dtype at run time: ``arguments``, as long as these all have one, and dtypes cast to.
    """

    text: str
    dtype: str = ""
    rank: int = 0
    sources: frozenset[str] = frozenset()


class _Function:
    """The body of a task's function.  names: those of inputs and dimensions in the text."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._graph = task.graph
        self._taken = set(_IMPORTED)
        self.names = {t.name: self._take(t.name) for t in task.inputs}
        self.names |= {d: self._take(d) for d in task.sizes}
        self._values = {
            t.name: _Value(self.names[t.name], t.dtype, len(t.shape), frozenset({"arguments"})) for t in task.inputs
        }
        self._statements: list[tuple[str, str]] = []  # a name and what it is given
        self._numbers = frozenset(node.name for node in self._graph.nodes if is_scalar(node))

    def says(self, name: str) -> str:
        """The module's docstring."""
        task = self._task
        arrays = [f"{self.names[t.name]}[{', '.join(map(self._size, t.shape))}]" for t in task.inputs]
        outputs = [f"{t.name}[{', '.join(map(self._size, t.shape))}]" for t in task.outputs]
        given = f", given {', '.join(self.names[d] for d in task.untold_sizes)}" if task.untold_sizes else ""
        told = [f"{', '.join(arrays)} -> {', '.join(outputs)}{given}."]
        if task.constraints:
            needs = (
                f"{self._size(left)} {comparison} {self._size(right)}" for comparison, left, right in task.constraints
            )
            told.append(f"Sizes must have {' and '.join(needs)}.")
        if task.precision == "tf32":
            told.append("The factors of products may be rounded to tf32.")
        told = [line for one in told for line in textwrap.wrap(one, WIDTH, break_long_words=False)]
        return "\n".join([f'"""{name} in PyTorch: what its kernels compute.', "", *told, '"""'])

    def body(self) -> list[str]:
        """The statements, each on one line: sizes that the others use, then what leads to the outputs."""
        graph = self._graph
        attentions = {n.name: one for n in graph.nodes if (one := self._attention(n)) is not None}
        turned = {one.kt: permute for one in attentions.values() if (permute := self._turned(one)) is not None}
        absorbed = {name for one in attentions.values() for name in one.absorbed}
        for node in graph.nodes:
            if node.name in self._numbers:
                template = OPS[node.op].of_numbers(dict(node.attrs))
                text = fill(template, [self._values[a].text for a in node.args], self._attrs(node))
                self._values[node.name] = _Value(text)
            elif node.name in attentions:
                self._attend(node, attentions[node.name], attentions[node.name].kt in turned)
            elif node.name in turned:
                self._keys(node, turned[node.name])
            elif node.name not in absorbed:
                self._compute(node)
        return self._live([self._values[name].text for name in graph.outputs])

    # ------------------------------------------------------------------------------------------------ names

    def _take(self, wish: str) -> str:
        """A name like ``wish`` that Python has not, and nothing else here."""
        name = _identifier(wish)
        for one in itertools.chain((name, f"{name}_"), (f"{name}_{i}" for i in itertools.count(2))):
            if one not in self._taken and not keyword.iskeyword(one) and not hasattr(builtins, one):
                self._taken.add(one)
                return one
        raise AssertionError

    def _size(self, size: Expr) -> str:
        def plain(e: Expr) -> Expr:
            if not isinstance(e, tuple):
                return self.names[e] if isinstance(e, str) else e
            op, a, b = e[0], plain(e[1]), plain(e[2])
            return ("fdiv", ("-", ("+", a, b), 1), b) if op == "cdiv" else (op, a, b)

        return re.sub(r"\s*(//|[*%])\s*", r" \1 ", show(plain(size)))

    def _attrs(self, node: Node) -> dict[str, str]:
        """The texts of the node's attributes."""
        first = self._task.inputs[0].name if self._task.inputs else None
        out = {"device": "None" if first is None else f"{self.names[first]}.device"}
        for key, value in node.attrs:
            if key in ("n", "expr"):
                out[key] = self._size(value)
            elif key in ("shape", "perm"):
                out[key] = ", ".join(map(self._size, value)) or "()"
            elif key == "dtype":
                out[key] = f"torch.{TORCH_NAMES[value]}"
            else:
                out[key] = _literal(value)
        return out

    def _assign(self, wish: str, text: str, like: _Value) -> _Value:
        """A statement that gives a new name ``text``: the value ``like`` under that name."""
        made = replace(like, text=self._take(wish))
        self._statements.append((made.text, text))
        return made

    # ------------------------------------------------------------------------------------------------ nodes

    def _compute(self, node: Node) -> None:
        """The node's statement, with what eager PyTorch needs said of dtypes (:func:`.reference.step`)."""
        op = OPS[node.op]
        given = [self._values[a] for a in node.args]
        args = self._agreed(given) if op.kind in ("contraction", "row") else given
        if op.kind in ("elementwise", "reduction") and node.dtype in _REAL and node.op != "cast":
            args = [_float(a) for a in args]
        if op.tensors:
            like = next(a.text for a in args if a.dtype)
            args = [a if a.dtype else replace(a, text=f"{like}.new_full((), {a.text})") for a in args]
        if node.op == "where" and not args[1].dtype and not args[2].dtype:
            args = [args[0], *(replace(a, text=_as_float(a.text)) for a in args[1:])]
        made = self._assign(
            node.name if node.name.isidentifier() else node.op,
            fill(op.torch, [a.text for a in args], self._attrs(node)),
            _Value("", node.dtype, len(node.shape), _sources(node, args)),
        )
        if _result(node, args) != node.dtype:
            sample = next((a for a in given if a.dtype == node.dtype), None)
            floats = [a for a in given if a.dtype in FLOATS]
            if sample is not None:
                dtype, made = f"{sample.text}.dtype", replace(made, sources=sample.sources)
            elif len(floats) > 1:
                dtype = self._promoted(floats)
            else:
                dtype = f"torch.{TORCH_NAMES[node.dtype]}"
            self._statements.append((made.text, f"{made.text}.to({dtype})"))
        self._values[node.name] = made

    def _agreed(self, args: Sequence[_Value]) -> list[_Value]:
        """Tensors of one dtype, whatever the arguments have."""
        if len({(a.dtype, a.sources) for a in args}) == 1:
            return list(args)
        wide, sources = promote([a.dtype for a in args]), frozenset().union(*(a.sources for a in args))
        widest = next((a for a in args if a.dtype == wide), None)
        if widest is not None and len({a.sources for a in args}) == 1:
            return [a if a.dtype == wide else replace(a, text=f"{a.text}.to({widest.text}.dtype)") for a in args]
        dtype = self._take("dtype")
        self._statements.append((dtype, self._promoted(args)))
        return [_Value(f"{a.text}.to({dtype})", wide, a.rank, sources) for a in args]

    def _promoted(self, args: Sequence[_Value]) -> str:
        """The dtype that the tensors have together."""
        text, *others = {(a.dtype, a.sources): f"{a.text}.dtype" for a in reversed(args)}.values()
        for other in others:
            text = f"torch.promote_types({text}, {other})"
        return text

    # ------------------------------------------------------------------------------------------------ attention

    def _attention(self, node: Node) -> Attention | None:
        """The attention that ends here, if PyTorch has it: of the same heads, or of queries in groups."""
        found = attention(self._graph, node, self._numbers)
        if found is None:
            return None
        q, kt, v = (self._graph.value(name) for name in (found.q, found.kt, found.v))
        batch = slice(0, 2 if self._grouped(found) else -2)
        fits = same_shape(q.shape[batch], kt.shape[batch]) and same_shape(q.shape[batch], v.shape[batch])
        return found if fits and q.dtype == kt.dtype == v.dtype else None

    def _turned(self, found: Attention) -> Node | None:
        """The permute that makes kᵀ, if it does that for this attention alone."""
        name = found.kt
        value = self._graph.value(self._reshaped(name) or name)
        alone = len(self._graph.readers(name)) == 1 and name not in self._graph.outputs
        return value if alone and isinstance(value, Node) and value.op == "permute" else None

    def _keys(self, node: Node, permute: Node) -> None:
        """k instead of the ``node`` that is kᵀ."""
        *order, last, before = permute.attr("perm")
        perm = [*order, before, last]
        source = self._values[permute.args[0]]
        like = replace(source, rank=len(perm))
        text = f"{source.text}.permute({', '.join(map(str, perm))})"
        self._values[node.name] = like if perm == sorted(perm) else self._assign(node.name, text, like)

    def _attend(self, node: Node, found: Attention, turned: bool) -> None:
        """The call, between views where queries come in groups: [B, H, G, T, D] of keys [B, H, 1, S, D]."""
        q, k, v = (self._values[name] for name in (found.q, found.kt, found.v))
        if not turned:
            k = replace(k, text=f"{k.text}.transpose(-2, -1)")
        grouped = self._grouped(found)
        if grouped:
            q = replace(q, text=f"{q.text}.flatten(1, 2)")
            if k.rank == 5:
                k = replace(k, text=f"{k.text}.squeeze(2)")
            v = replace(v, text=self._without_ones(found.v))
        q, k, v = self._agreed([q, k, v])
        scale = ""
        for op, number in found.factors:
            factor = self._values[number].text
            if op == "div":
                scale = f"{closed(scale or '1')} / {closed(factor)}"
            else:
                scale = f"{closed(scale)} * {closed(factor)}" if scale else factor
        causal = "is_causal=True, " if found.causal else ""
        more = ", enable_gqa=True" if grouped else ""
        call = f"F.scaled_dot_product_attention({q.text}, {k.text}, {v.text}, {causal}scale={scale or '1.0'}{more})"
        like = _Value("", node.dtype, len(node.shape), q.sources)
        if grouped:
            heads = f"({self._size(node.shape[1])}, {self._size(node.shape[2])})"
            call = f"torch.unflatten({self._assign('attention', call, like).text}, 1, {heads})"
        self._values[node.name] = self._assign(node.name, call, like)

    def _grouped(self, found: Attention) -> bool:
        q, kt, v = (self._graph.value(name).shape for name in (found.q, found.kt, found.v))
        return len(q) == len(kt) == len(v) == 5 and kt[2] == v[2] == 1

    def _without_ones(self, name: str) -> str:
        """The value without its axis 2, which is one."""
        plain = self._reshaped(name)
        return f"{self._values[name].text}.squeeze(2)" if plain is None else self._values[plain].text

    def _reshaped(self, name: str) -> str | None:
        """What was reshaped to get that axis 2 of one."""
        value = self._graph.value(name)
        if not isinstance(value, Node) or value.op != "reshape":
            return None
        without = (*value.shape[:2], *value.shape[3:])
        return value.args[0] if same_shape(self._graph.value(value.args[0]).shape, without) else None

    # ------------------------------------------------------------------------------------------------ statements

    def _live(self, outputs: list[str]) -> list[str]:
        """The statements that lead to the outputs, after the sizes that they use; the last one returns."""
        needed = _names(*outputs)
        kept: list[tuple[str, str]] = []
        for name, text in reversed(self._statements):
            if name in needed:
                needed |= _names(text)
                kept.insert(0, (name, text))
        last = f"return {', '.join(outputs)}"
        if kept and outputs == [kept[-1][0]]:
            last = f"return {kept.pop()[1]}"
        made = [*self._sizes(needed), *(f"{name} = {text}" for name, text in kept), last]
        return [_POWER.sub(r"\1**\2", one) for one in made]

    def _sizes(self, needed: set[str]) -> list[str]:
        """Statements that read those of the names that are dimensions off the inputs' shapes."""
        told = [one for one in told_by(self._task.inputs) if one.dim not in self._task.untold_sizes]
        wanted: list[Told] = []
        for one in reversed(told):
            if self.names[one.dim] in needed:
                wanted.insert(0, one)
                needed |= {self.names[d] for d in symbols(one.less) | symbols(one.by)}
        out: dict[str, str] = {}
        for one in wanted:
            name, tensor, rank = self.names[one.dim], self.names[one.tensor.name], len(one.tensor.shape)
            axes = {w.axis: self.names[w.dim] for w in wanted if w.plain and w.tensor == one.tensor}
            if one.plain and len(axes) > 1:
                out[f"{tensor}.shape"] = f"{', '.join(axes.get(i, '_') for i in range(rank))} = {tensor}.shape"
                continue
            text = f"{tensor}.shape[{one.axis}]"
            if one.less != 0:
                less = self._size(one.less)
                text = f"{text} - {less if re.fullmatch(r'[^ ]+', less) else f'({less})'}"
            if one.by != 1:
                text = f"{closed(text)} // {closed(self._size(one.by))}"
            out[name] = f"{name} = {text}"
        return list(out.values())


# ---------------------------------------------------------------------------------------------------- dtypes


def _float(value: _Value) -> _Value:
    """A tensor of integers as float32, which is what they count as among floats."""
    if value.dtype not in ("i32", "i64"):
        return value
    return _Value(f"{value.text}.float()", "f32", value.rank, frozenset({"f32"}))


def _as_float(number: str) -> str:
    try:
        return _literal(float(number))
    except ValueError:
        return f"float({number})"


def _result(node: Node, args: Sequence[_Value]) -> str:
    """The dtype that PyTorch gives the node's expression of these arguments, before it is stored."""
    op = OPS[node.op]
    tensors = [a for a in (args[1:] if op.dtype == "branches" else args) if a.dtype]
    if op.kind in ("contraction", "row"):
        return promote([a.dtype for a in tensors])
    promotes = op.dtype in ("promote", "float", "branches") or node.op == "rope"
    if not tensors or not promotes or op.kind == "reduction":
        return node.dtype
    # A tensor without axes counts only where it is of floats and the others are of integers.
    some, bare = ([a.dtype for a in tensors if bool(a.rank) == axes] for axes in (True, False))
    if some and (promote(some) in _REAL or promote(bare or some) not in _REAL):
        return promote(some)
    return promote(some + bare)


def _sources(node: Node, args: Sequence[_Value]) -> frozenset[str]:
    """What decides the dtype of the node's value when the function runs."""
    op = OPS[node.op]
    if op.dtype in ("attr", "bool", "i64"):
        return frozenset({node.dtype})
    used = args[:1] if node.op == "gather" else args[1:] if op.dtype == "branches" else args
    return frozenset().union(*(a.sources for a in used)) or frozenset({node.dtype})


# ---------------------------------------------------------------------------------------------------- layout

# Between simple operands ruff leaves no blanks around a power.
_POWER = re.compile(r"(?<![\w.)\]])([\w.]+) \*\* (-?[\w.]+)(?![\w.(\[])")


def _identifier(text: str) -> str:
    name = re.sub(r"\W", "_", text)
    return name if name.isidentifier() else f"_{name}"


def _literal(value: Any) -> str:
    """A constant as ruff writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "math.nan" if math.isnan(value) else f"{'-' if value < 0 else ''}math.inf"
    return json.dumps(value) if isinstance(value, str) else repr(value).replace("e+", "e")


def _names(*texts: str) -> set[str]:
    """The variables that statements or expressions have in them."""
    trees = (ast.walk(ast.parse(text)) for text in texts)
    return {node.id for nodes in trees for node in nodes if isinstance(node, ast.Name)}


def _laid_out(statement: str) -> list[str]:
    """The statement's lines in a function's body."""
    if len(statement) + 4 <= WIDTH:
        return [f"    {statement}"]
    mark = "return " if statement.startswith("return ") else " = "
    target, _, value = statement.partition(mark)
    return [f"    {line}" for line in _broken(target + mark, value, WIDTH - 4)]


def _broken(before: str, text: str, width: int) -> list[str]:
    """``before`` and the expression on lines of at most so many columns, as ruff breaks them."""
    made = ast.parse(text, mode="eval").body

    def of(node: ast.AST) -> str:
        return ast.get_source_segment(text, node) or ""

    head, parts, tail = "(", [text], ")"
    if isinstance(made, ast.Call):
        head, parts = f"{of(made.func)}(", [of(a) for a in (*made.args, *made.keywords)]
    elif isinstance(made, ast.List):
        head, parts, tail = "[", [of(a) for a in made.elts], "]"
    elif isinstance(made, ast.Tuple):
        parts = [of(a) for a in made.elts]
    elif isinstance(made, ast.BinOp | ast.Compare) and len(text) + 4 > width:
        return [f"{before}(", *(f"    {line}" for line in _operands(text)), ")"]
    inside = ", ".join(parts)
    if len(inside) + 4 <= width:
        return [f"{before}{head}", f"    {inside}", tail]
    lines = [
        line
        for part in parts
        for line in ([f"{part},"] if len(part) + 5 <= width else _ended(_broken("", part, width - 4)))
    ]
    return [f"{before}{head}", *(f"    {line}" for line in lines), tail]


def _ended(lines: list[str]) -> list[str]:
    return [*lines[:-1], f"{lines[-1]},"]


# What binds least comes first.
_OPERATORS = re.compile(r" (?:<|<=|>|>=|==|!=) "), re.compile(r" [+-] "), re.compile(r" (?:\*|//?|%|@) ")


def _operands(text: str) -> list[str]:
    """An expression in lines, broken before its operators that bind least."""
    for operators in _OPERATORS:
        outside = (m.start() for m in operators.finditer(text))
        cuts = [0, *(at for at in outside if _depth(text[:at]) == 0), len(text)]
        if len(cuts) > 2:
            return [text[a:b].strip() for a, b in itertools.pairwise(cuts)]
    return [text]


def _depth(text: str) -> int:
    """How many brackets stand open at its end."""
    return sum(text.count(one) for one in "([") - sum(text.count(one) for one in ")]")
