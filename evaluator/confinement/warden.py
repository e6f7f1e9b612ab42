"""The warden: a small process that starts confined programs and ends their whole process trees.

Started by :mod:`.confine`, one per process that confines anything, and never imported by it.  A child
subreaper adopts every orphan below it, so a program that detaches (``setsid``, double fork) is still found and killed;
doing that in the caller would adopt orphans of its other children, and forking the caller (threads, gigabytes) would
cost tens of milliseconds.  This process has one thread and a few megabytes: a fork of it takes under a millisecond.

Protocol: the caller sends one message per run over a Unix socket (JSON with the descriptors of stdin, stdout, stderr,
a leash and, where there is one, a Landlock ruleset).  A fork of the warden, the supervisor, writes its number to the
leash, starts the program, watches it, ends the tree and writes one JSON line.  The leash closing means that the caller
gave up or died: the tree is ended, and the run's directory removed.  Where a program may signal others it can kill its
supervisor: it dies with it, and the warden ends what it started.  Standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection
from typing import Any

from . import lockdown, scratch

MAX_MESSAGE = 1 << 16
WATCH_S = 0.02  # how often the number of processes and the directory are looked at


def main() -> None:
    """Serves runs until the caller's end of the socket, whose descriptor is the first argument, closes."""
    control, module = int(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle; it closes the leashes
    lockdown.adopt_orphans()  # of a supervisor that was killed
    gc.disable()
    if module:
        with contextlib.suppress(Exception):  # who is asked to run it says what is wrong with it
            importlib.import_module(module).warm()
    gc.freeze()  # what a fork does not write to, it need not copy
    sock = socket.socket(fileno=control)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    supervisors: dict[int, int] = {}  # by pidfd
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == control:
                started = _serve(sock)
                if started == 0:
                    return
                handle = os.pidfd_open(started)
                supervisors[handle] = started
                poll.register(handle, select.POLLIN)
            else:
                poll.unregister(descriptor)
                os.close(descriptor)
                status = os.waitpid(supervisors.pop(descriptor), 0)[1]
                if os.WIFSIGNALED(status):
                    _end_all(keep=set(supervisors.values()))


def _serve(sock: socket.socket) -> int:
    """Takes one run and starts its supervisor, whose number it gives back; 0 when there will be no more."""
    message, descriptors, _flags, _address = socket.recv_fds(sock, MAX_MESSAGE, 5)
    if not message:
        return 0
    pid = os.fork()
    if pid == 0:
        try:
            sock.close()
            _supervise(json.loads(message), *descriptors)
        finally:
            os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _supervise(job: dict[str, Any], stdin: int, stdout: int, stderr: int, leash: int, ruleset: int = -1) -> None:
    """Says its number on the leash, runs the program, says how it ended, and stays until the caller lets go."""
    lockdown.adopt_orphans()
    start = time.monotonic()
    answer: dict[str, Any] = {"returncode": 127, "breach": ""}
    os.write(leash, b"%d\n" % os.getpid())
    pid = 0
    try:
        pid = _start(job, (stdin, stdout, stderr), ruleset)
    except OSError as error:
        _complain(stderr, job, error)
    for descriptor in (stdin, stdout, stderr):  # the caller reads them to their end
        os.close(descriptor)
    if pid:
        breach = _watch(pid, leash, job)
        processor_s = 0.0 if breach else _charged(pid)
        status = _end(pid, breach != "")
        if os.WIFSIGNALED(status) and not breach:
            # At its limit of processor time the kernel kills, and does not say why.
            limit = _allowed(resource.RLIMIT_CPU, job["rlimits"]["RLIMIT_CPU"])
            breach = "time" if os.WTERMSIG(status) == signal.SIGKILL and processor_s >= limit else "signal"
        answer = {"returncode": os.waitstatus_to_exitcode(status), "breach": breach}
    with contextlib.suppress(OSError):  # the caller may be gone
        os.write(leash, json.dumps({**answer, "seconds": time.monotonic() - start}).encode() + b"\n")
        while os.read(leash, 1):
            pass
    scratch.remove(job["cwd"])  # the caller did, unless it was killed


def _start(job: dict[str, Any], streams: tuple[int, int, int], ruleset: int) -> int:
    """The process that becomes the program; OSError where there are no namespaces for it."""
    if not job["namespaces"]:
        pid = os.fork()
        if pid == 0:
            _become(job, streams, ruleset)
        return pid
    told, tell = os.pipe()
    pid = lockdown.fork_apart()
    if pid == 0:
        os.close(tell)
        if os.read(told, 1):
            _become(job, streams, ruleset)
        os._exit(127)
    os.close(told)
    try:
        lockdown.name_ids(pid)
        os.write(tell, b".")
    finally:
        os.close(tell)
    return pid


def _become(job: dict[str, Any], streams: tuple[int, int, int], ruleset: int) -> None:
    """In the new process: limits, descriptors, what it may not do, then the program.  Never returns."""
    try:
        os.setsid()
        os.chdir(job["cwd"])
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for caught in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(caught, signal.SIG_DFL)
        if job["namespaces"]:
            lockdown.see_only_ourselves()
        for name, value in job["rlimits"].items():
            which = getattr(resource, name)
            resource.setrlimit(which, 2 * (_allowed(which, value),))
        lockdown.end_with_parent()
        _isolate(ruleset, base64.b64decode(job["filter"]))
        os.closerange(3, 1024)
        if job["module"]:
            _run_here(job["module"], job["env"])
        os.execve(job["argv"][0], job["argv"], job["env"])
    except BaseException as error:
        _complain(2, job, error)
    os._exit(127)


def _run_here(module: str, env: dict[str, str]) -> None:
    """Becomes the program by being it: ``main()`` of a module that this process has imported.  Never returns."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = []
    try:
        importlib.import_module(module).main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _complain(stderr: int, job: dict[str, Any], error: BaseException) -> None:
    said = getattr(error, "strerror", None) or error
    os.write(stderr, f"confine: {job['argv'][0]}: {said}\n".encode(errors="replace"))


def _allowed(which: int, value: int) -> int:
    """A limit, never above the one that holds for us."""
    given = resource.getrlimit(which)[1]
    return value if given == resource.RLIM_INFINITY else min(value, given)


def _isolate(ruleset: int, program: bytes) -> None:
    """What the kernel refuses to every confined program: see :mod:`.barriers`, which makes both."""
    lockdown.no_new_privileges()
    lockdown.drop_capabilities()
    if ruleset >= 0:
        lockdown.keep_to(ruleset)
    if program:
        lockdown.refuse(program)


def _watch(pid: int, leash: int, job: dict[str, Any]) -> str:
    """Waits for the program to end by itself ("") or to break a limit (its name)."""
    deadline = time.monotonic() + job["wall_s"]
    program = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(program, select.POLLIN)
    poll.register(leash, select.POLLIN | select.POLLHUP)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return "time"
        events = poll.poll(max(1, min(left, WATCH_S) * 1000))
        ready = {descriptor for descriptor, _ in events}
        if program in ready:
            return ""
        if leash in ready:
            return "ended"
        if sum(_below(os.getpid()).values()) > job["processes"]:
            return "processes"
        if scratch.crowded(job["cwd"], job["rlimits"]["RLIMIT_FSIZE"]):
            return "file"


def _below(root: int) -> dict[int, int]:
    """Every living descendant of ``root``, with its number of threads: to the kernel each of them is a process."""
    children = _lister()
    found: dict[int, int] = {}
    todo = children(root)
    while todo:
        pid = todo.pop()
        todo += children(pid)
        stat = _stat(pid)
        if stat is not None and stat[0] != b"Z":
            found[pid] = int(stat[17])
    return found


def _children(pid: int) -> set[int]:
    return set(_lister()(pid))


def _lister() -> Callable[[int], list[int]]:
    """What tells the children of a process."""
    return _listed if os.path.exists("/proc/thread-self/children") else _walked()


def _listed(pid: int) -> list[int]:
    """The children of a process, as the kernel lists them for each of its threads; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _walked() -> Callable[[int], list[int]]:
    """The same for a kernel that lists none (CONFIG_PROC_CHILDREN): from the parents of all processes."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            children.setdefault(int(stat[1]), []).append(int(name))
    return lambda pid: children.get(pid, [])


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on: 0 state, 1 parent, 17 threads; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _charged(pid: int) -> float:
    """The processor seconds that the kernel holds against RLIMIT_CPU, of a program that ended and was not reaped yet.

    They are counted by ticks of the scheduler and differ from the time it ran (what wait4 reports), by more the busier
    the machine is.  0 where the kernel does not say.
    """
    profiling = ~pid << 3  # how a process's clock CPUCLOCK_PROF is numbered: Linux, include/linux/posix-timers_types.h
    try:
        return time.clock_gettime(profiling)
    except OSError:
        return 0.0


def _end(pid: int, kill: bool) -> int:
    """Ends and reaps every process below this one; the program's wait status."""
    status = int(signal.SIGKILL)
    wait = os.WNOHANG if kill else 0  # left alone, it has ended already
    give_up = time.monotonic() + 10.0
    while time.monotonic() < give_up:
        try:
            while (ended := os.waitpid(-1, wait))[0] != 0:
                wait = os.WNOHANG
                if ended[0] == pid:
                    status = ended[1]
        except ChildProcessError:
            break  # nobody is left, orphans included: they would be ours
        _kill(_below(os.getpid()))
        time.sleep(0.0005)
    return status


def _end_all(keep: set[int]) -> None:
    """Ends and reaps the processes below this one that are not below a supervisor of ``keep``: a dead one's."""
    give_up = time.monotonic() + 10.0
    while (strays := _children(os.getpid()) - keep) and time.monotonic() < give_up:
        _kill([pid for stray in strays for pid in (stray, *_below(stray))])
        for stray in strays:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray, os.WNOHANG)
        time.sleep(0.0005)


def _kill(victims: Collection[int]) -> None:
    for victim in victims:  # stop first: a killed parent's place is taken faster than it is found
        _signal(victim, signal.SIGSTOP)
    for victim in victims:
        _signal(victim, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
