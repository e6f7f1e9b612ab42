"""The normal form of a sub-graph: what is computed, freed of the target's names, sizes and buffers.

Input axes are split as far as the sub-graph's own views need, leading axes that all values share are one, views are one
strided read each (select, permute, reshape), equal nodes are one, commutative operands are sorted, and everything is
named by structure.  :mod:`knowledge_base.snf.canonical` makes a Task of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernels_generated.runtime.expr import Expr, build, evaluate, normalise, product, substitute, symbols

from . import axes as sizes
from . import naming, views
from .builder import Builder, Value, expressions_of
from .graph import Graph, Node, Tensor
from .identity import order
from .op_table import OPS, is_scalar, same


@dataclass(frozen=True)
class Normal:
    """``graph`` in normal form with its identity, and how it lies in the target.

    arguments, results: the target's names of the graph's inputs and outputs, in order.
    sizes: the graph's dimensions as expressions over the target's.  tiles: dimensions that attention holds in one tile.
    """

    graph: Graph
    identity: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    sizes: tuple[tuple[str, Expr], ...]
    tiles: tuple[str, ...]


def normal_form(graph: Graph) -> Normal:
    """The normal form of ``graph`` (a whole task: its inputs are buffers, its outputs are stored)."""
    graph = _simplified(graph)
    try:
        draft = _general(graph)
    except (sizes.NotGeneral, views.NotOneAtom):
        draft = _literal(graph)
    return _named(_clustered(draft), graph)


@dataclass(frozen=True)
class _Draft:
    """A graph in normal form under provisional names; ``origins`` are its dimensions in the target's."""

    graph: Graph
    origins: dict[str, Expr]
    results: dict[str, str]  # the draft's output -> the target's
    tiles: frozenset[str] = frozenset()


# ---------------------------------------------------------------------------------------------------- one spelling


def _simplified(graph: Graph) -> Graph:
    """One spelling for what is the same op: x·x and x² are square, √ is sqrt, x @ wᵀ with a weight is linear."""
    nodes = []
    for node in graph.nodes:
        if node.op == "mul" and node.args[0] == node.args[1] and not is_scalar(node):
            node = replace(node, op="square", args=node.args[:1])
        elif node.op == "pow" and not is_scalar(node):
            exponent = graph.value(node.args[1])
            plain = _POWERS.get(exponent.attr("value")) if isinstance(exponent, Node) else None
            if plain is not None:
                node = replace(node, op=plain, args=node.args[:1])
        elif node.op == "matmul":
            turned = graph.value(node.args[1])
            if isinstance(turned, Node) and turned.op == "permute" and turned.attr("perm") == (1, 0):
                weight = graph.value(turned.args[0])
                x = graph.value(node.args[0])
                if isinstance(weight, Tensor) and weight.role == "weight" and weight.dtype == x.dtype:
                    node = replace(node, op="linear", args=(x.name, weight.name))
        nodes.append(node)
    needed = set(graph.outputs)
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.args)
    return replace(
        graph,
        nodes=tuple(n for n in nodes if n.name in needed),
        inputs=tuple(t for t in graph.inputs if t.name in needed),
    )


# What PyTorch computes for these exponents, too: √−∞ is NaN, where a power of −∞ would be ∞.
_POWERS = {2: "square", 0.5: "sqrt", -0.5: "rsqrt"}


# ---------------------------------------------------------------------------------------------------- drafts


class _Once(Builder):
    """A Builder that makes equal nodes once."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Any, Node] = {}

    def once(self, op: str, args: Sequence[Value], **attrs: Any) -> Node:
        names = [a.name for a in args]
        key = (op, tuple(sorted(names) if OPS[op].commutative else names), tuple(sorted(attrs.items())))
        if key not in self._known:
            self._known[key] = self.node(op, args, **attrs)
        return self._known[key]


def _general(graph: Graph) -> _Draft:
    """The draft over atoms of the sub-graph's own axes."""
    axes = sizes.infer(graph)
    sizes.lead(graph, axes)
    atoms = _Atoms(axes, graph)
    counts = {name: [len(axis) for axis in atoms.of[name]] for name in atoms.of}
    cuts = {name: len(sizes.resolve(axis)) for name, axis in axes.cut.items()}
    reads = views.reads(graph, counts, cuts, axes.shift)
    writer = _Writer(graph, atoms, reads)
    draft_graph, results = writer.write()
    origins = {s: atoms.origins[s] for s in draft_graph.sizes}
    tiles = {atoms.expr(axis) for axis in axes.tiles}
    return _Draft(draft_graph, origins, results, frozenset(t for t in tiles if isinstance(t, str)))


class _Atoms:
    """Names for atoms, and the target's sizes said in them."""

    def __init__(self, axes: sizes.Axes, graph: Graph) -> None:
        self.of: dict[str, list[sizes.Axis]] = {name: axes.resolved(name) for name in axes.of}
        self.names: dict[int, str] = {}
        self.origins: dict[str, Expr] = {}
        self._by_origin: dict[Expr, str] = {}
        self._axes_by_origin: list[tuple[Expr, Expr]] = []
        for tensor in graph.inputs:
            for axis in self.of[tensor.name]:
                self.expr(axis)
        for shape in self.of.values():
            for axis in shape:
                self._axes_by_origin.append((sizes.size_of(axis), self.expr(axis)))

    def expr(self, axis: sizes.Axis) -> Expr:
        return product([self._one(atom) for atom in sizes.resolve(axis)])

    def _one(self, atom: sizes.Atom) -> Expr:
        if atom.const is not None:
            return atom.const
        if atom.total is not None:
            out: Expr = 0
            for axis in atom.total:
                out = build("+", out, self.expr(axis))
            return out
        name = self.names.get(id(atom))
        if name is None:
            name = self.names[id(atom)] = f"a{len(self.names)}"
            self.origins[name] = atom.origin
            self._by_origin.setdefault(atom.origin, name)
        return name

    def translate(self, expr: Expr) -> Expr:
        """A size of the target in atoms: an axis of just that size, else dimension by dimension; what no axis has is
        a dimension of its own."""
        if isinstance(expr, int):
            return expr
        for origin, atoms in self._axes_by_origin:
            if same(origin, expr):
                return atoms
        replaced: dict[str, Expr] = {}
        for symbol in sorted(symbols(expr)):
            whole = next((atoms for origin, atoms in self._axes_by_origin if origin == symbol), None)
            if whole is None:
                whole = self._by_origin.get(symbol)
            if whole is None:
                whole = f"a{len(self.names)}"
                self.names[-1 - len(self.names)] = whole
                self.origins[whole] = self._by_origin[symbol] = symbol
                self._by_origin[symbol] = whole
            replaced[symbol] = whole
        return substitute(expr, replaced)


class _Writer:
    """Writes the draft: inputs in the shape that their readers need, then every op on its reads."""

    def __init__(self, graph: Graph, atoms: _Atoms, reads: Mapping[str, views.Read]) -> None:
        self.graph, self.atoms, self.reads = graph, atoms, reads
        self.builder = _Once()
        self.built: dict[str, Value] = {}
        self.pieces: dict[str, views.Units] = {}  # of inputs that several reads take apart
        self.grouped: dict[str, tuple[tuple[int, ...], ...]] = {}  # of the others, and of computed values

    def write(self) -> tuple[Graph, dict[str, str]]:
        self._declare()
        for node in self.graph.nodes:
            if OPS[node.op].kind != "view":
                self.built[node.name] = self._op(node)
                self.grouped[node.name] = self.reads[node.name].axes
        results: dict[str, str] = {}
        for output in self.graph.outputs:
            made = self._output(output, results)
            results[made] = output
        dims = dict.fromkeys(self.atoms.origins, 1)
        return self.builder.graph(dims, tuple(results), precision=self.graph.precision), results

    def _declare(self) -> None:
        used: dict[str, list[views.Read]] = {t.name: [] for t in self.graph.inputs}
        consumers = [arg for n in self.graph.nodes if OPS[n.op].kind != "view" for arg in n.args]
        for name in (*consumers, *self.graph.outputs):
            if self.reads[name].root in used:
                used[self.reads[name].root].append(self.reads[name])
        for tensor in self.graph.inputs:
            found = used[tensor.name]
            if all(r.in_order and r.axes == found[0].axes for r in found):
                self.grouped[tensor.name] = found[0].axes
                shape: Sequence[Sequence[int]] = found[0].axes
            else:
                shape = self.pieces[tensor.name] = views.common([views.units(r, None) for r in found])
            self.built[tensor.name] = self.builder.input(
                tensor.name, tensor.dtype, self._sizes(tensor.name, shape), tensor.role
            )

    def _sizes(self, root: str, groups: Sequence[Sequence[int]]) -> tuple[Expr, ...]:
        flat = [atom for axis in self.atoms.of[root] for atom in axis]
        return tuple(self.atoms.expr([flat[p] for p in group]) for group in groups)

    def _read(self, read: views.Read, group: bool = True) -> Value:
        """The value that a read gives; without ``group`` its axes may stay in pieces (outputs are buffers anyway)."""
        value = self.built[read.root]
        axes = self.grouped.get(read.root)
        if axes is not None and read.in_order:
            return value if read.axes == axes else self._reshape(value, read.root, read.axes)
        if axes is None:
            pieces = self.pieces[read.root]
        else:
            pieces = views.units(read, axes)
            if [tuple(p) for p in pieces] != list(axes):
                value = self._reshape(value, read.root, pieces)
        for position, index in reversed(read.picked):
            place = pieces.index([position])
            value = self.builder.once("select", [value], axis=place, index=index)
            pieces = pieces[:place] + pieces[place + 1 :]
        flat = read.flat
        perm = tuple(sorted(range(len(pieces)), key=lambda i: flat.index(pieces[i][0])))
        if perm != tuple(range(len(pieces))):
            value = self.builder.once("permute", [value], perm=perm)
        if group and [tuple(pieces[i]) for i in perm] != list(read.axes):
            value = self._reshape(value, read.root, read.axes)
        return value

    def _reshape(self, value: Value, root: str, groups: Sequence[Sequence[int]]) -> Value:
        return self.builder.once("reshape", [value], shape=self._sizes(root, groups))

    def _op(self, node: Node) -> Value:
        if node.op == "const":
            return self.builder.const(_number(node, self.graph))
        if node.op == "dim":
            return self.builder.dim(self.atoms.translate(node.attr("expr")))
        attrs = dict(node.attrs)
        if node.op == "iota":
            attrs["n"] = self.atoms.expr(self.atoms.of[node.name][0])
        args = [self._read(self.reads[a]) for a in node.args]
        known = {key for key, _ in OPS[node.op].attrs}
        return self.builder.once(node.op, args, **{k: v for k, v in attrs.items() if k in known})

    def _output(self, name: str, results: Mapping[str, str]) -> str:
        read = self.reads[name]
        if isinstance(self.built[read.root], Node) and read.in_order and self.built[read.root].name not in results:
            return self.built[read.root].name
        made = self._read(read, group=False)
        if isinstance(made, Tensor) or made.name in results or made.op == "reshape":
            made = self.builder.node("cast", [made], dtype=made.dtype)  # a copy: outputs are buffers of their own
        return made.name


def _number(node: Node, graph: Graph) -> float:
    """A constant as a float, unless it meets integers."""
    value = node.attr("value")
    readers = graph.readers(node.name)
    whole = any(a.dtype in ("i32", "i64") for r in readers for a in map(graph.value, r.args))
    return value if whole else float(value)


def _literal(graph: Graph) -> _Draft:
    """The draft over the target's own dimensions, where the sub-graph's arithmetic can't be forgotten."""
    builder = _Once()
    built: dict[str, Value] = {t.name: builder.input(t.name, t.dtype, t.shape, t.role) for t in graph.inputs}
    for node in graph.nodes:
        args = [built[a] for a in node.args]
        if node.op == "const":
            built[node.name] = builder.const(_number(node, graph))
        elif node.op in _LOWER:
            built[node.name] = _LOWER[node.op](builder, node, args[0])
        else:
            known = {key for key, _ in OPS[node.op].attrs}
            built[node.name] = builder.once(node.op, args, **{k: v for k, v in node.attrs if k in known})
    results: dict[str, str] = {}
    for output in graph.outputs:
        made = built[output]
        if isinstance(made, Tensor) or made.name in results:
            made = builder.node("cast", [made], dtype=made.dtype)
        results[made.name] = output
    draft = builder.graph(graph.sizes, tuple(results), precision=graph.precision)
    return _Draft(draft, {d: d for d in draft.sizes}, results)


def _lower_split(builder: _Once, node: Node, x: Value) -> Value:
    parts = node.attr("parts")
    apart = builder.once("reshape", [x], shape=(*x.shape[:-1], parts, node.shape[-1]))
    return builder.once("select", [apart], axis=len(x.shape) - 1, index=node.attr("index"))


def _lower_heads(builder: _Once, node: Node, x: Value) -> Value:
    rank = len(x.shape)
    apart = builder.once("reshape", [x], shape=(*x.shape[:-1], node.shape[-3], node.shape[-1]))
    return builder.once("permute", [apart], perm=(*range(rank - 2), rank - 1, rank - 2, rank))


def _lower_merge(builder: _Once, node: Node, x: Value) -> Value:
    rank = len(x.shape)
    turned = builder.once("permute", [x], perm=(*range(rank - 3), rank - 2, rank - 3, rank - 1))
    return builder.once("reshape", [turned], shape=node.shape)


_LOWER: dict[str, Callable[[_Once, Node, Value], Value]] = {
    "split": _lower_split, "heads": _lower_heads, "merge": _lower_merge,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------- names


def _clustered(draft: _Draft) -> _Draft:
    """Dimensions that occur only as one product become one dimension."""
    while True:
        pair = _pair(draft.graph)
        if pair is None:
            return draft
        keep, drop = pair
        by: dict[str, Expr] = {drop: 1}
        graph = draft.graph

        def again(expr: Expr, by: Mapping[str, Expr] = by) -> Expr:
            return substitute(normalise(expr), by)

        origins = dict(draft.origins)
        origins[keep] = build("*", origins[keep], origins.pop(drop))
        graph = Graph(
            tuple(d for d in graph.dims if d[0] != drop),
            tuple(replace(t, shape=tuple(again(e) for e in t.shape)) for t in graph.inputs),
            tuple(_with_sizes(n, again) for n in graph.nodes),
            graph.outputs,
            graph.precision,
        )
        draft = _Draft(graph, origins, draft.results, draft.tiles - {drop})


def _with_sizes(node: Node, change: Callable[[Expr], Expr]) -> Node:
    def attr(key: str, value: Any) -> Any:
        if key == "shape":
            return tuple(change(e) for e in value)
        return change(value) if key in ("n", "expr") else value

    attrs = tuple((k, attr(k, v)) for k, v in node.attrs)
    return replace(node, attrs=attrs, shape=tuple(change(e) for e in node.shape))


def _pair(graph: Graph) -> tuple[str, str] | None:
    """Two dimensions each of which occurs only multiplied, once, by the other."""
    partners: dict[str, set[str]] = {}
    for value in graph.values:
        for expr in expressions_of(value):
            for factors in _monomials(expr):
                for symbol in factors:
                    others = set(factors) - {symbol} if factors.count(symbol) == 1 else set()
                    partners[symbol] = partners[symbol] & others if symbol in partners else others
    for symbol in graph.sizes:
        for other in sorted(partners.get(symbol, ())):
            if symbol in partners.get(other, ()):
                return symbol, other
    return None


def _monomials(expr: Expr) -> list[list[str]]:
    """The dimensions of each term; those under a division or an extremum stand alone, to pair with nothing."""
    if isinstance(expr, tuple):
        if expr[0] in ("+", "-"):
            return [*_monomials(expr[1]), *_monomials(expr[2])]
        if expr[0] == "*":
            left, right = _monomials(expr[1]), _monomials(expr[2])
            return [a + b for a in left or [[]] for b in right or [[]]]
        return [[s] for s in sorted(symbols(expr))]
    return [[expr]] if isinstance(expr, str) else [[]]


def _named(draft: _Draft, target: Graph) -> Normal:
    """The draft in canonical order under names that its structure gives it."""
    placed = order(draft.graph)
    graph = draft.graph
    tensors, nodes = {t.name: t for t in graph.inputs}, {n.name: n for n in graph.nodes}
    ordered = replace(
        graph,
        dims=tuple((d, 1) for d in placed.dims),
        inputs=tuple(sorted((tensors[n] for n in placed.inputs), key=lambda t: t.role == "weight")),
        nodes=tuple(replace(nodes[n], args=placed.arguments[n]) for n in placed.nodes),
        outputs=placed.outputs,
    )
    dims = naming.dimensions(ordered)
    by: dict[str, Expr] = dict(dims)
    inputs = naming.inputs(ordered)
    builder = Builder()
    builder.reserved = frozenset(inputs.values())
    built: dict[str, Value] = {}

    def change(expr: Expr) -> Expr:
        return substitute(expr, by)

    for tensor in ordered.inputs:
        built[tensor.name] = builder.input(
            inputs[tensor.name], tensor.dtype, [change(e) for e in tensor.shape], tensor.role
        )
    for node in ordered.nodes:
        attrs = dict(_with_sizes(node, change).attrs)
        built[node.name] = builder.node(node.op, [built[a] for a in node.args], node.op, **attrs)
    origins = {dims[d]: draft.origins[d] for d in placed.dims}
    samples = {d: evaluate(origin, target.sizes) for d, origin in origins.items()}
    final = builder.graph(samples, [built[o].name for o in placed.outputs], precision=graph.precision)
    return Normal(
        final,
        placed.identity,
        tuple(t.name for t in ordered.inputs),
        tuple(draft.results[o] for o in placed.outputs),
        tuple((d, origins[d]) for d, _ in final.dims),
        tuple(dims[t] for t in sorted(draft.tiles) if t in dims),
    )
