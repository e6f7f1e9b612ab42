"""An order of a graph's inputs, nodes, outputs and dimensions that no name and no commuted operand can change.

Colour refinement (Weisfeiler and Leman, 1968) on values and dimensions together; what stays tied is told apart by
trying each member and keeping the smallest serialisation.  The identity is the SHA-256 of that serialisation.  Sample
sizes take no part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels_generated.runtime.expr import Expr

from .builder import Value, expressions_of
from .graph import Graph, Node, Tensor
from .op_table import OPS

# Leaves of the search among tied inputs.  Ties are almost always symmetries (a + b), where every leaf is the same; a
# graph with more than this many costs at worst a second identity for the same task.
MAX_LEAVES = 48


@dataclass(frozen=True)
class Order:
    """Names in canonical order; ``arguments`` of each node likewise (commutative ones sorted)."""

    inputs: tuple[str, ...]
    nodes: tuple[str, ...]
    arguments: Mapping[str, tuple[str, ...]]
    outputs: tuple[str, ...]
    dims: tuple[str, ...]
    identity: str


def order(graph: Graph) -> Order:
    """The canonical order of a graph in which equal nodes are one node."""
    search = _Search(graph)
    search.explore(search.refine(search.start()))
    assert search.best is not None
    text, (inputs, nodes, arguments, outputs, dims) = search.best
    return Order(inputs, nodes, arguments, outputs, dims, hashlib.sha256(text.encode()).hexdigest())


_Colours = dict[str, str]
_Sorted = tuple[tuple[str, ...], tuple[str, ...], Mapping[str, tuple[str, ...]], tuple[str, ...], tuple[str, ...]]


class _Search:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: list[Value] = graph.values
        self.readers: dict[str, list[tuple[Node, int]]] = {v.name: [] for v in self.values}
        for node in graph.nodes:
            for i, arg in enumerate(node.args):
                self.readers[arg].append((node, 0 if OPS[node.op].commutative else i))
        self.leaves = 0
        self.best: tuple[str, _Sorted] | None = None

    def start(self) -> _Colours:
        return {v.name: "" for v in self.values} | {f"#{d}": "" for d in self.graph.sizes}

    def refine(self, colours: _Colours) -> _Colours:
        """Colours that no further look at neighbours splits."""
        classes = 0
        while True:
            colours = self._dims(self._values(self._values(colours, up=False), up=True))
            found = len(set(colours.values()))
            if found == classes:
                return colours
            classes = found

    def _values(self, colours: _Colours, up: bool) -> _Colours:
        """One pass over values: from arguments to results, or (``up``) from results to arguments."""
        out = dict(colours)
        for value in reversed(self.values) if up else self.values:
            if up:
                seen: Any = sorted((i, out[node.name]) for node, i in self.readers[value.name])
                seen.append(("output", str(self.graph.outputs.count(value.name))))
            else:
                args = [out[a] for a in value.args] if isinstance(value, Node) else []
                if isinstance(value, Node) and OPS[value.op].commutative:
                    args.sort()
                seen = [args, self._look(value, colours)]
            out[value.name] = _digest([colours[value.name], seen])
        return out

    def _look(self, value: Value, colours: _Colours) -> Any:
        """What a value is, apart from its neighbours."""
        sizes = [_render(e, colours) for e in value.shape]
        if isinstance(value, Tensor):
            return [value.dtype, value.role, sizes]
        return [value.op, value.dtype, sizes, [[k, _attribute(k, v, colours)] for k, v in value.attrs]]

    def _dims(self, colours: _Colours) -> _Colours:
        seen: dict[str, list[Any]] = {d: [] for d in self.graph.sizes}
        for value in self.values:
            for place, expr in enumerate(expressions_of(value)):
                for symbol in _symbols(expr):
                    seen[symbol].append((colours[value.name], place))
        return colours | {f"#{d}": _digest([colours[f"#{d}"], sorted(seen[d])]) for d in seen}

    def explore(self, colours: _Colours) -> None:
        """Serialises, telling tied inputs apart in every way (up to MAX_LEAVES)."""
        groups: dict[str, list[str]] = {}
        for tensor in self.graph.inputs:
            groups.setdefault(colours[tensor.name], []).append(tensor.name)
        tied = [groups[c] for c in sorted(groups) if len(groups[c]) > 1]
        if not tied:
            self.leaves += 1
            made = self._serialise(colours)
            if self.best is None or self._rank(made) < self._rank(self.best):
                self.best = made
            return
        for name in tied[0]:
            if self.leaves < MAX_LEAVES:
                self.explore(self.refine(colours | {name: colours[name] + "!"}))

    def _rank(self, made: tuple[str, _Sorted]) -> tuple[str, list[int]]:
        """Smallest text first; among equal ones (symmetries) the order that the graph itself has reads best."""
        places = {t.name: i for i, t in enumerate(self.graph.inputs)}
        return made[0], [places[name] for name in made[1][0]]

    def _operand(self, name: str, colours: _Colours) -> tuple[int, str]:
        """Commutative operands: computed values, then what is made of sizes, then inputs."""
        value = self.graph.value(name)
        place = 2 if isinstance(value, Tensor) else int(OPS[value.op].kind in ("source", "scalar"))
        return place, colours[name]

    def _serialise(self, colours: _Colours) -> tuple[str, _Sorted]:
        """Walks from the outputs, arguments first, commutative ones by colour."""
        outputs = tuple(sorted(self.graph.outputs, key=lambda name: colours[name]))
        arguments: dict[str, tuple[str, ...]] = {}
        for node in self.graph.nodes:
            commutes = OPS[node.op].commutative
            arguments[node.name] = (
                tuple(sorted(node.args, key=lambda a: self._operand(a, colours))) if commutes else node.args
            )
        numbers: dict[str, int] = {}
        for output in outputs:
            stack: list[tuple[str, bool]] = [(output, False)]
            while stack:
                name, done = stack.pop()
                if name in numbers:
                    continue
                if done or name not in arguments:
                    numbers[name] = len(numbers)
                else:
                    stack.append((name, True))
                    stack.extend((arg, False) for arg in reversed(arguments[name]))
        dims: dict[str, str] = {}
        for name in numbers:
            for expr in expressions_of(self.graph.value(name)):
                for symbol in sorted(_symbols(expr), key=lambda s: (colours[f"#{s}"], s)):
                    dims.setdefault(f"#{symbol}", f"d{len(dims)}")
        rows: list[Any] = [["precision", self.graph.precision]]
        for name in numbers:
            value = self.graph.value(name)
            args = [numbers[a] for a in arguments[name]] if isinstance(value, Node) else []
            rows.append([args, self._look(value, dims)])
        rows.append([numbers[o] for o in outputs])
        inputs = tuple(n for n in numbers if n not in arguments)
        nodes = tuple(n for n in numbers if n in arguments)
        names = tuple(d[1:] for d in dims)
        return json.dumps(rows, separators=(",", ":")), (inputs, nodes, arguments, outputs, names)


def _digest(data: Any) -> str:
    return hashlib.blake2b(json.dumps(data).encode(), digest_size=12).hexdigest()


def _symbols(expr: Expr) -> set[str]:
    if isinstance(expr, str):
        return {expr}
    return _symbols(expr[1]) | _symbols(expr[2]) if isinstance(expr, tuple) else set()


def _attribute(key: str, value: Any, names: Mapping[str, str]) -> Any:
    if key in ("n", "expr"):
        return _render(value, names)
    if key == "shape":
        return [_render(e, names) for e in value]
    return repr(value)


def _render(expr: Expr, names: Mapping[str, str]) -> str:
    """The expression with dimensions replaced by colours; sums and products sorted, as normal form sorts by name."""
    if isinstance(expr, str):
        return f"<{names[f'#{expr}']}>"
    if isinstance(expr, int):
        return str(expr)
    op = expr[0]
    if op in ("+", "*"):
        return f"({op.join(sorted(_render(e, names) for e in _chain(expr, op)))})"
    left, right = (_render(e, names) for e in expr[1:])
    if op in ("min", "max"):
        left, right = sorted((left, right))
    return f"({op} {left} {right})"


def _chain(expr: Expr, op: str) -> list[Expr]:
    if isinstance(expr, tuple) and expr[0] == op:
        return [*_chain(expr[1], op), *_chain(expr[2], op)]
    return [expr]
