"""The warden: a small process that starts confined programs and ends their whole process trees.

Started by :mod:`evaluator.confine`, one per process that confines anything, and never imported by it.  A child
subreaper adopts every orphan below it, so a program that detaches (``setsid``, double fork) is still found and killed;
doing that in the caller would adopt orphans of its other children, and forking the caller (threads, gigabytes) would
cost tens of milliseconds.  This process has one thread and a few megabytes: a fork of it takes under a millisecond.

Protocol: the caller sends one message per run over a Unix socket (JSON with the descriptors of stdin, stdout, stderr
and a leash).  A fork of the warden, the supervisor, starts the program, watches it, ends the tree and writes one JSON
line to the leash.  The leash closing means that the caller gave up or died: the tree is ended.  Standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from evaluator.lockdown import adopt_orphans, drop_capabilities, no_new_privileges, refuse

MAX_MESSAGE = 1 << 16
WATCH_S = 0.02  # how often the number of processes is looked at


def main() -> None:
    """Serves runs until the caller's end of the socket, whose descriptor is the first argument, closes."""
    control = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle; it closes the leashes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors leave no zombies
    gc.disable()
    gc.freeze()  # what a fork does not write to, it need not copy
    sock = socket.socket(fileno=control)
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(sock, MAX_MESSAGE, 4)
        if not message:
            return
        if os.fork() == 0:
            try:
                sock.close()
                _supervise(json.loads(message), *descriptors)
            finally:
                os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _supervise(job: dict[str, Any], stdin: int, stdout: int, stderr: int, leash: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    adopt_orphans()
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _become(job, stdin, stdout, stderr)
    for descriptor in (stdin, stdout, stderr):
        os.close(descriptor)
    breach = _watch(pid, leash, start + job["wall_s"], job["processes"])
    status = _end(pid, breach != "")
    seconds = time.monotonic() - start
    if status is not None and os.WIFSIGNALED(status) and not breach:
        breach = {signal.SIGXCPU: "time", signal.SIGXFSZ: "file"}.get(os.WTERMSIG(status), "signal")  # type: ignore[call-overload]
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    answer = {"returncode": code, "breach": breach, "seconds": seconds}
    os.write(leash, json.dumps(answer).encode() + b"\n")


def _become(job: dict[str, Any], stdin: int, stdout: int, stderr: int) -> None:
    """In the new process: limits, descriptors, then the program.  Never returns."""
    try:
        os.setsid()
        os.chdir(job["cwd"])
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.closerange(3, 1024)
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for name, value in job["rlimits"].items():
            _limit(getattr(resource, name), value)
        _isolate(base64.b64decode(job["filter"]))
        os.execve(job["argv"][0], job["argv"], job["env"])
    except BaseException as error:
        os.write(2, f"confine: {job['argv'][0]}: {error}\n".encode(errors="replace"))
    os._exit(127)


def _limit(which: int, value: int) -> None:
    """Soft and hard limit, never above what we have.  Processor time gets a second more: at the hard limit the kernel
    kills without saying why."""
    hard = value + 1 if which == resource.RLIMIT_CPU else value
    given = resource.getrlimit(which)[1]
    hard = hard if given == resource.RLIM_INFINITY else min(hard, given)
    resource.setrlimit(which, (min(value, hard), hard))


def _isolate(program: bytes) -> None:
    """What the kernel refuses to every confined program: see :mod:`evaluator.containment`, which makes ``program``."""
    no_new_privileges()
    drop_capabilities()
    if program:
        refuse(program)


def _watch(pid: int, leash: int, deadline: float, processes: int) -> str:
    """Waits for the program to end by itself ("") or to break a limit (its name)."""
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
        if sum(_below(os.getpid()).values()) > processes:
            return "processes"


def _below(root: int) -> dict[int, int]:
    """Every living descendant of ``root``, with its number of threads: to the kernel each of them is a process."""
    children = _listed if os.path.exists(f"/proc/{root}/task/{root}/children") else _walked()
    found: dict[int, int] = {}
    todo = children(root)
    while todo:
        pid = todo.pop()
        todo += children(pid)
        stat = _stat(pid)
        if stat is not None and stat[0] != b"Z":
            found[pid] = int(stat[17])
    return found


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


def _end(pid: int, killed: bool) -> int | None:
    """Ends and reaps every process below this one; returns the program's wait status."""
    status: int | None = None
    if not killed:
        status = os.waitpid(pid, 0)[1]
    give_up = time.monotonic() + 10.0
    while time.monotonic() < give_up:
        try:
            while True:
                done, code = os.waitpid(-1, os.WNOHANG)
                if done == 0:
                    break
                status = code if done == pid and status is None else status
        except ChildProcessError:
            return status  # nobody is left, orphans included: they would be ours
        victims = _below(os.getpid())
        for victim in victims:  # stop first: a killed parent's place is taken faster than it is found
            _signal(victim, signal.SIGSTOP)
        for victim in victims:
            _signal(victim, signal.SIGKILL)
        time.sleep(0.0005)
    return status


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
