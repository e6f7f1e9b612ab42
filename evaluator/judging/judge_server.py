"""The judge's process: torch, the modules of a judgement and a warden, ready; each judgement in a fork of it.

Started by :class:`.judge_process.JudgeProcess` as ``python -m evaluator.judging.judge_server FD``.  A fork takes three
milliseconds, holds nothing of the candidate before, and can be ended wherever it is: in one operation on a tile of
2²⁴ elements, while it reads a kernel's text.  The process itself reads nothing of a candidate; it passes on what it is
given.  Another fork of it, made before the first judgement, is the oracle; each judgement gets a line of its own to it.

One thread: it waits for messages, and ends a judgement that is late.  What passes over the lines is in :mod:`.desk`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import pickle
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from evaluator.confinement import containment, lockdown, portable, prepare
from evaluator.plans import Plans
from evaluator.trace import BARE
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import Chip
from knowledge_base.errors import UserError
from knowledge_base.records import Trial, Verdict
from knowledge_base.snf.task import Decomposition, Task

from .agreement import agreement
from .cases import run_case
from .compare import measure
from .composed import judge_composed
from .desk import ENDED, PROGRESS, RAISED, READY, RESULT, UNTIL, Desk
from .executable import Executable
from .judgement import judge
from .oracle import Oracle
from .oracle_worker import Answers, serve
from .rejection import Rejected, defect

PAGE = resource.getpagesize()
TAKEN_S = 0.5  # an oracle that is not busy says within a millisecond that it has a line


# ---------------------------------------------------------------------------------------------------- in a fork


def _judge(
    trial: Trial, task: Task, chip: Chip, plans: Plans, seed: int | None, jobs: int, desk: Desk
) -> tuple[Trial, Plans]:
    judged = judge(
        trial, task, chip, plans=plans, seed=seed, oracle=desk.oracle, jobs=jobs,
        progress=desk.progress, within=desk.within,
    )  # fmt: skip
    return judged, plans


def _judge_composed(
    trial: Trial,
    decomposition: Decomposition,
    winners: Mapping[str, Sequence[Trial]],
    plans: Plans,
    chip: Chip,
    seed: int | None,
    desk: Desk,
) -> tuple[Trial, Plans]:
    oracle, within = desk.oracle, desk.within
    return judge_composed(trial, decomposition, winners, plans, chip, seed=seed, oracle=oracle, within=within), plans


def _emulate(task: Task, plan: Launchable, chip: Chip, seed: int, desk: Desk) -> tuple[dict[str, Any], float] | Verdict:
    """The task's own sizes once, on normal inputs: by output an Errors or a Failure, and the seconds it took."""
    try:
        expected = desk.oracle.expect(task, task.sizes, "normal", seed)
        start = time.monotonic()
        executable = Executable.of_task(task, [plan], chip, start + EMULATE_SECONDS, desk.within)
        cases = run_case(executable, task, dict(task.sizes), "normal", expected)
        return {case.output: measure(case) for case in cases}, time.monotonic() - start
    except Rejected as rejected:
        return rejected.verdict
    except UserError:
        raise
    except Exception as error:
        return defect(error)


EMULATE_SECONDS = 120.0  # at a task's own sizes, which may be large
QUESTIONS: dict[str, Callable[..., Any]] = {
    "judge": _judge, "judge_composed": _judge_composed, "emulate": _emulate, "agreement": agreement
}  # fmt: skip

# ---------------------------------------------------------------------------------------------------- the process


def main(control: Connection) -> None:
    """Serves judgements, one after another, until the caller's end of ``control`` closes.

    All that a judgement reads of our files has been read by now, so that nothing is once a candidate has run.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    containment()  # starts the warden, too
    prepare(BARE)
    oracle = _OracleProcess()
    gc.collect()
    gc.freeze()  # a fork need not copy what its collector never visits
    control.send_bytes(READY)
    while True:
        try:
            limits, question = json.loads(control.recv_bytes()), control.recv_bytes()
        except (EOFError, OSError):
            return
        if not _serve(control, oracle, limits, question):
            return


class _OracleProcess:
    """The fork that answers the judgements' questions: one line after another, so that a broken one spoils no other."""

    def __init__(self) -> None:
        self._pid = 0
        self._start()

    def line(self) -> Connection:
        """A fresh line to it; of a dead one, to a new one."""
        while True:
            ours, theirs = socket.socketpair()
            with theirs:
                if self._takes(theirs):
                    return Connection(ours.detach())
            ours.close()
            self._socket.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._start()

    def _takes(self, theirs: socket.socket) -> bool:
        """Hands over a line.  False: it is dead, or about to be: one that was killed a moment ago still seems to live.

        One that is busy with an answer says later that it has the line; nobody waits for that.
        """
        try:
            while select.select([self._socket], [], [], 0)[0]:  # what it said late about lines before
                if not self._socket.recv(1):
                    return False
            socket.send_fds(self._socket, [b"."], [theirs.fileno()])
            return not select.select([self._socket], [], [], TAKEN_S)[0] or self._socket.recv(1) != b""
        except OSError:
            return False

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    self._socket.close()
                    self._answer(theirs)
                finally:
                    os._exit(0)

    def _answer(self, lines: socket.socket) -> None:
        lockdown.end_with_parent()
        answers = Answers()
        while True:
            _, descriptors, _, _ = socket.recv_fds(lines, 1, 1)
            if not descriptors:
                return
            with Connection(descriptors[0]) as line:
                lines.send(b".")
                serve(line, answers)


def _serve(control: Connection, oracle: _OracleProcess, limits: Mapping[str, Any], question: bytes) -> bool:
    """One judgement: starts it, passes on what it says, ends it if it is late.  False: the caller is gone."""
    ours, theirs = socket.socketpair()
    line, asked = Connection(ours.detach()), oracle.line()
    pid = os.fork()
    if pid == 0:
        control.close()
        line.close()
        _judgement(Connection(theirs.detach()), asked, limits["memory_bytes"], question)
    theirs.close()
    asked.close()
    with line:
        said = _watch(line, control, limits["seconds"])
    os.kill(pid, signal.SIGKILL)  # if it is still there: an assembler may be at work for it
    status = os.waitpid(pid, 0)[1]
    if said is None:
        return False
    if not said:
        code = os.waitstatus_to_exitcode(status)
        said = ENDED + json.dumps(["died", signal.Signals(-code).name if code < 0 else f"exit code {code}"]).encode()
    try:
        control.send_bytes(said)
    except OSError:
        return False
    return True


def _watch(line: Connection, control: Connection, seconds: float) -> bytes | None:
    """A judgement's last message, empty if it ended without one, ENDED if it was late; None: the caller is gone."""
    end = time.monotonic() + seconds
    late, what = math.inf, ""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(control, select.POLLIN)
    while (left := min(late, end) - time.monotonic()) > 0:
        ready = {descriptor for descriptor, _ in poll.poll(1000 * left + 1)}
        if control.fileno() in ready:  # it says nothing while it waits
            return None
        if line.fileno() not in ready:
            continue
        try:
            message = line.recv_bytes()
            if message.startswith(PROGRESS):
                control.send_bytes(message)
            elif not message.startswith(UNTIL):
                return message
            elif len(message) > len(UNTIL):
                within, what = json.loads(message[len(UNTIL) :])
                late = time.monotonic() + within
            else:
                late, what = math.inf, ""
        except (EOFError, OSError):
            return b""
    said = what if late < end else f"the judgement was not done after {seconds:.0f} s"
    return ENDED + json.dumps(["time", said]).encode()


def _judgement(line: Connection, asked: Connection, memory_bytes: int, question: bytes) -> NoReturn:
    """In the fork: answers the question, and ends."""
    try:
        lockdown.end_with_parent()
        _limit(memory_bytes)
        try:
            function, arguments = pickle.loads(question)
            function = QUESTIONS[function] if isinstance(function, str) else function
            said = RESULT + pickle.dumps(function(*arguments, Desk(line, Oracle(asked))))
        except Exception as error:
            said = RAISED + pickle.dumps(portable(error))
        line.send_bytes(said)
    finally:
        os._exit(0)


def _limit(memory_bytes: int) -> None:
    """Refuses this process more than so many bytes beside what it has; if the machine runs out, it is the one to go."""
    with open("/proc/self/statm") as file:
        has = PAGE * int(file.read().split()[5])  # private memory that can be written, and the stack
    resource.setrlimit(resource.RLIMIT_DATA, 2 * (has + memory_bytes,))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
