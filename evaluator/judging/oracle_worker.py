"""The oracle's process: reads questions from a socket, answers with inputs, fp64 reference and eager results.

Started by :class:`.oracle.Oracle` as ``python -m evaluator.judging.oracle_worker FD``; ends when the socket closes.
It imports nothing of a candidate and reads no file that one could have written.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from evaluator.confinement import in_short
from knowledge_base.snf import reference
from knowledge_base.snf.graph import Graph
from knowledge_base.snf.op_table import is_scalar

from .inputs import draw, torch_dtype
from .oracle import RESULTS, Expected, Question, pack
from .restriction import restricted

CACHE_BYTES = 256 * 2**20  # answers kept for searches that ask the same again
MOVED = 2.0  # units in the last place of what becomes an integer: a division and a sum before it
DOUBLES = 2**0.5 * 2.0**-29  # times float32's error: what two ways to compute in float64 differ by


def computed(q: Question, place: torch.device | None = None) -> Expected:
    """Inputs, reference and eager results of one question, on the CPU or at ``place``: of the same inputs."""
    sizes = dict(q.sizes)
    graph = replace(q.graph, dims=tuple((name, sizes[name]) for name, _ in q.graph.dims))
    with torch.device("cpu"):
        drawn = draw(graph, sizes, q.distribution, q.seed)
    if q.keep:
        graph, drawn = restricted(graph, drawn, dict(q.keep))
    inputs = {name: value.to(place) for name, value in drawn.items()}
    stored = [(name, torch_dtype(graph.value(name).dtype)) for name in graph.outputs]

    def results(**how: Any) -> tuple[torch.Tensor, ...]:
        made = reference.run(graph, inputs, "fp64", q.precision, **how)
        return tuple(made[name].to(torch.float64 if dtype.is_floating_point else dtype) for name, dtype in stored)

    with torch.no_grad():
        exact = results()
        made = reference.run(graph, inputs, "eager", q.precision)
        eager = tuple(made[name].to(dtype) for name, dtype in stored)
        if any(dtype == torch.float64 for _, dtype in stored):
            eager = _yardstick_of_doubles(graph, inputs, q.precision, exact, eager)
        if not any(reference.becomes_whole(graph, node) for node in graph.nodes):
            return Expected(inputs, exact, eager)
        try:
            return Expected(inputs, exact, eager, results(moved=-MOVED), results(moved=MOVED))
        except reference.Undefined:
            return Expected(inputs, exact, eager, undefined=True)


def _yardstick_of_doubles(
    graph: Graph,
    inputs: Mapping[str, torch.Tensor],
    precision: str,
    exact: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """``eager`` where an output that is float64 is as far from the reference as two ways to compute it are.

    The reference is such a way itself, and PyTorch's results may be the same ones, bit by bit.  How far off either is
    tells float32, as its own errors are known: to first order those of float64 are 2^-29 times as large
    (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, 3.1), and two of them √2 times that.
    """
    made = reference.run(_in_singles(graph), {n: _single(v) for n, v in inputs.items()}, "eager", precision)
    found = []
    for name, right, usual in zip(graph.outputs, exact, eager, strict=True):
        off = (made[name].to(torch.float64) - right) * DOUBLES
        further = torch.isfinite(off) & (off.abs() > (usual.to(torch.float64) - right).abs())
        found.append(torch.where(further, right + off, usual) if usual.dtype == torch.float64 else usual)
    return tuple(found)


def _in_singles(graph: Graph) -> Graph:
    """``graph`` with float32 for float64; numbers stay what they are."""
    return replace(
        graph,
        inputs=tuple(replace(t, dtype="f32") if t.dtype == "f64" else t for t in graph.inputs),
        nodes=tuple(replace(n, dtype="f32") if n.dtype == "f64" and not is_scalar(n) else n for n in graph.nodes),
    )


def _single(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float32) if value.dtype == torch.float64 else value


def answer(q: Question) -> dict[str, Any]:
    """What one question gets, packed."""
    made = computed(q)
    return {
        "inputs": {} if q.keep else {name: pack(value) for name, value in made.inputs.items()},
        "undefined": made.undefined,
        **{part: [pack(value) for value in getattr(made, part)] for part in RESULTS},
    }


def _bytes(body: dict[str, Any]) -> int:
    tensors = [*body["inputs"].values(), *(packed for part in RESULTS for packed in body[part])]
    return sum(len(data) for _, _, data in tensors)


class Answers:
    """Answers to questions; the latest are kept."""

    def __init__(self) -> None:
        self._known: OrderedDict[Question, dict[str, Any]] = OrderedDict()
        self._bytes = 0

    def to(self, q: Question) -> dict[str, Any]:
        body = self._known.pop(q, None)
        if body is None:
            body = answer(q)
            self._bytes += _bytes(body)
        self._known[q] = body
        while self._bytes > CACHE_BYTES and len(self._known) > 1:
            self._bytes -= _bytes(self._known.popitem(last=False)[1])
        return body


def serve(line: Connection, answers: Answers) -> None:
    """Answers until the other end closes."""
    while True:
        try:
            q = line.recv()
        except (EOFError, OSError):
            return
        try:
            message: tuple[str, Any] = ("answer", answers.to(q))
        except Exception as error:
            message = ("error", in_short(error))
        try:
            line.send(message)
        except OSError:
            return


def main(line: Connection) -> None:
    """Says that it has imported what it needs, and answers."""
    torch.set_num_threads(1)
    line.send(("settled", None))
    serve(line, Answers())


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
