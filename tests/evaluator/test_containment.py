"""What the kernel refuses to confined programs and to candidates, and what is said where it can refuse nothing.

Every attack here is bounded by itself: with no guard at all it takes at most 64 processes or threads, and hurts nobody.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.confinement import barriers as module
from evaluator.confinement import confine, warden
from evaluator.confinement.barriers import CLONE_NEW, Containment
from evaluator.confinement.confine import Limits, containment, run
from evaluator.trace import Request, trace
from knowledge_base.chips import chip
from knowledge_base.records import Level, Verdict
from knowledge_base.snf.everyday import everyday

HOSTILE = Path(__file__).parent.parent / "candidates" / "hostile"
TASK = everyday("gelu", M=100, N=192)
refuses = pytest.mark.skipif(not containment().program, reason=f"no calls are refused here: {containment().why}")
files = pytest.mark.skipif(not containment().landlock, reason=f"no files are refused here: {containment().why}")
apart = pytest.mark.skipif(not containment().namespaces, reason=f"no namespaces here: {containment().why}")

# Calls by number (x86-64), with arguments that do nothing even where they are allowed: descriptors that do not exist,
# addresses that nobody has, signals and process numbers out of range.  fork and vfork have no such arguments.
BAD = 2**31 - 2
CALLS = {
    "kill": (62, BAD, 0), "tkill": (200, BAD, 0), "tgkill": (234, BAD, BAD, 0), "rt_sigqueueinfo": (129, BAD, 0, 0),
    "pidfd_open": (434, BAD, 0), "pidfd_getfd": (438, -1, 0, 0), "pidfd_send_signal": (424, -1, 0, 0, 0),
    "ptrace": (101, 999, BAD, 0, 0), "process_vm_readv": (310, BAD, 0, 0, 0, 0, 0),
    "process_vm_writev": (311, BAD, 0, 0, 0, 0, 0), "setpriority": (141, 99, 0, 0), "socket": (41, 999, 1, 0),
    "socketpair": (53, 999, 1, 0, 0), "shmget": (29, 1, 0, 0), "mq_open": (240, 0, 0, 0, 0),
    "memfd_create": (319, 0, 0), "add_key": (248, 0, 0, 0, 0, 0),
    "keyctl": (250, 999, 0, 0, 0, 0), "unshare": (272, 1), "setns": (308, -1, 0),
    "mount": (165, 0, 0, 0, 0, 0), "umount2": (166, 0, 0), "pivot_root": (155, 0, 0), "chroot": (161, 0),
    "fsopen": (430, 0, 0), "open_tree": (428, -1, 0, 0), "mknod": (133, 0, 0, 0), "mknodat": (259, -1, 0, 0, 0),
    "open_by_handle_at": (304, -1, 0, 0), "init_module": (175, 0, 0, 0), "finit_module": (313, -1, 0, 0),
    "kexec_load": (246, 0, 0, 0, 0), "reboot": (169, 0, 0, 0, 0), "sethostname": (170, 0, -1), "bpf": (321, 999, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, -1), "io_uring_setup": (425, 0, 0),
    "personality": (135, 0xFFFFFFFF), "setrlimit": (160, 999, 0), "prlimit64 of another": (302, BAD, 0, 0, 0),
    "prlimit64": (302, 0, 999, 1, 0), "fcntl F_SETOWN": (72, -1, 8, 1),
    "fcntl F_SETOWN, high bits": (72, -1, 8 + 2**40, 1),
    "ioctl TIOCSTI": (16, -1, 0x5412, 0), "sched_setaffinity of another": (203, BAD, 0, 0),
}  # fmt: skip
STARTS = {"execve": (59, 0, 0, 0), "execveat": (322, -1, 0, 0, 0, 0), "clone": (56, 0x100, 0, 0, 0, 0)}

ASK = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
errors = {}
for name, (number, *arguments) in json.load(sys.stdin).items():
    ctypes.set_errno(0)
    done = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments))
    errors[name] = ctypes.get_errno() if done == -1 else 0
print(json.dumps(errors))
"""


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose kernel refuses nothing."""
    monkeypatch.setattr(confine, "attempts", lambda: [Containment(why="nothing is refused here")])
    containment.cache_clear()
    yield
    containment.cache_clear()


def refused(calls: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """The error number of each call in a confined program; 0 where it succeeded."""
    done = run([sys.executable, "-I", "-S", "-c", ASK], stdin=json.dumps(calls).encode())
    assert done.returncode == 0, done.stderr_tail
    return json.loads(done.stdout)


def python(code: str) -> bytes:
    done = run([sys.executable, "-I", "-S", "-c", code])
    assert done.returncode == 0, done.stderr_tail
    return done.stdout


def traced(source: str) -> Verdict:
    (answer,) = trace(source, TASK, [Request(TASK.sizes)], chip("rtx5070"))
    assert isinstance(answer, Verdict)
    return answer


@refuses
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the calls are those of x86-64")
def test_a_confined_program_reaches_no_other_process_no_network_and_no_setting_of_the_machine() -> None:
    assert refused(CALLS) == dict.fromkeys(CALLS, errno.EPERM)
    namespaces = {hex(flag): (56, flag | 0x100, 0, 0, 0, 0) for flag in CLONE_NEW}  # CLONE_VM too: else it would fork
    assert refused(namespaces) == dict.fromkeys(namespaces, errno.EPERM)
    assert refused({"clone3": (435, 0, 0)}) == {"clone3": errno.ENOSYS}


@refuses
def test_every_call_of_the_list_is_refused() -> None:
    from pyseccomp import resolve_syscall, system_arch

    names = set(module.REFUSED)
    names -= {"vhangup", "msgget"}  # the only ones that would do something when asked with nonsense
    numbers = {name: resolve_syscall(system_arch(), name) for name in names}
    nonsense = {name: (number, *6 * (-1,)) for name, number in numbers.items() if number >= 0}  # < 0: not on this chip
    assert len(nonsense) > 60
    assert refused(nonsense) == dict.fromkeys(nonsense, errno.EPERM)


@refuses
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the calls are those of x86-64")
def test_a_candidate_starts_nothing_however_it_asks_the_kernel() -> None:
    asks = f"import typing\n\ndef launch(stream, x, y):\n    calls = {STARTS | CALLS}\n"
    asks += """
    ctypes = typing.sys.modules["ctypes"]
    libc = ctypes.CDLL(None, use_errno=True)
    passed = []
    for name, (number, *arguments) in calls.items():
        ctypes.set_errno(0)
        done = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments))
        if done != -1 or ctypes.get_errno() != 1:
            passed.append((name, done, ctypes.get_errno()))
    for name in ("fork", "vfork"):
        if libc.syscall(ctypes.c_long({"fork": 57, "vfork": 58}[name])) != -1:
            typing.sys.modules["os"]._exit(0)
    raise AssertionError(f"passed {passed}")
"""
    assert traced(asks).message == "AssertionError: passed []"


def test_root_keeps_no_capability_but_reading() -> None:
    code = "import ctypes; header, sets = (2 * ctypes.c_uint32)(0x20080522, 0), (6 * ctypes.c_uint32)()\n"
    code += "assert ctypes.CDLL(None).capget(header, sets) == 0; print(*sets)"
    effective, permitted, inheritable, *high = map(int, python(code).split())
    assert [effective & ~0b100, permitted & ~0b100, inheritable & ~0b100, *high] == 6 * [0]
    ambient = "import ctypes; print(*(ctypes.CDLL(None).prctl(47, 1, which, 0, 0) for which in range(41)))"
    assert set(python(ambient).split()) == {b"0"}


def test_tracing_starts_no_process_and_no_thread_of_its_own() -> None:
    # cuTile asks the installed assembler for its bytecode version unless it is told; the kernel would refuse that.
    source = """
import cuda.tile as ct
import typing

@ct.kernel
def copy(x, y):
    ct.store(y, index=(ct.bid(0), 0), tile=ct.load(x, index=(ct.bid(0), 0), shape=(1, 256)))

def launch(stream, x, y):
    ct.launch(stream, (x.shape[0],), copy, (x, y))
    times = typing.sys.modules["os"].times()
    raise AssertionError(f"{times.children_user + times.children_system} s of children")
"""
    # A thread would be one process too many for the watcher.
    assert traced(source).message == "AssertionError: 0.0 s of children"


LOOKS = """
import json, os, sys
told = {}
for what, path in json.load(sys.stdin):
    try:
        if what == "list":
            os.listdir(path)
        elif what == "read":
            open(path, "rb").read(1)
        elif what == "write":
            open(path, "ab").close()
        elif what == "make":
            os.mkdir(path)
        elif what == "remove":
            os.unlink(path)
        elif what == "link":
            os.link(path, "here")
        elif what == "move":
            os.rename(path, "here")
        elif what == "truncate":
            os.truncate(path, 10**6)
        elif what == "closed":
            os.chmod(path, 0)
        elif what == "dated":
            os.utime(path)
        told[f"{what} {path}"] = 0
    except OSError as error:
        told[f"{what} {path}"] = error.errno
print(json.dumps(told))
"""


def looked(*asked: tuple[str, str | Path]) -> set[int]:
    """The error numbers that a confined program gets when it does what is asked; 0: it did."""
    done = run([sys.executable, "-I", "-S", "-c", LOOKS], stdin=json.dumps([(w, str(p)) for w, p in asked]).encode())
    assert done.returncode == 0, done.stderr_tail
    told = json.loads(done.stdout)
    assert len(told) == len(asked)
    return set(told.values())


@files
def test_a_program_reads_python_and_the_systems_libraries_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    inside = ("list", Path(os.__file__).parent), ("read", module.__file__), ("read", pytest.__file__), ("list", "/usr")
    assert looked(*inside, ("read", "/dev/zero"), ("read", "/dev/urandom"), ("list", ".")) == {0}
    outside = [
        ("list", "/"),
        ("list", Path.home()),
        ("list", "/tmp"),
        ("list", tmp_path),
        ("read", tmp_path / "secret"),
    ]
    outside += [("list", module.ROOT / name) for name in ("", "tests", "runs", "knowledge_base", "agent", "prompts")]
    outside += [("read", module.ROOT / "pyproject.toml"), ("read", "/etc/passwd"), ("read", "/proc/self/status")]
    assert looked(*((what, path) for what, path in outside if os.path.exists(path))) == {errno.EACCES}


@files
@refuses
def test_a_program_writes_in_its_own_directory_and_nowhere_else(tmp_path: Path) -> None:
    target, ours = tmp_path / "kept", Path(module.__file__)
    target.write_text("kept")
    before = target.stat(), ours.stat()
    assert looked(("make", "own"), ("write", "own/file"), ("truncate", "own/file"), ("remove", "own/file")) == {0}
    asked = [(what, path) for what in ("write", "truncate", "remove", "move") for path in (target, ours)]
    asked += [("write", tmp_path / "new"), ("make", tmp_path / "new"), ("write", "/dev/shm/new"), ("write", "/tmp/new")]
    assert looked(*asked) <= {errno.EACCES, errno.EXDEV, errno.EROFS}
    assert looked(("link", target), ("link", ours)) <= {errno.EACCES, errno.EXDEV, errno.EPERM}
    assert looked(*((what, path) for what in ("closed", "dated") for path in (target, ours))) == {errno.EPERM}
    assert (target.stat(), ours.stat()) == before
    assert os.listdir(tmp_path) == ["kept"]


def test_of_a_prefix_that_holds_the_home_only_the_installations_parts_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    parts = ["bin", "lib", "lib64", "pyvenv.cfg"]
    for prefix in (tmp_path / "home" / "me", tmp_path / "home", tmp_path, module.ROOT, Path("/")):
        assert module._parts(prefix) == [str(prefix / part) for part in parts]
    inside = tmp_path / "home" / "me" / "venv"
    assert module._parts(inside) == [str(inside)]
    assert module._tree(tmp_path / "home" / "me" / "bin" / "tileiras")[:2] == [
        str(tmp_path / "home" / "me" / "bin" / "tileiras"),
        str(tmp_path / "home" / "me" / "bin"),
    ]


@apart
def test_a_program_is_process_1_of_a_world_of_its_own_and_the_user_it_was() -> None:
    said = python("import os; print(os.getpid(), os.getppid(), os.getuid(), os.getgid())").split()
    assert said == [b"1", b"0", str(os.getuid()).encode(), str(os.getgid()).encode()]
    links = "user", "pid", "net", "ipc", "mnt"
    theirs = python(f"import os; print(*(os.readlink('/proc/self/ns/' + name) for name in {links}))").decode().split()
    ours = [os.readlink(f"/proc/self/ns/{name}") for name in links]
    assert len(theirs) == len(ours)
    assert not set(theirs) & set(ours)


COUNTED = """
import sys
from pathlib import Path
from evaluator.trace import Request, TraceLimits, trace
from knowledge_base.chips import chip
from knowledge_base.snf.everyday import everyday
task = everyday("gelu", M=100, N=192)
for path in map(Path, sys.argv[1:]):
    trace(path.read_text(), task, [Request(task.sizes)], chip("rtx5070"), limits=TraceLimits(1, 1))
"""


def test_a_whole_hostile_run_takes_few_processes_and_threads() -> None:
    slow = ("loops_", "compiles_")  # they start nothing, and take seconds
    files = [str(path) for path in sorted(HOSTILE.glob("*.py")) if not path.name.startswith(slow)]
    assert {"starts_processes.py", "starts_threads.py", "forks_in_c.py"} <= {Path(file).name for file in files}
    process = subprocess.Popen([sys.executable, "-c", COUNTED, *files])
    most = 0
    while process.poll() is None:
        most = max(most, sum(warden._below(process.pid).values()))
        time.sleep(0.02)
    assert process.returncode == 0
    assert 3 <= most <= 39  # the warden, a supervisor and the candidate's process; the caller makes one more


def test_a_kernel_that_lists_no_children_is_asked_for_the_parents_of_all_processes() -> None:
    process = subprocess.Popen(["/bin/sh", "-c", "sleep 5 & sleep 5 & echo; wait"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    sleepers = warden._walked()(process.pid)
    assert len(sleepers) == 2
    assert sorted(sleepers) == sorted(warden._listed(process.pid)) == sorted(warden._below(process.pid))
    for pid in (*sleepers, process.pid):
        os.kill(pid, 9)
    process.communicate()


def test_a_user_is_refused_a_second_process_where_one_is_the_limit() -> None:
    asks = [sys.executable, "-I", "-S", "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[1])"]
    assert run(asks, limits=Limits(processes=1)).stdout == b"0\n"
    assert run(asks).stdout != b"0\n"


@pytest.mark.parametrize("name", ["starts_processes.py", "starts_threads.py"])
def test_where_the_kernel_refuses_nothing_the_watcher_ends_it_and_the_verdict_says_what_held(
    name: str, unguarded: None
) -> None:
    got = traced((HOSTILE / name).read_text())
    assert got.contained is Level.LIMITED
    if os.geteuid() != 0:  # a user has a limit of processes: the kernel refuses one more
        assert got.error_class == "not-permitted"
    elif name == "starts_processes.py":
        assert got.error_class == "too-many-processes"
    else:  # the stacks of threads fill the address space: whichever comes first
        assert got.error_class in ("too-many-processes", "not-permitted")


def told(call: str) -> Containment:
    """What a process says of its machine in which ``call`` is refused, as a container or a kernel without it would."""
    code = f"""
from pyseccomp import ALLOW, ERRNO, MASKED_EQ, Arg, SyscallFilter
from evaluator.confinement import barriers, lockdown
filter_ = SyscallFilter(ALLOW)
{call}
lockdown.no_new_privileges()
lockdown.refuse(barriers._instructions(filter_))
from evaluator.confinement.confine import containment
held = containment()
print(repr((held.program != b"", held.landlock, held.namespaces, held.why, held.mend)))
"""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 10, "to find out takes a moment, not the time that a program may take"
    program, *more = ast.literal_eval(done.stdout)
    return Containment(b"program" if program else b"", b"", *more)


@refuses
@apart
def test_where_namespaces_are_refused_the_level_is_filtered_and_says_why() -> None:
    held = told('filter_.add_rule(ERRNO(1), "clone", Arg(0, MASKED_EQ, 0x10000000, 0x10000000))')
    assert held.level is Level.FILTERED
    assert held.why == "namespaces did not work: clone: Operation not permitted"
    mounts = told('filter_.add_rule(ERRNO(1), "mount")')  # a container's /proc with masked files
    assert (mounts.level, "private mounts" in mounts.why) == (Level.FILTERED, True)


@refuses
@files
def test_where_landlock_is_missing_the_level_is_limited_and_calls_are_refused_all_the_same() -> None:
    held = told('filter_.add_rule(ERRNO(38), "landlock_create_ruleset")')
    assert (held.level, held.landlock, held.program) == (Level.LIMITED, False, b"program")
    assert held.why == "this kernel has no Landlock"
    assert held.says.endswith("(this kernel has no Landlock): it can read and write your files.")


def test_what_allows_namespaces_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = tmp_path / "proc/sys/kernel/apparmor_restrict_unprivileged_userns"
    setting.parent.mkdir(parents=True)
    setting.write_text("1\n")
    monkeypatch.setattr(module, "Path", lambda *parts: Path(str(tmp_path) + parts[0], *parts[1:]))
    assert module.what_namespaces_need() == "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, as root"


def test_a_machine_that_cannot_refuse_says_why_and_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "filters_are_possible", lambda: False)
    first = next(module.attempts())
    assert (first.level, first.program, first.candidate) == (Level.LIMITED, b"", b"")
    assert "seccomp" in first.why
    assert "limited, not sandboxed" in first.says
    monkeypatch.setattr(module, "filters_are_possible", lambda: True)
    monkeypatch.setattr(module, "_program", lambda: (_ for _ in ()).throw(RuntimeError("Unable to find libseccomp")))
    first = next(module.attempts())
    assert (first.level, first.why, first.mend) == (Level.LIMITED, "libseccomp is missing", module.MEND)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    first = next(module.attempts())
    assert first.short_of == " (pyseccomp is not installed; python -m pip install pyseccomp)"
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "landlockpy", None)
    first = next(module.attempts())
    assert (first.level, first.landlock) == (Level.LIMITED, False)
    assert first.short_of == " (landlockpy is not installed; python -m pip install landlockpy)"
