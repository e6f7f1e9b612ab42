"""A process that judges: what a judgement costs, it costs there, and it can be ended there.

    with JudgeProcess() as judges:
        trial = judges.judge(begin(candidate, task, chip), task, chip)

It holds torch, so that the caller needs none, and runs each judgement in a fork of itself, within limits of memory and
time that hold whatever the judgement does (:mod:`.judge_server`).  A judgement that is ended, or dies, is a verdict on
its candidate, and the next one is judged as if nothing had been.

One call at a time; any thread may end it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from evaluator.confinement import FreshPython
from evaluator.plans import Plans
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import Chip
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.records import Stage, Status, Trial, Verdict
from knowledge_base.snf.task import Decomposition, Task

from . import desk
from .rejection import Rejected, finished

if TYPE_CHECKING:
    from .accuracy import Errors, Failure

MEMORY_BYTES = 4 << 30  # of one judgement; honest ones take a few hundred megabytes
SECONDS = 600.0  # for all of a judgement, whose steps have limits of their own; honest ones take one to ten
Progress = Callable[[str, float], None]


class JudgeProcess:
    """The process; a context manager.  It starts at once, and imports torch while the caller goes on.

    memory_bytes, seconds: what one judgement may take.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, seconds: float = SECONDS) -> None:
        self.memory_bytes, self.seconds = memory_bytes, seconds
        self._python = FreshPython("evaluator.judging.judge_server")
        self._ready = False
        self._closed = False

    def judge(
        self,
        trial: Trial,
        task: Task,
        chip: Chip,
        *,
        plans: Plans | None = None,
        seed: int | None = None,
        jobs: int = 1,
        progress: Progress | None = None,
    ) -> Trial:
        """As :func:`.judgement.judge`, which see."""
        plans = Plans() if plans is None else plans
        seed = int.from_bytes(os.urandom(6)) if seed is None else seed
        asked = (trial, task, chip, plans.only(trial), seed, jobs)
        return self._judged(trial, plans, seed, trial.candidate.source, "judge", *asked, progress=progress)

    def judge_composed(
        self,
        trial: Trial,
        decomposition: Decomposition,
        winners: Mapping[str, Sequence[Trial]],
        plans: Plans,
        chip: Chip,
        *,
        seed: int | None = None,
    ) -> Trial:
        """As :func:`.composed.judge_composed`, which see."""
        seed = int.from_bytes(os.urandom(6)) if seed is None else seed
        asked = (trial, decomposition, dict(winners), plans.only(*chain.from_iterable(winners.values())), chip, seed)
        return self._judged(trial, plans, seed, "", "judge_composed", *asked)

    def emulate(
        self, task: Task, traced: Launchable, chip: Chip, seed: int
    ) -> tuple[dict[str, Errors | Failure], float] | Verdict:
        """The task's own sizes once, on normal inputs: what each output's errors are, and the seconds of two runs."""
        try:
            answer: tuple[dict[str, Errors | Failure], float] | Verdict = self.call("emulate", task, traced, chip, seed)
        except Rejected as rejected:
            return rejected.verdict
        return answer

    def agreement(
        self,
        task: Task,
        plans: Sequence[Launchable],
        chip: Chip,
        seed: int,
        made: Sequence[tuple[Mapping[str, int], Mapping[str, Any]]],
    ) -> dict[str, Any]:
        """As :func:`.agreement.agreement`, which see."""
        figures: dict[str, Any] = self.call("agreement", task, tuple(plans), chip, seed, made)
        return figures

    def call(self, function: str | Callable[..., Any], *arguments: Any, progress: Progress | None = None) -> Any:
        """``function(*arguments, desk)`` in a fork of the process; ``desk`` is a :class:`.desk.Desk`.

        function: one of :data:`.judge_server.QUESTIONS` by its name, or any module's; arguments and result can be
        pickled.  What it raises is raised here.  Raises Rejected where it was ended, EnvironmentLacks where the process
        cannot start or was closed.
        """
        question = pickle.dumps((function, arguments))
        limits = {"memory_bytes": self.memory_bytes, "seconds": self.seconds}
        self.wait()
        try:
            self._python.line.send_bytes(json.dumps(limits).encode())
            self._python.line.send_bytes(question)
            kind, body = self._answer(time.monotonic() + desk.HARD * self.seconds + desk.PATIENCE_S, progress)
        except (EOFError, OSError):
            self._start_again()
            raise Rejected(_died("its process died")) from None
        if kind == desk.RAISED:
            raise pickle.loads(body)
        if kind == desk.ENDED:
            raise Rejected(_ended(*json.loads(body)))
        return pickle.loads(body)

    def wait(self) -> None:
        """Waits until the process has imported all that it will: no file that is written from then on reaches it.

        Raises EnvironmentLacks where it cannot start, or was closed.
        """
        if self._closed:
            raise self._was_ended()
        if self._ready:
            return
        try:
            self._ready = self._python.line.recv_bytes() == desk.READY
        except (EOFError, OSError):
            if self._closed:
                raise self._was_ended() from None
            said = self._python.end()
            mend = "Free some memory, or let less run at once; `agent doctor` says what is missing."
            raise EnvironmentLacks(f"the judge's process did not start: {said}", mend) from None

    def kill(self) -> None:
        """Ends the process at once; a call that waits in another thread raises EnvironmentLacks."""
        self._closed = True
        self._python.process.kill()
        self._python.process.wait()

    def close(self) -> None:
        """Ends the process and lets go of it.  May be called twice."""
        self.kill()
        self._python.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _answer(self, until: float, progress: Progress | None) -> tuple[bytes, bytes]:
        """The last message of a call: its kind, and the rest."""
        while True:
            if not self._python.line.poll(max(0.0, until - time.monotonic())):
                raise OSError("no answer")
            message = self._python.line.recv_bytes()
            kind, body = message[:1], message[1:]
            if kind != desk.PROGRESS:
                return kind, body
            if progress is not None:
                progress(*pickle.loads(body))

    def _was_ended(self) -> EnvironmentLacks:
        return EnvironmentLacks("the judge's process was ended", "Start it again.")

    def _start_again(self) -> None:
        if self._closed:
            raise self._was_ended()
        self._python.end()
        self._python, self._ready = FreshPython("evaluator.judging.judge_server"), False

    def _judged(
        self,
        trial: Trial,
        plans: Plans,
        seed: int,
        source: str,
        function: str,
        *asked: Any,
        progress: Progress | None = None,
    ) -> Trial:
        start = time.monotonic()
        judged: Trial
        try:
            judged, made = self.call(function, *asked, progress=progress)
        except Rejected as rejected:
            verdict = finished(rejected.verdict, source)
            return trial.fuller(verdict=verdict, seed=seed, seconds=time.monotonic() - start)
        plans.put(*made)
        return judged


def _ended(kind: str, what: str) -> Verdict:
    """The verdict of a judgement that had to be ended, or that died."""
    if kind == "time":
        return Verdict(status=Status.TIMEOUT, stage=Stage.EMULATE, error_class="too-slow", message=what)
    return _died(f"it ended with {what}")


def _died(how: str) -> Verdict:
    message = f"the judgement died, which may say nothing about the kernel: {how}"
    return Verdict(status=Status.CRASH, stage=Stage.EMULATE, error_class="evaluator-defect", message=message)
