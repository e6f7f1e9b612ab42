"""Runs a program that may be hostile: its own directory, a cleared environment, limits, and an end for its whole tree.

What else holds it is made by :mod:`.barriers`; :func:`containment` says how much of that this machine can
do.  Used for candidates (:func:`python_child`) and for the assembler and disassembler, which read bytes that a
candidate made.

A run costs about five milliseconds beside the program's own time.  Safe to call from several threads at once.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from knowledge_base.errors import EnvironmentLacks, cannot_start

from . import scratch
from .barriers import OURS, ROOT, Containment, attempts, what_namespaces_need

MIB = 2**20
STDERR_TAIL_BYTES = 16 * 1024
START_S = 10.0  # in which the warden starts a supervisor; it takes a millisecond
WARM_S = 60.0  # and its first, where it imports a module before, for which it takes a fifth of a second
LATE, LAST_WORDS_S = 1.1, 1.0  # when a supervisor is late: at this many times the time allowed, and so much more


@dataclass(frozen=True)
class Limits:
    """What a run may use; ``memory_bytes`` (address space), ``cpu_s`` and ``file_bytes`` hold for each process of it.

    ``output_bytes`` bounds standard output and, apart from it, standard error.  ``processes`` counts the whole tree,
    threads included: a watcher that looks every 20 ms ends the run; where it is 1 the kernel refuses a user the second.
    It also ends one that leaves too many files or bytes in its directory (:func:`.scratch.crowded`).
    """

    wall_s: float = 60.0
    cpu_s: int = 60
    memory_bytes: int = 2048 * MIB
    file_bytes: int = 64 * MIB
    processes: int = 16
    output_bytes: int = 64 * MIB


@dataclass(frozen=True)
class Finished:
    """How a run ended.

    breach: "" when the program ended by itself with whatever ``returncode``; otherwise the limit that ended it: "time",
    "output", "processes", "file", "memory", or "signal" (it died of one, ``returncode`` is its negative number).
    files: the collected ones that exist, by name.
    """

    returncode: int
    stdout: bytes
    stderr_tail: bytes
    breach: str
    seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict)


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    limits: Limits | None = None,
    files: Mapping[str, bytes] | None = None,
    collect: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    held: Containment | None = None,
    _warden: _Warden | None = None,
) -> Finished:
    """Runs ``argv`` (``argv[0]`` an absolute path) in a fresh directory that holds ``files`` and is removed afterwards.

    ``collect`` names files of that directory to read at the end.  ``env`` adds to a minimal environment.  ``held`` is
    what holds it, by default all that this machine can do.  A program that misbehaves is a value (``breach``), never an
    exception.  Raises EnvironmentLacks where this machine starts no process, or has no room for the directory.
    """
    limits, held, warden = limits or Limits(), held or containment(), _warden or _PLAIN
    warden.start()  # before there is a directory: should we be killed, its supervisor removes that
    folder = _directory({**(files or {}), ".stdin": stdin})
    leash: socket.socket | None = None
    try:
        with open(os.path.join(folder, ".stdin"), "rb") as source:
            os.unlink(source.name)
            job = {
                "argv": list(argv),
                "cwd": folder,
                "env": {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", **(env or {})},
                "module": warden.module,
                "wall_s": limits.wall_s,
                "processes": limits.processes,
                "filter": base64.b64encode(held.program).decode(),
                "namespaces": held.namespaces,
                "rlimits": {
                    "RLIMIT_CPU": limits.cpu_s,
                    "RLIMIT_AS": limits.memory_bytes,
                    "RLIMIT_FSIZE": limits.file_bytes,
                    "RLIMIT_CORE": 0,
                    # How many more this user may start; it does not bind root.
                    **({"RLIMIT_NPROC": 0} if limits.processes == 1 else {}),
                },
            }
            with held.ruleset(folder, argv[0], packages()) as ruleset:
                outcome, leash = _supervised(warden, job, source, limits, ruleset)
        breach = outcome.breach
        if breach in ("", "signal") and outcome.returncode:
            if _starved(outcome.stderr):
                breach = "memory"
            elif scratch.filled(folder, limits.file_bytes):
                breach = "file"
        found = {name: data for name in collect if (data := scratch.read(folder, name, limits.file_bytes)) is not None}
        tail = outcome.stderr[-STDERR_TAIL_BYTES:]
        return Finished(outcome.returncode, outcome.stdout, tail, breach, outcome.seconds, found)
    finally:
        scratch.remove(folder)
        if leash is not None:  # last: should we be killed before, the supervisor sees it close, and removes
            leash.close()


def _directory(files: Mapping[str, bytes]) -> str:
    """A fresh directory that holds ``files``."""
    folder = ""
    try:
        folder = tempfile.mkdtemp(prefix="tilewright-")
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
    except OSError as error:
        if folder:
            scratch.remove(folder)
        raise EnvironmentLacks(
            f"no room for a temporary directory: {error.strerror}", "Free some space there, or set TMPDIR."
        ) from None
    return folder


def python_child(
    module: str, stdin: bytes, limits: Limits, *, bare: Sequence[str] = (), other: bool = False
) -> Finished:
    """Runs ``main()`` of one of our own modules in a Python of its own: -I, -S, but with site-packages in reach.

    The process is a fork of one that has the module imported, and called its ``warm()``, which takes longer than most
    runs; that one never sees what a run is given.  ``bare`` names packages whose ``__init__`` it must not run (their
    modules are found all the same): that keeps its imports to what it needs.  Top-level packages of ours must be among
    them: the child may not list the folder that holds them.  ``other``: a fork of another such process, in which
    strings have other hashes and objects other addresses.
    """
    prepare(tuple(bare))
    warden = _warm(module, tuple(bare), other)
    return run([sys.executable], stdin=stdin, limits=limits, env=CHILD_ENVIRONMENT, _warden=warden)


@functools.cache
def _warm(module: str, bare: tuple[str, ...], other: bool) -> _Warden:
    return _Warden(module, bare)


CHILD_ENVIRONMENT = {"CUDA_TILE_CACHE_DIR": "off"}


@functools.cache
def containment() -> Containment:
    """The most that this machine can do to hold a program, looked at once: the first attempt that keeps its promise.

    Tried on a program that reads what the tracer's child reads, writes in its own directory, and tries to look around.
    """
    folders = [*packages(), *(str(ROOT / name) for name in OURS), os.path.dirname(os.__file__)]
    why, mend = "", ""
    for held in attempts():
        promised = str(int(held.namespaces)) + str(int(held.landlock))
        command = [sys.executable, "-I", "-S", "-c", _PROBE, promised, *folders]
        done = run(command, limits=Limits(wall_s=20.0), held=held)
        if done.returncode == 0:
            break
        if not why:
            said = done.stderr_tail.decode(errors="replace").strip().splitlines()
            last = said[-1].removeprefix(f"confine: {sys.executable}: ") if said else done.breach
            what = "namespaces" if held.namespaces else "Landlock" if held.landlock else "a child of ours"
            why = f"{what} did not work: {last}"
            mend = what_namespaces_need() if held.namespaces else ""
    return replace(held, why=held.why or why, mend=held.mend or mend)


_PROBE = """
import ctypes, os, sys
alone, kept = map(int, sys.argv[1])
for folder in sys.argv[2:]:
    os.listdir(folder)
with open("own", "w") as file:
    file.write("own")
if alone and os.getpid() != 1:
    sys.exit("other processes are seen")
try:
    os.listdir("/")
except PermissionError:
    pass
else:
    if kept:
        sys.exit("files are not refused")
"""


def _python(module: str, packages: Sequence[str], bare: Sequence[str], *arguments: str) -> list[str]:
    """The command for ``main()`` of one of our own modules; ``packages`` are folders to import from, beside ours."""
    paths = json.dumps([str(ROOT), *packages])
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, module, paths, json.dumps(list(bare)), *arguments]


def packages() -> list[str]:
    """The folders that a child may import from, beside ours."""
    return [p for p in sys.path if _holds_packages(Path(p))]


def _holds_packages(folder: Path) -> bool:
    """Whether a child may import from ``folder``: an installation's folder, or one on PYTHONPATH that has cuTile."""
    return folder.name in ("site-packages", "dist-packages") or (folder / "cuda" / "tile").is_dir()


@functools.cache
def prepare(bare: tuple[str, ...]) -> None:
    """Writes the bytecode of the packages' modules where it is missing: a child may not, and compiles each time."""
    import compileall

    for name in bare:
        compileall.compile_dir(ROOT / name.replace(".", "/"), maxlevels=0, quiet=2)
    for folder in packages():  # some installers leave that to whoever imports it
        compileall.compile_dir(Path(folder, "cuda", "tile"), quiet=2)


_BOOTSTRAP = """
import sys, json
module, paths, bare = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
del sys.argv[1:4]
sys.path[:] = [p for p in sys.path if p] + paths
from types import ModuleType
for name in bare:
    package = sys.modules[name] = ModuleType(name)
    package.__path__ = [paths[0] + "/" + name.replace(".", "/")]
from importlib import import_module
import_module(module).main()
"""


def _starved(stderr: bytes) -> bool:
    """Whether a failed program's last words are of memory: an allocation that its limit refused."""
    tail = stderr[-2000:].lower()
    return any(w in tail for w in (b"memoryerror", b"bad_alloc", b"out of memory", b"cannot allocate memory"))


# ---------------------------------------------------------------------------------------------------- the warden's side


class _Warden:
    """The process that starts runs; made on first use, anew if it was killed.

    A fork of ours uses the same one: a message is one run, whoever sends it, and the answer has a way of its own.
    ``module``: what it imports first, so that runs of that need not; ``bare`` as for :func:`python_child`.
    """

    def __init__(self, module: str = "", bare: tuple[str, ...] = ()) -> None:
        self.module, self._bare = module, bare
        self.start_s = START_S  # in which it starts a run
        os.register_at_fork(after_in_child=self._forked)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process where there is none."""
        with self._lock:
            if self._socket is None:
                self._start()

    def send(self, message: bytes, descriptors: list[int]) -> None:
        with self._lock:
            for last in (False, True):
                if self._socket is None:
                    self._start()
                assert self._socket is not None
                try:
                    socket.send_fds(self._socket, [message], descriptors)
                    return
                except OSError as error:
                    self._socket.close()
                    self._socket = None
                    if last:
                        raise cannot_start(error) from None

    def replace(self) -> None:
        """Ends the process, for one that does not answer; the next run starts another."""
        with self._lock:
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)  # not by its object, which a fork does not own
                self._process.wait()
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                bare = dict.fromkeys(("evaluator", __package__, *self._bare))
                at_hand = packages() if self.module else ()
                self._process = subprocess.Popen(
                    _python(f"{__package__}.warden", at_hand, [*bare], str(theirs.fileno()), self.module),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={"LANG": "C.UTF-8", **CHILD_ENVIRONMENT} if self.module else {},
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise cannot_start(error) from None
        self._socket = ours
        self.start_s = WARM_S if self.module else START_S

    def _forked(self) -> None:
        """In a fork, in which no other thread goes on: whoever held the lock."""
        self._lock = threading.Lock()


_PLAIN = _Warden()


@dataclass(frozen=True)
class _Outcome:
    """What the supervisor says, and what came out of the program."""

    returncode: int
    breach: str
    seconds: float
    stdout: bytes
    stderr: bytes


def _supervised(
    warden: _Warden, job: Mapping[str, object], stdin: IO[bytes], limits: Limits, ruleset: int | None
) -> tuple[_Outcome, socket.socket]:
    """What came of the job, and the leash: its supervisor waits for it to close."""
    for _ in range(2):  # a program that may signal others can have stopped the warden
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        leash, theirs = socket.socketpair()
        outcome: _Outcome | None = None
        try:
            try:
                given = [stdin.fileno(), out_w, err_w, theirs.fileno()]
                warden.send(json.dumps(job).encode(), given if ruleset is None else [*given, ruleset])
            finally:
                os.close(out_w)
                os.close(err_w)
                theirs.close()
            outcome = _gather(out_r, err_r, leash, limits, warden.start_s)
        finally:
            os.close(out_r)
            os.close(err_r)
            if outcome is None:
                leash.close()
        if outcome is not None:
            warden.start_s = START_S
            return outcome, leash
        warden.replace()
    raise cannot_start(OSError(errno.EAGAIN, f"none in {2 * warden.start_s:.0f} s"))


def _gather(out: int, err: int, leash: socket.socket, limits: Limits, start_s: float) -> _Outcome | None:
    """Reads both streams within their bounds until the supervisor has ended the tree and both are at their end.

    The supervisor keeps the time; should it be killed or stopped itself, it is ended here.  None: there was none.
    """
    chunks: dict[int, list[bytes]] = {out: [], err: []}
    sizes = {out: 0, err: 0}
    said = b""  # on the leash: the supervisor's number, then how the program ended, a line each
    flooded = late = False
    start = time.monotonic()
    give_up = start + start_s
    with selectors.DefaultSelector() as selector:
        for source in (out, err, leash):
            selector.register(source, selectors.EVENT_READ)
        while selector.get_map():
            left = give_up - time.monotonic()
            if left <= 0:
                if not said:
                    return None
                if late:
                    break  # whoever holds a stream open still is not waited for
                late = True
                give_up += LAST_WORDS_S
                if leash.fileno() in selector.get_map():  # it is alive
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(said.split()[0]), signal.SIGKILL)
                continue
            for key, _ in selector.select(left):
                if key.fileobj is leash:
                    data = leash.recv(4096)
                    if data and not said:
                        give_up = start + LATE * limits.wall_s + LAST_WORDS_S
                    said += data
                else:
                    data = os.read(key.fd, 1 << 16)
                    sizes[key.fd] += len(data)
                    if sizes[key.fd] <= limits.output_bytes:
                        chunks[key.fd].append(data)
                    elif not flooded:
                        flooded = True
                        with contextlib.suppress(OSError):
                            leash.shutdown(socket.SHUT_WR)
                if not data or (said.count(b"\n") == 2 and key.fileobj is leash):  # it stays until we let go
                    selector.unregister(key.fileobj)
    number, _, answer = said.partition(b"\n")
    if not number:
        return None
    gone = {"returncode": -signal.SIGKILL, "breach": "time" if late else "signal", "seconds": time.monotonic() - start}
    told: dict[str, Any] = json.loads(answer) if answer else gone
    breach = "output" if flooded else told["breach"]
    return _Outcome(told["returncode"], breach, told["seconds"], b"".join(chunks[out]), b"".join(chunks[err]))
