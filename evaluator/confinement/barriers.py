"""What holds a candidate's process on this machine beside limits, and how much of it this machine can do.

Three things, each of which a machine may lack:

- Two seccomp filters, made once with libseccomp.  ``program``, for everything that :mod:`.confine` runs: it
  reaches no other process, no network, nothing that outlives it but files, and no setting of the machine.
  ``candidate``, added in the tracer's child before the candidate is loaded: it starts nothing, no program, no process,
  no thread.  A candidate's Python needs none of them.
- A Landlock ruleset: which files a program may read, and that it writes only in its own directory.
- Namespaces: the program is process 1 of a world of its own, and all that it started ends with it.

A refusal is an error number: Python raises PermissionError at the candidate's own line.  What is made here is installed
by :mod:`.warden` and :mod:`.lockdown`; :func:`.confine.containment` tries what works.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from knowledge_base.records import Level

from .lockdown import filters_are_possible, namespaces_are_known

if TYPE_CHECKING:
    from landlockpy import AccessFS

ROOT = Path(__file__).resolve().parents[2]

# Calls that no program needs which only computes, by what they would reach.
OTHER_PROCESSES = (
    "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_getfd", "pidfd_send_signal",
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "migrate_pages", "move_pages",
    "setpriority", "ioprio_set", "sched_setscheduler", "sched_setparam", "sched_setattr",
)  # fmt: skip
NETWORK = ("socket", "socketpair")
# System V and POSIX objects stay when their maker ends; memory files escape the limit on file sizes.
LEFT_BEHIND = (
    "shmget", "msgget", "semget", "mq_open", "memfd_create", "memfd_secret", "add_key", "request_key", "keyctl",
)  # fmt: skip
NAMESPACES_AND_MOUNTS = (
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "mknod", "mknodat", "name_to_handle_at", "open_by_handle_at", "quotactl",
    "quotactl_fd", "fanotify_init", "swapon", "swapoff",
)  # fmt: skip
MACHINE = (
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "acct", "syslog",
    "vhangup", "sethostname", "setdomainname", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "iopl",
    "ioperm",
)  # fmt: skip
# Interfaces with which programs have taken over kernels, and which get around filters.
KERNEL = (
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "personality",
    "modify_ldt", "uselib",
)  # fmt: skip
LIMITS = ("setrlimit",)  # root may raise a hard limit
# Landlock guards what is in a file; this is what is on it.  A program may close no file of its user to him.
ATTRIBUTES = (
    "chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "utimensat", "futimesat",
    "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr",
)  # fmt: skip

REFUSED = (
    *OTHER_PROCESSES, *NETWORK, *LEFT_BEHIND, *NAMESPACES_AND_MOUNTS, *MACHINE, *KERNEL, *LIMITS, *ATTRIBUTES,
)  # fmt: skip

# The new namespaces that clone makes (linux/sched.h): CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET.
CLONE_NEW = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
FCNTL_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: whom a signal about a descriptor goes to
IOCTL_TYPE = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: write what a terminal's user seems to type

# Every way to start something, for the candidate's own process.
STARTS = ("execve", "execveat", "fork", "vfork", "clone")

MEND = "apt-get install libseccomp2, or your system's package of libseccomp 2.5 or later"

# Landlock before its third version (Linux 6.2) lets a program empty every file that its user may write.
LANDLOCK = 3
OURS = ("evaluator", "kernels_generated")  # what a child of ours imports, in ROOT
# What keeps users from namespaces: a kernel's setting, the value that does, and the one that does not.  The first is
# Ubuntu's since 23.10, the second Debian's before 11; the third is every kernel's.
SETTINGS = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
)
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/dev/zero", "/dev/urandom")


@dataclass(frozen=True)
class Containment:
    """What holds a program here.  ``why`` says what keeps it below the highest level, ``mend`` what brings that."""

    program: bytes = b""
    candidate: bytes = b""
    landlock: bool = False
    namespaces: bool = False
    why: str = ""
    mend: str = ""

    @property
    def level(self) -> Level:
        """The names are promises (docs/judging.md): a part of one that is there all the same is used, not promised."""
        if not (self.program and self.landlock):
            return Level.LIMITED
        return Level.FULL if self.namespaces else Level.FILTERED

    @property
    def short_of(self) -> str:
        """Why it is not more, and what mends that; empty at the highest level."""
        said = "; ".join(part for part in (self.why, self.mend) if part)
        return f" ({said})" if said else ""

    @property
    def says(self) -> str:
        """A sentence or two for a person: what a candidate can and cannot do here."""
        starts = "starts no process and no thread, signals nobody and has no network"
        files = "It reads Python, its packages and the system's libraries, and writes its own directory, nothing else"
        if self.level is Level.FULL:
            return f"Candidate code runs in a world of its own: it {starts}. {files}."
        if self.level is Level.FILTERED:
            return f"Candidate code {starts}. {files}."
        can = [] if self.program else ["start processes", "use the network"]
        can += [] if self.landlock else ["read and write your files"]
        return f"Candidate code is limited, not sandboxed ({self.why}): it can {', '.join(can)}."

    @contextmanager
    def ruleset(self, folder: str, tool: str, packages: Iterable[str]) -> Iterator[int | None]:
        """The descriptor of a ruleset for one run: ``folder`` is its own, ``tool`` the program; None without Landlock.

        ``packages`` are folders that hold Python packages, read beside those of this Python.
        """
        if not self.landlock:
            yield None
            return
        from landlockpy import AccessFS, Ruleset, Scope

        with ExitStack() as stack:
            rules = stack.enter_context(Ruleset(scoped=Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET))
            rules.allow_path(folder, rules.handled_fs & ~(AccessFS.MAKE_CHAR | AccessFS.MAKE_BLOCK))
            rules.allow_path(os.devnull, AccessFS.READ_FILE | AccessFS.WRITE_FILE)
            for path, access in readable(tool, tuple(packages)):
                rules.allow_path(path, access)
            yield rules.fileno()


def attempts() -> Iterator[Containment]:
    """What this machine might do, the strongest first; only a run tells whether it does."""
    filters = _filters()
    lacks, mend = _landlock()
    held = replace(filters, landlock=not lacks, namespaces=namespaces_are_known())
    if lacks and not filters.why:
        held = replace(held, why=lacks, mend=mend)
    for landlock in {held.landlock: None, False: None}:
        for namespaces in {held.namespaces: None, False: None}:
            yield replace(held, landlock=landlock, namespaces=namespaces)


def what_namespaces_need() -> str:
    """The command that allows them, as far as this machine tells what forbids them."""
    for name, forbids, allows in SETTINGS:
        try:
            held = Path("/proc/sys", *name.split(".")).read_text().strip()
        except OSError:
            continue
        if held == forbids:
            return f"sysctl -w {name}={allows}, as root"
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        # Its filter refuses namespaces, and over a /proc with masked files the kernel mounts no other.
        return "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
    return ""


def _filters() -> Containment:
    """The filters, or why there are none."""
    if not filters_are_possible():
        return Containment(why="this kernel has no seccomp filters")
    try:
        return Containment(program=_program(), candidate=_candidate())
    except (ImportError, RuntimeError) as error:  # pyseccomp's word for a missing libseccomp
        why = "pyseccomp is not installed" if isinstance(error, ImportError) else "libseccomp is missing"
        mend = "python -m pip install pyseccomp" if isinstance(error, ImportError) else MEND
        return Containment(why=why, mend=mend)
    except (OSError, AttributeError) as error:  # an older one does not know a call, or is another library
        return Containment(why=f"libseccomp refuses the filter: {error}", mend=MEND)


def _landlock() -> tuple[str, str]:
    """Why there is no Landlock here, and what mends that; empty where there is."""
    try:
        from landlockpy import abi_version

        version = abi_version()
    except ImportError:
        return "landlockpy is not installed", "python -m pip install landlockpy"
    except OSError as error:
        return f"this kernel refuses Landlock: {error}", ""
    if version == 0:
        return "this kernel has no Landlock", "Linux 6.2 or later, started with landlock among its lsm="
    if version < LANDLOCK:
        return f"this kernel's Landlock (version {version}) lets a program empty files", "Linux 6.2 or later"
    return "", ""


@functools.lru_cache(maxsize=16)
def readable(tool: str, packages: tuple[str, ...]) -> tuple[tuple[str, AccessFS], ...]:
    """What a program may read and execute, with the right that a rule for it takes: libraries, Python, and its own.

    Nothing else of a home or of a checkout: either may hold the interpreter, and be held by its prefix.
    """
    from landlockpy import AccessFS

    file = AccessFS.READ_FILE | AccessFS.EXECUTE
    python = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    paths = [
        *SYSTEM,
        *(part for prefix in dict.fromkeys(python) for part in _parts(Path(prefix))),
        *(sysconfig.get_path(key) for key in ("stdlib", "platstdlib")),
        *packages,
        *(str(ROOT / name) for name in OURS),
        *_tree(Path(tool).resolve()),
    ]
    found = []
    for path in dict.fromkeys(paths):
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        found.append((path, file | AccessFS.READ_DIR if stat.S_ISDIR(mode) else file))
    return tuple(found)


def _tree(tool: Path) -> list[str]:
    """A program and what it was installed with: an assembler finds its parts beside its bin."""
    folder = tool.parent
    return [str(tool), *_parts(folder.parent if folder.name == "bin" else folder)]


def _parts(prefix: Path) -> list[str]:
    """An installation's folder; of one that holds the home or this code as well, what an installation puts there."""
    held = (Path(os.path.expanduser("~")), ROOT)
    if prefix not in {folder for place in held for folder in (place, *place.parents)}:
        return [str(prefix)]
    return [str(prefix / part) for part in ("bin", "lib", "lib64", "pyvenv.cfg")]


def _program() -> bytes:
    from pyseccomp import ALLOW, ERRNO, MASKED_EQ, NE, Arg, SyscallFilter

    filter_ = SyscallFilter(ALLOW)
    refuse = ERRNO(errno.EPERM)
    for call in REFUSED:
        filter_.add_rule(refuse, call)
    # glibc's way of reading a limit is to set none, of the caller (0).
    filter_.add_rule(refuse, "prlimit64", Arg(0, NE, 0))
    filter_.add_rule(refuse, "prlimit64", Arg(2, NE, 0))
    filter_.add_rule(refuse, "sched_setaffinity", Arg(0, NE, 0))
    for call, commands in (("fcntl", FCNTL_OWNER), ("ioctl", IOCTL_TYPE)):
        for command in commands:  # the kernel reads 32 bits of it
            filter_.add_rule(refuse, call, Arg(1, MASKED_EQ, 0xFFFFFFFF, command))
    for flag in CLONE_NEW:
        filter_.add_rule(refuse, "clone", Arg(0, MASKED_EQ, flag, flag))
    # Its flags lie in memory, where a filter cannot look; without it the C library uses clone.
    filter_.add_rule(ERRNO(errno.ENOSYS), "clone3")
    return _instructions(filter_)


def _candidate() -> bytes:
    from pyseccomp import ALLOW, ERRNO, SyscallFilter

    filter_ = SyscallFilter(ALLOW)
    for call in STARTS:
        filter_.add_rule(ERRNO(errno.EPERM), call)
    filter_.add_rule(ERRNO(errno.ENOSYS), "clone3")
    return _instructions(filter_)


def _instructions(filter_: object) -> bytes:
    with tempfile.TemporaryFile() as file:
        filter_.export_bpf(file)  # type: ignore[attr-defined]
        file.seek(0)
        return file.read()
