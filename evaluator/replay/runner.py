"""A runner: a process that has a GPU and runs launch plans on it, and that can be ended.

    with Runner() as runner:
        numbers = runner.call("examined", task, plans, cubins, chip, sizes, seed, None, 60.0, seconds=90)

The caller needs neither torch nor a GPU.  A kernel that faults or hangs ends the process, which is a verdict on the
kernel; the next call has a new process, and a known answer has said that the GPU still works.  Any thread may end it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

from evaluator.confinement import FreshPython
from evaluator.judging import Rejected
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.records import Stage, Status, Verdict

from .turn import turn
from .wire import FAULT, FULL, LACKS, RAISED, RESULT, SPOILED, Spoiled

CUDA = "evaluator.replay.device:CudaDevice"
START_S = 120.0  # torch and a CUDA context take five to ten seconds, on a busy machine more
KNOWN_ANSWER_S = 30.0
DOCTOR = "`agent doctor` says what is missing."
GONE = "Look at nvidia-smi and the system's log (Xid); nothing was measured since the last result that was reported"


class AnyRunner(Protocol):
    """One GPU's runner, or those of several as one (:class:`.runners.Runners`)."""

    @property
    def description(self) -> Mapping[str, str]: ...

    def call(self, question: str, *arguments: Any, seconds: float) -> Any: ...

    def rest(self) -> None: ...

    def another(self) -> AnyRunner: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Runner:
    """``make``: the device, as ``package.module:Class`` with its arguments.

    Threads may share one: a call waits for those before it.
    """

    def __init__(self, make: str = CUDA, *arguments: Any) -> None:
        self._make = (make, arguments)
        self._closed = False
        self._lock = threading.Lock()
        self._description: dict[str, str] | None = None
        self._start()

    @property
    def description(self) -> Mapping[str, str]:
        """Product, architecture and driver of the device.  Raises EnvironmentLacks where there is none."""
        with self._lock:
            return self._ready()

    def call(self, question: str, *arguments: Any, seconds: float) -> Any:
        """The answer to one of :data:`.bench.QUESTIONS`; what that raises is raised here.

        seconds: after which the process is ended.  Raises Rejected for a kernel that faults or does not end, Spoiled
        for a baseline that cannot be recorded, EnvironmentLacks without a GPU, with one that does not work any more,
        and once the runner was closed.
        """
        with self._lock, self._turn():
            self._ready()
            try:
                answer = self._asked(question, arguments, seconds)
            except (EOFError, OSError):
                said = self._python.end()
                self._again(f"the runner ended with {said}")
                raise Rejected(_fault(f"the process that ran it ended with {said}")) from None
            if answer is None:
                raise self._hung(seconds)
            kind, body = answer
            if kind == FAULT:
                self._again(f"a kernel's fault ({body})")
                raise Rejected(_fault(f"the driver reports {body}"))
            if kind == FULL:
                raise Rejected(_full(body))
            if kind == SPOILED:
                self._again("a baseline's failure")
                raise Spoiled(*body)
            if kind == RAISED:
                raise body
            return body

    def rest(self) -> None:
        """Gives the GPU's memory back that is kept for the next call."""
        with contextlib.suppress(Rejected):  # then it has none any more
            self.call("forget", seconds=KNOWN_ANSWER_S)

    def another(self) -> Runner:
        """A new runner on the same device: a fresh process, which starts while the caller goes on."""
        make, arguments = self._make
        return Runner(make, *arguments)

    def close(self) -> None:
        """Ends the process.  May be called twice, from any thread."""
        self._closed = True
        self._python.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _turn(self) -> AbstractContextManager[None]:
        """Runners on one GPU take turns, those of another run, too."""
        make, arguments = self._make
        if make != CUDA:
            return contextlib.nullcontext()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(os.sep, "_")
        return turn(f"gpu{''.join(map(str, arguments))}-{visible}", lambda: self._closed)

    def _start(self) -> None:
        self._python = FreshPython("evaluator.replay.runner_server")
        self._description = None
        with contextlib.suppress(OSError):  # a process that has died is noticed where its word is due
            self._python.line.send(self._make)

    def _ready(self) -> dict[str, str]:
        if self._closed:
            raise EnvironmentLacks("the GPU's runner was ended", "Start it again.")
        if self._description is not None:
            return self._description
        try:
            if not self._python.line.poll(START_S):
                raise OSError("no answer")
            kind, body = self._python.line.recv()
        except (EOFError, OSError):
            said = self._python.end()
            raise EnvironmentLacks(f"the GPU's runner did not start: {said}", DOCTOR) from None
        if kind == LACKS:
            raise EnvironmentLacks(f"the GPU cannot be used: {body}", DOCTOR)
        self._description = dict(body)
        return self._description

    def _asked(self, question: str, arguments: tuple[Any, ...], seconds: float) -> tuple[str, Any] | None:
        """Kind and body of the answer; None where there is none in time.  Raises EOFError or OSError where it died."""
        self._python.line.send((question, arguments))
        if not self._python.line.poll(seconds):
            return None
        answer: tuple[str, Any] = self._python.line.recv()
        return answer

    def _hung(self, seconds: float) -> Rejected:
        self._python.end()
        self._again("a kernel that did not end")
        message = f"on the GPU it was not done after {seconds:.0f} s"
        return Rejected(Verdict(status=Status.TIMEOUT, stage=Stage.REPLAY, error_class="gpu-hang", message=message))

    def _again(self, after: str) -> None:
        """A new process, after one was lost.  Raises EnvironmentLacks where the GPU does not work any more."""
        if self._closed:
            raise EnvironmentLacks("the GPU's runner was ended", "Start it again.")
        self._python.end()
        self._start()
        self._ready()
        start = time.monotonic()
        try:
            works = self._asked("known_answer", (), KNOWN_ANSWER_S) == (RESULT, True)
        except (EOFError, OSError):
            works = False
        if not works:
            self._python.end()
            seconds = time.monotonic() - start
            raise EnvironmentLacks(f"after {after} the GPU gave no right answer in {seconds:.0f} s", GONE)


def _full(said: str) -> Verdict:
    message = f"the GPU has too little memory left: {said}"
    return Verdict(status=Status.UNSUPPORTED, stage=Stage.REPLAY, error_class="gpu-memory", message=message)


def _fault(what: str) -> Verdict:
    message = f"on the GPU the kernel faults: {what}"
    return Verdict(status=Status.CRASH, stage=Stage.REPLAY, error_class="gpu-fault", message=message)
