"""A runner's process: a GPU, PyTorch, and questions about launch plans, one after another.

Started by :class:`.runner.Runner` as ``python -m evaluator.replay.runner_server FD``.  It never runs a candidate's
Python.  A kernel that faults takes the process's GPU context with it, so the process says what happened and ends.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from evaluator.confinement import lockdown, portable
from evaluator.judging import Rejected
from kernels_generated.runtime import DriverError

from .bench import QUESTIONS, Bench
from .wire import FAULT, FULL, LACKS, RAISED, READY, RESULT, SPOILED, Spoiled


def main(line: Connection) -> None:
    """Makes the device that the first message names, and answers until the other end closes or a kernel faults."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lockdown.end_with_parent()
    make, arguments = line.recv()
    try:
        bench = Bench(_made(make)(*arguments))
        line.send((READY, bench.device.describe()))
    except Exception as error:
        line.send((LACKS, f"{type(error).__name__}: {error}"))
        return
    while True:
        try:
            question, asked = line.recv()
        except (EOFError, OSError):
            return
        try:
            said = answered(question, asked, bench)
        except DriverError as error:
            line.send((FAULT, error.code))
            return
        except Spoiled as spoiled:
            line.send((SPOILED, spoiled.args))
            return
        except Exception as error:
            said = (RAISED, portable(error))
        line.send(said)


def answered(question: str, asked: Sequence[Any], bench: Bench) -> tuple[str, Any]:
    """RESULT and the answer; FULL where the GPU's memory does not suffice, not even without what was kept.

    What else the question raises is raised.
    """
    kept = True
    while True:
        try:
            return RESULT, QUESTIONS[question](*asked, bench)
        except torch.OutOfMemoryError as error:
            said = str(error).partition(" GPU ")[0]  # behind it are lines of advice and other processes
        except Rejected as rejected:
            if rejected.verdict.error_class != "gpu-memory" or not kept:
                raise
        if not kept:
            return FULL, said
        bench.forget()
        kept = False


def _made(name: str) -> Callable[..., Any]:
    """``package.module:Class``."""
    module, _, attribute = name.partition(":")
    made: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return made


if __name__ == "__main__":
    try:
        main(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        sys.exit(0)  # the caller is gone
