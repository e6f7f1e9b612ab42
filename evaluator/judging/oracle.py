"""The oracle: inputs, fp64 reference and yardstick of a task, computed in a process that never saw a candidate.

:class:`Oracle` owns that process.  It is a fresh interpreter (:mod:`.oracle_worker`), not a fork: it inherits no memory
of ours, can be started again after a candidate was read, and imports torch while the caller is still tracing.
Questions and answers are pickles over a private socket pair; both ends are this package's own code, and no question
holds a byte of a candidate.  One question at a time is answered; :meth:`Oracle.expect_all` keeps a few in flight so
that the reference of the next case is computed while the caller emulates this one.

One Oracle serves one thread.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self

import torch

from evaluator.confinement import FreshPython
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.snf.graph import Graph
from knowledge_base.snf.task import Task

AHEAD = 3  # questions in flight: enough to keep the worker busy, few enough for the socket's buffer
ANSWER_SECONDS = 120.0  # a judged size is chosen to take well under a second


class OracleDefect(RuntimeError):
    """The reference failed on a legal question, with the worker's traceback, or its process ended: a defect of ours."""


@dataclass(frozen=True)
class Question:
    """One case: ``graph`` at ``sizes`` on the values that ``distribution`` and ``seed`` give."""

    graph: Graph
    sizes: tuple[tuple[str, int], ...]
    distribution: str
    seed: int
    precision: str
    keep: tuple[tuple[str, tuple[int, ...]], ...] = ()  # of which dimensions only some indices are asked for


@dataclass(frozen=True)
class Expected:
    """The answer: stored inputs and weights by name; per output the fp64 reference and what eager PyTorch gives.

    Of a question about some indices the results there, and no inputs.
    low, high: the reference once more where a float becomes an integer on the way, moved to either side of it by a
    rounding error; empty elsewhere.  undefined: one of those floats has no integer, and nobody knows what comes out.
    """

    inputs: dict[str, torch.Tensor]
    reference: tuple[torch.Tensor, ...]  # float64 (integer and bool outputs: their own dtype)
    eager: tuple[torch.Tensor, ...]  # in the outputs' stored dtypes
    low: tuple[torch.Tensor, ...] = ()
    high: tuple[torch.Tensor, ...] = ()
    undefined: bool = False

    def nearest(self, number: int, got: torch.Tensor) -> torch.Tensor:
        """The right result of output ``number`` that is nearest to what a kernel gave: all between low and high are."""
        reference = self.reference[number]
        if not self.low:
            return reference
        ends = torch.stack((self.low[number], self.high[number], reference))
        low, high = ends.amin(0), ends.amax(0)
        held = torch.minimum(torch.maximum(got.reshape(reference.shape).to(reference.dtype), low), high)
        return torch.where(torch.isfinite(held) & torch.isfinite(low) & torch.isfinite(high), held, reference)


RESULTS = ("reference", "eager", "low", "high")  # the fields of an answer that hold a tensor for each output


class Answering(Protocol):
    """Who answers questions."""

    def expect_all(self, questions: Iterable[Question]) -> Iterator[Expected]:
        """The answers in order."""


def question(task: Task, sizes: Mapping[str, int], distribution: str, seed: int) -> Question:
    """The question about a task, or about a whole target in the form of one."""
    return Question(task.graph, tuple(sorted(sizes.items())), distribution, seed, task.precision)


class Oracle:
    """The line to the process, and the process unless ``line`` leads to another's.

    Use as a context manager, or close() it.
    """

    def __init__(self, line: Connection | None = None) -> None:
        self._python: FreshPython | None = None
        self._line = line
        self._stale = 0  # answers in flight that nobody wants any more
        self._settled = line is not None  # it has imported all that it will
        if line is None:
            self._start()

    def expect(self, task: Task, sizes: Mapping[str, int], distribution: str, seed: int) -> Expected:
        """Inputs, reference and yardstick of ``task`` at ``sizes``.

        Raises OracleDefect where the reference fails or another's process ends, EnvironmentLacks where ours dies twice.
        """
        return next(self.expect_all([question(task, sizes, distribution, seed)]))

    def expect_part(
        self, task: Task, sizes: Mapping[str, int], seed: int, keep: Mapping[str, Sequence[int]]
    ) -> Expected:
        """The results on normal inputs, along some dimensions only at some indices.  Raises as :meth:`expect` does."""
        kept = tuple((name, tuple(indices)) for name, indices in sorted(keep.items()))
        return next(self.expect_all([replace(question(task, sizes, "normal", seed), keep=kept)]))

    def expect_all(self, questions: Iterable[Question]) -> Iterator[Expected]:
        """The answers in order.  Leaving the iteration early is fine: what is in flight is thrown away."""
        waiting: deque[Question] = deque()
        upcoming = iter(questions)
        try:
            while True:
                while len(waiting) < AHEAD and (q := next(upcoming, None)) is not None:
                    waiting.append(q)
                    self._send(q)
                if not waiting:
                    return
                try:
                    answer = self._receive(waiting)
                finally:
                    waiting.popleft()  # answered, even if by an error
                yield answer
        finally:
            self._stale += len(waiting)

    def settle(self) -> None:
        """Waits until the process has imported all that it will: no file that is written from then on reaches it.

        One that dies meanwhile is started again where its answer is due.
        """
        with contextlib.suppress(EOFError, OSError):
            while not self._settled:
                self._next()

    def close(self) -> None:
        """Ends our process, or lets go of another's.  May be called twice."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._python is not None:
            self._python.end()
            self._python = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # -------------------------------------------------------------------------------------------- the process

    def _start(self) -> None:
        self._python = FreshPython("evaluator.judging.oracle_worker")
        self._stale, self._settled = 0, False
        self._line = self._python.line

    def _send(self, q: Question) -> None:
        if self._line is None:
            self._start()
        assert self._line is not None
        with contextlib.suppress(OSError):  # a dead worker is noticed, and restarted, where its answer is due
            self._line.send(q)

    def _receive(self, waiting: Iterable[Question]) -> Expected:
        try:
            return self._receive_once()
        except (EOFError, OSError):
            if self._python is None:
                raise OracleDefect("the reference process ended") from None
        self.close()
        self._start()
        for q in waiting:
            self._send(q)
        try:
            return self._receive_once()
        except (EOFError, OSError):
            said = self._python.end()
            self.close()
            raise EnvironmentLacks(
                f"the reference process died twice: {said}", "Free some memory, or let less run at once, and try again."
            ) from None

    def _next(self) -> tuple[str, Any] | None:
        """The next answer; None for the word that the process has settled."""
        assert self._line is not None
        if not self._line.poll(ANSWER_SECONDS):
            raise OSError(f"no answer from the reference process in {ANSWER_SECONDS:.0f} s")
        kind, body = self._line.recv()
        self._settled = True
        return None if kind == "settled" else (kind, body)

    def _receive_once(self) -> Expected:
        while (answer := self._next()) is None or self._stale:
            self._stale -= answer is not None
        kind, body = answer
        if kind == "error":
            raise OracleDefect(f"the reference failed: {body}")
        results = {part: tuple(map(unpack, body[part])) for part in RESULTS}
        inputs = {name: unpack(packed) for name, packed in body["inputs"].items()}
        return Expected(inputs, **results, undefined=body["undefined"])


# ---------------------------------------------------------------------------------------------------- tensors as bytes

Packed = tuple[str, tuple[int, ...], bytes]


def pack(tensor: torch.Tensor) -> Packed:
    """A tensor as (torch dtype name, shape, row-major bytes)."""
    flat = tensor.detach().contiguous().reshape(-1)
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def unpack(packed: Any) -> torch.Tensor:
    """The inverse of :func:`pack`; the tensor owns its memory."""
    name, shape, data = packed
    dtype = getattr(torch, name)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)
