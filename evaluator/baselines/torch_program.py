"""A graph as PyTorch calls, one after another: what a user of PyTorch would write for it.

Each op is what :mod:`knowledge_base.snf.op_table` has for it; where several ops together are what one call of a library
computes, an idiom makes that call instead: attention, in all its spellings, is one call of
``scaled_dot_product_attention``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels_generated.runtime.expr import Expr, evaluate
from knowledge_base.snf.attention_idiom import attention
from knowledge_base.snf.graph import Graph, Node, shape_at
from knowledge_base.snf.op_table import is_scalar, kind
from knowledge_base.snf.reference import step
from knowledge_base.snf.task import Task

Compute = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Idiom:
    """A library's call for the value of a node, from the values ``args``.

    absorbed: nodes whose values nobody else needs.
    """

    args: tuple[str, ...]
    absorbed: frozenset[str]
    compute: Compute


Finder = Callable[["Reading", Node], Idiom | None]


class Reading:
    """A task's graph at its own sizes, as those who look for idioms read it.  numbers: the scalars' values."""

    def __init__(self, task: Task) -> None:
        self.graph: Graph = task.graph
        self.precision = task.precision
        self.numbers: dict[str, float] = {}
        self._users: dict[str, set[str]] = {}
        for node in self.graph.nodes:
            for name in node.args:
                self._users.setdefault(name, set()).add(node.name)
            if is_scalar(node):
                compute = step(node, self.graph.sizes, "eager", self.precision)
                self.numbers[node.name] = compute([self.numbers[a] for a in node.args])

    def node(self, name: str, *ops: str) -> Node | None:
        """The node of that name, if it is one of these ops."""
        value = self.graph.value(name)
        return value if isinstance(value, Node) and value.op in ops else None

    def shape(self, name: str) -> tuple[int, ...]:
        return shape_at(self.graph.value(name).shape, self.graph.sizes)

    def equal(self, a: Expr, b: Expr) -> bool:
        return evaluate(a, self.graph.sizes) == evaluate(b, self.graph.sizes)

    def needs_only(self, node: Node, absorbed: frozenset[str]) -> bool:
        """Whether nothing but ``node`` and the absorbed ones themselves uses what those give."""
        inside = absorbed | {node.name}
        return all(self._users[name] <= inside and name not in self.graph.outputs for name in absorbed)


class TorchProgram:
    """The lines of a graph; :meth:`run` takes its inputs in order and gives its outputs in order.

    finders: tried in turn at each node.  idioms: how many lines are an idiom's.  plain: how many compute something and
    are not.
    """

    def __init__(self, task: Task, finders: Sequence[Finder]) -> None:
        reading = Reading(task)
        graph = reading.graph
        found: dict[str, Idiom] = {}
        absorbed: set[str] = set()
        for node in reversed(graph.nodes):  # the whole of an idiom ends where its last node stands
            if node.name in absorbed or node.name in reading.numbers:
                continue
            idiom = next((one for find in finders if (one := find(reading, node)) is not None), None)
            if idiom is not None:
                found[node.name] = idiom
                absorbed |= idiom.absorbed
        self.inputs = tuple(t.name for t in graph.inputs)
        self._outputs = graph.outputs
        self._numbers = reading.numbers
        self._lines: list[tuple[str, Compute, tuple[str, ...]]] = []
        for node in graph.nodes:
            if node.name in found:
                self._lines.append((node.name, found[node.name].compute, found[node.name].args))
            elif node.name not in absorbed and node.name not in reading.numbers:
                compute = step(node, graph.sizes, "eager", reading.precision)
                self._lines.append((node.name, compute, node.args))
        self.idioms = len(found)
        self.plain = sum(name not in found and kind(graph.value(name).op) != "view" for name, _, _ in self._lines)  # type: ignore[union-attr]

    def run(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: dict[str, Any] = dict(self._numbers)
        values.update(zip(self.inputs, given, strict=True))
        for name, compute, args in self._lines:
            values[name] = compute([values[a] for a in args])
        return tuple(values[name] for name in self._outputs)


# ---------------------------------------------------------------------------------------------------- what is found


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, bool], torch.Tensor]


def attending(attend: Attend) -> Finder:
    """Attention by ``attend`` of q[B, H, T, D], k and v[B, K, S, D], where K divides H: queries in groups."""

    def find(reading: Reading, node: Node) -> Idiom | None:
        found = attention(reading.graph, node, reading.numbers, reading.equal)
        if found is None:
            return None
        q, kt, v = (reading.shape(name) for name in (found.q, found.kt, found.v))
        grouped = len(q) == 5 and len(kt) == len(v) == 5 and kt[2] == v[2] == 1 and q[:2] == kt[:2] == v[:2]
        if not grouped and not (len(q) == len(kt) == len(v) == 4 and q[:2] == kt[:2] == v[:2]):
            return None
        scale, causal = found.scale(reading.numbers), found.causal

        def compute(args: list[Any]) -> Any:
            q, kt, v = args
            k = kt.transpose(-1, -2)
            if not grouped:
                return attend(q, k, v, scale, causal)
            made = attend(q.flatten(1, 2), k.squeeze(2), v.squeeze(2), scale, causal)
            return made.reshape(*q.shape[:3], *made.shape[2:])

        return Idiom((found.q, found.kt, found.v), found.absorbed, compute)

    return find


def scaled_dot_product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)


ATTENTION = attending(scaled_dot_product)


def linear_gelu(reading: Reading, node: Node) -> Idiom | None:
    """Linear, bias and GELU's tanh form as one call of cublasLt with its epilogue.

    On a CPU the same call gives the form with erf: a difference that 16 bits hardly show.
    """
    if node.op != "gelu" or node.attr("approximate") != "tanh":
        return None
    linear = reading.node(node.args[0], "linear")
    if linear is None or len(linear.args) != 3 or not reading.needs_only(node, frozenset({linear.name})):
        return None
    shape = reading.shape(node.name)

    def compute(args: list[Any]) -> Any:
        x, w, b = args
        return torch._addmm_activation(b, x.reshape(-1, x.shape[-1]), w.t(), use_gelu=True).reshape(shape)

    return Idiom(linear.args, frozenset({linear.name}), compute)


def simple(
    op: str,
    call: Callable[[list[Any], Mapping[str, Any]], Any],
    takes: Callable[[Reading, Node], bool] = lambda reading, node: True,
) -> Finder:
    """A node of ``op`` as ``call`` of its arguments and attributes, where ``takes`` says so of the reading and it."""

    def find(reading: Reading, node: Node) -> Idiom | None:
        if node.op != op or any(a in reading.numbers for a in node.args) or not takes(reading, node):
            return None
        attrs = dict(node.attrs)
        return Idiom(node.args, frozenset(), lambda args: call(args, attrs))

    return find
