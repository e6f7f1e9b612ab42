"""A runner's process: a GPU, PyTorch, and questions about launch plans, one after another.

Started by :class:`.runner.Runner` as ``python -m evaluator.replay.runner_server FD``.  It never runs a candidate's
Python.  A kernel that faults takes the process's GPU context with it, so the process says what happened and ends.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from evaluator.confinement import lockdown, portable
from kernels_generated.runtime import DriverError

from .bench import QUESTIONS, Bench
from .wire import FAULT, LACKS, RAISED, READY, RESULT, SPOILED, Spoiled


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
            said: tuple[str, Any] = (RESULT, QUESTIONS[question](*asked, bench))
        except DriverError as error:
            line.send((FAULT, error.code))
            return
        except Spoiled as spoiled:
            line.send((SPOILED, spoiled.args))
            return
        except Exception as error:
            said = (RAISED, portable(error))
        line.send(said)


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
