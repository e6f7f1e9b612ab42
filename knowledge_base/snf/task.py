"""Task: a piece of a graph that one candidate file computes, in canonical form, with its identity.

The canonical sub-graph is what everybody downstream sees (the prompt, the synthesizer, the oracle): inputs are
contiguous buffers in argument order, their axes split as far as the task's own views need (``qkv[B, T, 3, H, D]``),
shared leading axes flattened to ``M``, dimensions renamed by first appearance.  Views that the task reads through are
nodes (``select``, ``permute``, ``reshape``) of its graph; outputs are contiguous in the shape the graph gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernels_generated.runtime import expr as sizes_language
from kernels_generated.runtime.expr import Expr

from .graph import Graph, Node, Tensor
from .op_table import divide
from .printer import show
from .ranges import indices, interval, reaching

Constraint = tuple[str, Expr, Expr]  # a comparison of two sizes


@dataclass(frozen=True)
class Task:
    """``name`` is the everyday name, or the ops' names plus six hex digits of the identity.

    identity: SHA-256 (hex) of the canonical sub-graph with dtypes, constants and precision; sample sizes and names of
    inputs have no part in it.
    precision: ieee, or tf32 (float32 operands of contractions may be rounded to tf32).
    constants: dimensions a kernel may fix at compile time, each with the values its spec lists (attention's D).
    constraints: comparisons between sizes that hold wherever the task makes sense (embedding: T <= P).
    """

    name: str
    identity: str
    graph: Graph
    precision: str = "ieee"
    constants: tuple[tuple[str, tuple[int, ...]], ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The sample value of each dimension."""
        return self.graph.sizes

    @property
    def place(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """What tells the distinct tasks of a target apart: the identity, and the sizes."""
        return self.identity, self.graph.dims

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs as tensors with role output, named ``y`` (or ``y0, y1 …``), as ``launch`` takes them."""
        values = [self.graph.value(name) for name in self.graph.outputs]
        names = ["y"] if len(values) == 1 else [f"y{i}" for i in range(len(values))]
        return tuple(
            Tensor(name, value.dtype, value.shape, "output") for name, value in zip(names, values, strict=True)
        )

    @property
    def size_arguments(self) -> tuple[str, ...]:
        """The dimensions that no array tells (a width that is used as a number alone): ``launch`` is given them."""
        told = {one.dim for one in told_by((*self.inputs, *self.outputs))}
        return tuple(dim for dim in self.sizes if dim not in told)

    @property
    def untold_sizes(self) -> tuple[str, ...]:
        """The dimensions that no input tells: a function that makes the outputs itself is given them.

        These are ``size_arguments``, then the dimensions that outputs alone tell.
        """
        told = {one.dim for one in told_by(self.inputs)} | set(self.size_arguments)
        return (*self.size_arguments, *(dim for dim in self.sizes if dim not in told))

    @property
    def text(self) -> str:
        """The task as SNF."""
        return show(self.graph)

    def at(self, **sizes: int) -> Task:
        """The same task with other sample sizes.  Raises KeyError for a dimension it does not have."""
        unknown = set(sizes) - set(self.sizes)
        if unknown:
            raise KeyError(sorted(unknown)[0])
        return replace(self, graph=self.graph.at(**sizes))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; ``from_json(to_json())`` is equal."""
        return {
            "name": self.name,
            "identity": self.identity,
            "graph": self.graph.to_json(),
            "precision": self.precision,
            "constants": [[name, list(values)] for name, values in self.constants],
            "constraints": [
                [comparison, sizes_language.to_json(a), sizes_language.to_json(b)]
                for comparison, a, b in self.constraints
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        return cls(
            data["name"],
            data["identity"],
            Graph.from_json(data["graph"]),
            data["precision"],
            tuple((name, tuple(values)) for name, values in data["constants"]),
            tuple(
                (comparison, sizes_language.from_json(a), sizes_language.from_json(b))
                for comparison, a, b in data["constraints"]
            ),
        )


@dataclass(frozen=True)
class Call:
    """A task applied to buffers of the target: one name per task input and per task output.

    A buffer's elements are reinterpreted in the task's shape (equal count, row-major); no data moves.
    ``sizes`` gives the task's dimensions as expressions over the target's.
    """

    task: Task
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    sizes: tuple[tuple[str, Expr], ...] = ()

    @classmethod
    def whole(cls, task: Task) -> Call:
        """The one call of a target that is a task, in the task's own names and dimensions."""
        arguments, results = tuple(t.name for t in task.inputs), tuple(t.name for t in task.outputs)
        return cls(task, arguments, results, sizes=tuple((d, d) for d in task.sizes))

    def sizes_at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The dimensions of the call's task where the target's are ``sizes``."""
        found = {name: sizes_language.evaluate(expr, sizes) for name, expr in self.sizes}
        return found or dict(self.task.sizes)


@dataclass(frozen=True)
class Decomposition:
    """A fusion plan carried out on a graph: running ``calls`` in order gives the graph's outputs."""

    plan: str  # v1 (naive), v2 (fused)
    graph: Graph
    calls: tuple[Call, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The distinct tasks (by identity and sizes), in order of first call."""
        seen: dict[tuple[str, tuple[tuple[str, int], ...]], Task] = {}
        for call in self.calls:
            seen.setdefault(call.task.place, call.task)
        return tuple(seen.values())

    def calls_of(self, task: Task) -> int:
        """How often the target calls the task at its sizes."""
        return sum(call.task.place == task.place for call in self.calls)

    @property
    def whole(self) -> Task:
        """The target in the form of a task, with the constraints of all its calls in its own dimensions.

        Its tensors have sizes from 1 on: of ``C // 4`` it makes a dimension of its own calls, which no C below 4 has.
        """
        found = []
        for call in self.calls:
            by = dict(call.sizes)
            for comparison, left, right in call.task.constraints:
                found.append((comparison, sizes_language.substitute(left, by), sizes_language.substitute(right, by)))
        graph = self.graph
        found += constraints(graph)
        sizes = dict.fromkeys(size for value in graph.values for size in value.shape if isinstance(size, tuple))
        found += [(">=", size, 1) for size in sizes if sizes_language.decide(">=", size, 1) is not True]
        return Task("target", "", graph, graph.precision, graph.listed, tuple(dict.fromkeys(found)))


@dataclass(frozen=True)
class Told:
    """``dim`` is the size of ``tensor`` along ``axis``, less ``less``, divided by ``by`` (without remainder)."""

    dim: str
    tensor: Tensor
    axis: int
    less: Expr = 0
    by: Expr = 1

    @property
    def plain(self) -> bool:
        """Whether it is that size itself."""
        return self.less == 0 and self.by == 1


def told_by(tensors: Sequence[Tensor]) -> tuple[Told, ...]:
    """How each dimension that the tensors' shapes tell is read off them, in an order in which it can be done.

    Most are a size themselves; others are what is left of one by dimensions that are known before: D of ``H*D``, S of
    ``T + S``.
    """
    sizes = [(t, axis, size) for t in tensors for axis, size in enumerate(t.shape)]
    found: dict[str, Told] = {}
    for tensor, axis, size in sizes:
        if isinstance(size, str):
            found.setdefault(size, Told(size, tensor, axis))
    while True:
        known = set(found)
        for tensor, axis, size in sizes:
            unknown = sizes_language.symbols(size) - set(found)
            if len(unknown) == 1:
                (dim,) = unknown
                part = _part(size, dim)
                if part is not None:
                    found[dim] = Told(dim, tensor, axis, *part)
        if known == set(found):
            return tuple(found.values())


def _part(size: Expr, dim: str) -> tuple[Expr, Expr] | None:
    """(less, by) with ``size`` = less + by * dim, where neither has ``dim`` in it."""
    less = sizes_language.substitute(size, {dim: 0})
    by = divide(sizes_language.build("-", size, less), dim)
    if by is None or by == 0 or dim in sizes_language.symbols(by) | sizes_language.symbols(less):
        return None
    return less, by


def uses(decomposition: Decomposition) -> Mapping[str, int]:
    """How many calls each identity has."""
    counts: dict[str, int] = {}
    for call in decomposition.calls:
        counts[call.task.identity] = counts.get(call.task.identity, 0) + 1
    return counts


def constraints(graph: Graph) -> tuple[Constraint, ...]:
    """The comparisons of :func:`needs`, each once."""
    return tuple(dict.fromkeys(need for _, need in needs(graph)))


def needs(graph: Graph) -> list[tuple[Node, Constraint]]:
    """Comparisons between sizes without which the graph has no meaning, each with the node that needs it.

    A position that is selected must be there; so must a row that is looked up in a table, as far as sizes say where
    (integer inputs count as 0 there: a caller chooses them to fit the table); under a causal mask the first query must
    see a key; RoPE turns pairs.
    """
    found: list[tuple[Node, Constraint]] = []
    for node in graph.nodes:
        if node.op == "select":
            value = graph.value(node.args[0])
            found.append((node, (">", value.shape[node.attr("axis")], node.attr("index"))))
        if node.op == "causal_mask" and node.shape[0] != node.shape[1]:
            found.append((node, ("<=", node.shape[0], node.shape[1])))
        if node.op == "rope":
            found.append((node, ("==", sizes_language.build("mod", node.shape[-1], 2), 0)))
    for node, index, table in indices(graph):
        free = reaching(graph, index)
        least, greatest = interval(graph, index, dict.fromkeys(free, (0, 0)))
        if greatest is not None:
            found.append((node, ("<=", sizes_language.build("+", greatest, 1), table.shape[0])))
        if least is not None and not free:
            found.append((node, (">=", least, 0)))
    return [(node, need) for node, need in found if sizes_language.decide(*need) is not True]
