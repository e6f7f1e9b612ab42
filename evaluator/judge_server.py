"""The judge's process: torch, the modules of a judgement and a warden, ready; each judgement in a fork of it.

Started by :class:`evaluator.judge_process.JudgeProcess` as ``python -m evaluator.judge_server FD``.  A fork takes three
milliseconds, holds nothing of the candidate before, and can be ended wherever it is: in one operation on a tile of
2²⁴ elements, while it reads a kernel's text.  The process itself reads nothing of a candidate; it passes on what it is
given.  Another fork of it, made before the first judgement, is the oracle; each judgement gets a line of its own to it.

One thread: it waits for messages, and ends a judgement that is late.  What it is asked and what it answers:

    caller → process    the limits (JSON), then the question, a pickle for the judgement
    process → caller    READY once; then PROGRESS, and at the end RESULT, RAISED or ENDED
    judgement → process UNTIL, PROGRESS, and at the end RESULT or RAISED
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
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from evaluator import lockdown

if TYPE_CHECKING:
    from evaluator.oracle import Oracle
    from evaluator.plans import Plans
    from kernels_generated.runtime.plan import Launchable
    from knowledge_base.chips import Chip
    from knowledge_base.records import Trial, Verdict
    from knowledge_base.snf.task import Decomposition, Task

READY, PROGRESS, UNTIL, RESULT, RAISED, ENDED = b"+", b"p", b"u", b"r", b"x", b"e"
HARD, SLACK_S = 1.1, 0.2  # a judgement is ended at this many times the seconds that a step may take, and so much more
PATIENCE_S = 15.0  # beyond its limit the caller waits so long for the process to have ended it
PAGE = resource.getpagesize()


class Desk:
    """What a function that runs in a fork is given, as its last argument."""

    def __init__(self, line: Connection, oracle: Oracle) -> None:
        self._line, self.oracle = line, oracle

    def progress(self, stage: str, share: float) -> None:
        """Passed on to the caller."""
        self._line.send_bytes(PROGRESS + pickle.dumps((stage, share)))

    @contextlib.contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Inside, this process is ended after ``seconds``, a little later; ``what`` is then said to have run too long.

        It is for steps that mind the time themselves, where they can: what it ends cannot say more.
        """
        self._line.send_bytes(UNTIL + json.dumps([HARD * seconds + SLACK_S, what]).encode())
        try:
            yield
        finally:
            self._line.send_bytes(UNTIL)


# ---------------------------------------------------------------------------------------------------- in a fork


def judge(
    trial: Trial, task: Task, chip: Chip, plans: Plans, seed: int | None, jobs: int, desk: Desk
) -> tuple[Trial, Plans]:
    from evaluator.judge import judge

    judged = judge(
        trial, task, chip, plans=plans, seed=seed, oracle=desk.oracle, jobs=jobs,
        progress=desk.progress, within=desk.within,
    )  # fmt: skip
    return judged, plans


def judge_composed(
    trial: Trial,
    decomposition: Decomposition,
    winners: Mapping[str, Trial],
    plans: Plans,
    chip: Chip,
    seed: int | None,
    desk: Desk,
) -> tuple[Trial, Plans]:
    from evaluator.composed import judge_composed

    oracle, within = desk.oracle, desk.within
    return judge_composed(trial, decomposition, winners, plans, chip, seed=seed, oracle=oracle, within=within), plans


def emulate(task: Task, plan: Launchable, chip: Chip, seed: int, desk: Desk) -> tuple[dict[str, Any], float] | Verdict:
    """The task's own sizes once, on normal inputs: by output an Errors or a Failure, and the seconds it took."""
    from evaluator.cases import run_case
    from evaluator.compare import measure
    from evaluator.executable import Executable
    from evaluator.rejection import Rejected, defect
    from knowledge_base.errors import UserError

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

# ---------------------------------------------------------------------------------------------------- the process


def main(control: Connection) -> None:
    """Serves judgements, one after another, until the caller's end of ``control`` closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load()
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


def _load() -> None:
    """All that a judgement reads of our files, so that nothing is read again once a candidate has run."""
    from evaluator import oracle_worker
    from evaluator.confine import containment, prepare
    from evaluator.judge import load
    from evaluator.trace import BARE

    oracle_worker.load()
    load()
    containment()  # starts the warden, too
    prepare(BARE)


class _OracleProcess:
    """The fork that answers the judgements' questions: one line after another, so that a broken one spoils no other."""

    def __init__(self) -> None:
        self._pid = 0
        self._start()

    def line(self) -> Connection:
        """A fresh line to it; of a dead one, to a new one."""
        if os.waitpid(self._pid, os.WNOHANG)[0]:
            self._socket.close()
            self._start()
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # it ended this moment: the line will tell
            socket.send_fds(self._socket, [b"."], [theirs.fileno()])
        return Connection(ours.detach())

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
        from evaluator.oracle_worker import Answers, serve

        lockdown.end_with_parent()
        answers = Answers()
        while True:
            _, descriptors, _, _ = socket.recv_fds(lines, 1, 1)
            if not descriptors:
                return
            with Connection(descriptors[0]) as line:
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
    from evaluator.oracle import Oracle

    try:
        lockdown.end_with_parent()
        _limit(memory_bytes)
        try:
            function, arguments = pickle.loads(question)
            said = RESULT + pickle.dumps(function(*arguments, Desk(line, Oracle(asked))))
        except Exception as error:
            said = RAISED + _pickled(error)
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


def _pickled(error: Exception) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # an exception of several arguments may not come back
    except Exception:
        return pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))
    return data


if __name__ == "__main__":
    from evaluator import judge_server  # under the name that a caller's pickles know

    judge_server.main(Connection(int(sys.argv[1])))
