"""Judges at work in processes of their own, so that two tasks are judged at once and the loop never imports torch.

A judge process holds torch and an oracle and takes questions one after another; nothing of a candidate runs in it (that
is the tracer's children).  Ctrl-C is the loop's to handle: these processes ignore it and end with the loop.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from knowledge_base.errors import EnvironmentLacks

if TYPE_CHECKING:
    from evaluator.judge import Judgement
    from knowledge_base.chips import Chip
    from knowledge_base.snf.task import Task

_oracle: Any = None  # of this judge process


class Judges:
    """A pool of judge processes; a context manager.  ``count``: how many."""

    def __init__(self, count: int) -> None:
        # Spawned, not forked: the loop has threads, and torch does not survive a fork in every build.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(max_workers=count, mp_context=context, initializer=_begin)
        for _ in range(count):  # each starts now and imports torch while the loop reads and searches
            self._pool.submit(_warm_up)

    def judge(self, source: str, task: Task, chip: Chip, axes: Mapping[str, Any], seed: int) -> Judgement:
        """As :func:`evaluator.judge.judge`; blocks.  Raises EnvironmentLacks where a judge process was killed."""
        judgement: Judgement = self._answer(self._pool.submit(_judge, source, task, chip, dict(axes), seed))
        return judgement

    def call(self, function: Any, *arguments: Any) -> Any:
        """Any picklable function of a module, with the process's oracle as its last argument."""
        return self._answer(self._pool.submit(_call, function, arguments))

    def _answer(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except BrokenProcessPool:
            raise EnvironmentLacks(
                "a judge process was killed (out of memory?)", "Free some memory or lower --jobs, then use --resume."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Their children (oracle, tracer, assembler) end when they do.
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: several judges share the cores


def _warm_up() -> None:
    import torch

    import evaluator.judge  # noqa: F401
    from evaluator.oracle import Oracle

    torch.set_num_threads(1)
    global _oracle
    if _oracle is None:
        _oracle = Oracle()


def _judge(source: str, task: Task, chip: Chip, axes: dict[str, Any], seed: int) -> Judgement:
    from evaluator.judge import judge

    _warm_up()
    return judge(source, task, chip, axes=axes, seed=seed, oracle=_oracle, jobs=1)


def _call(function: Any, arguments: tuple[Any, ...]) -> Any:
    _warm_up()
    return function(*arguments, _oracle)
