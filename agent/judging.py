"""Judges at work in processes of their own, so that two tasks are judged at once and the loop never imports torch.

A judge process holds torch and an oracle and takes questions one after another; nothing of a candidate runs in it (that
is the tracer's children).  Ctrl-C is the loop's to handle: these processes ignore it and end with the loop.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, Self

from evaluator.confine import containment
from knowledge_base.errors import EnvironmentLacks

if TYPE_CHECKING:
    from evaluator.judge import Plans
    from evaluator.oracle import Oracle
    from evaluator.trace import Traced
    from knowledge_base.chips import Chip
    from knowledge_base.records import Trial
    from knowledge_base.snf.task import Task

_oracle: Any = None  # of this judge process


class Judges:
    """A pool of judge processes; a context manager.  ``count``: how many."""

    def __init__(self, count: int) -> None:
        # Spawned, not forked: the loop has threads, and torch does not survive a fork in every build.
        context = multiprocessing.get_context("spawn")
        # Where a candidate could write the judge's files, no candidate runs before all of them are read.
        together = None if containment().landlock else context.Barrier(count)
        begin = os.getpid(), together
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=begin)
        self._stopped = False
        # Each starts now and imports torch while the loop reads and searches.
        warm = [self._pool.submit(_warm_up) for _ in range(count)]
        if together is not None:
            wait(warm)

    def judge(self, trial: Trial, task: Task, chip: Chip, traced: Traced | None, seed: int) -> tuple[Trial, Plans]:
        """As :func:`evaluator.judge.judge`; blocks.  Raises EnvironmentLacks where a judge process was killed."""
        judged: tuple[Trial, Plans] = self.call(_judge, trial, task, chip, traced, seed)
        return judged

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments, oracle)`` in a judge process; a function of a module, picklable arguments."""
        try:
            return self._pool.submit(_call, function, arguments).result()
        except (BrokenProcessPool, CancelledError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not isinstance(error, BrokenProcessPool) and not self._stopped:
                raise  # a defect in the judge
            raise EnvironmentLacks(
                "a judge process was killed (out of memory?)", "Free some memory or lower --jobs, then use --resume."
            ) from None

    def stop(self) -> None:
        """Ends the processes at once; calls that wait for them raise EnvironmentLacks.  May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        processes = list((self._pool._processes or {}).values())
        for process in processes:  # their children (oracle, tracer, assembler) end when they do
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _begin(parent: int, together: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: several judges share the cores
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if together is not None:
        _warm_up()
        _oracle.settle()
        together.wait()


def _end_with(parent: int) -> None:
    """Ends this process when the loop is gone, however it ended: a pool's worker would wait for ever."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _warm_up() -> None:
    import torch

    from evaluator.judge import load
    from evaluator.oracle import Oracle

    load()
    torch.set_num_threads(1)
    global _oracle
    if _oracle is None:
        _oracle = Oracle()


def _judge(
    trial: Trial, task: Task, chip: Chip, traced: Traced | None, seed: int, oracle: Oracle
) -> tuple[Trial, Plans]:
    from evaluator.judge import judge

    return judge(trial, task, chip, traced=traced, seed=seed, oracle=oracle, jobs=1)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    _warm_up()
    return function(*arguments, _oracle)
