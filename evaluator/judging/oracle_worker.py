"""The oracle's process: reads questions from a socket, answers with inputs, fp64 reference and eager results.

Started by :class:`.oracle.Oracle` as ``python -m evaluator.judging.oracle_worker FD``; ends when the socket closes.
It imports nothing of a candidate and reads no file that one could have written.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from evaluator.confinement import in_short
from knowledge_base.snf import reference

from .inputs import draw, torch_dtype
from .oracle import Expected, Question, pack
from .restriction import restricted

CACHE_BYTES = 256 * 2**20  # answers kept for searches that ask the same again


def computed(q: Question, place: torch.device | None = None) -> Expected:
    """Inputs, reference and eager results of one question, on the CPU or at ``place``: of the same inputs."""
    sizes = dict(q.sizes)
    graph = replace(q.graph, dims=tuple((name, sizes[name]) for name, _ in q.graph.dims))
    with torch.device("cpu"):
        drawn = draw(graph, sizes, q.distribution, q.seed)
    if q.keep:
        graph, drawn = restricted(graph, drawn, dict(q.keep))
    inputs = {name: value.to(place) for name, value in drawn.items()}
    with torch.no_grad():
        exact = reference.run(graph, inputs, "fp64", q.precision)
        eager = reference.run(graph, inputs, "eager", q.precision)
    stored = [(name, torch_dtype(graph.value(name).dtype)) for name in graph.outputs]
    return Expected(
        inputs,
        tuple(exact[name].to(torch.float64 if dtype.is_floating_point else dtype) for name, dtype in stored),
        tuple(eager[name].to(dtype) for name, dtype in stored),
    )


def answer(q: Question) -> dict[str, Any]:
    """What one question gets, packed."""
    made = computed(q)
    return {
        "inputs": {} if q.keep else {name: pack(value) for name, value in made.inputs.items()},
        "reference": [pack(value) for value in made.reference],
        "eager": [pack(value) for value in made.eager],
    }


def _bytes(body: dict[str, Any]) -> int:
    tensors = [*body["inputs"].values(), *body["reference"], *body["eager"]]
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
