"""From a sub-graph to a Task: normal form, everyday name where it has one, constants and constraints."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels_generated.runtime.expr import Expr, evaluate

from . import naming
from .everyday import HEAD_WIDTHS, known
from .graph import Graph
from .normal import Normal, normal_form
from .task import Call, Task, constraints


@dataclass(frozen=True)
class Canonical:
    """A task and how it lies in the target: the target's names of its inputs and outputs, its dimensions' sizes."""

    task: Task
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    sizes: tuple[tuple[str, Expr], ...]

    @property
    def call(self) -> Call:
        return Call(self.task, self.arguments, self.results, self.sizes)


def canonical(graph: Graph) -> Task:
    """The task that the whole graph is, at the graph's sample sizes."""
    return canonicalise(graph).task


def canonicalise(graph: Graph) -> Canonical:
    """The task that the whole graph is, and how to call it with the graph's inputs."""
    normal = normal_form(graph)
    match = known(normal.identity, frozenset(t.dtype for t in graph.inputs), graph.precision)
    if match is None:
        name = naming.task_name(normal.graph, normal.identity)
        task = Task(name, normal.identity, normal.graph, graph.precision, (), constraints(normal.graph))
        found = Canonical(task, normal.arguments, normal.results, normal.sizes)
        tiles = normal.tiles
    else:
        found, tiles = _as_everyday(normal, *match)
    return replace(found, task=_with_constants(found.task, tiles, found.sizes, graph))


def _as_everyday(normal: Normal, task: Task, theirs: Normal) -> tuple[Canonical, tuple[str, ...]]:
    """``theirs`` is the everyday task's own normal form: the same graph, so places correspond."""
    argument = dict(zip(theirs.arguments, normal.arguments, strict=True))
    ours = dict(normal.sizes)
    size: dict[str, Expr] = {}
    for (_, name), (mine, _) in zip(theirs.sizes, normal.sizes, strict=True):
        assert isinstance(name, str)
        size[name] = ours[mine]
    samples = {
        str(name): normal.graph.sizes[mine] for (_, name), (mine, _) in zip(theirs.sizes, normal.sizes, strict=True)
    }
    task = task.at(**samples)
    found = Canonical(
        task,
        tuple(argument[t.name] for t in task.inputs),
        normal.results,
        tuple((name, size[name]) for name in task.sizes),
    )
    return found, tuple(name for name, _ in task.constants)


def _with_constants(task: Task, tiles: tuple[str, ...], sizes: tuple[tuple[str, Expr], ...], graph: Graph) -> Task:
    """Dimensions that kernels may fix: those that the text lists, and attention's widths; the sample is always one."""
    listed = dict(graph.listed)
    constants: list[tuple[str, tuple[int, ...]]] = []
    for name, origin in sizes:
        values = listed.get(origin) if isinstance(origin, str) else None
        if values is None and name in tiles:
            values = HEAD_WIDTHS
        if values is not None:
            sample = evaluate(origin, graph.sizes)
            constants.append((name, tuple(sorted({*values, sample}))))
    return replace(task, constants=tuple(constants))
