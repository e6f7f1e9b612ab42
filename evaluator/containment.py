"""What holds a candidate's process on this machine beside limits: which system calls the kernel refuses.

Two seccomp filters, made once with libseccomp and installed by :mod:`evaluator.lockdown`:

- ``program``: for everything that :mod:`evaluator.confine` runs.  It reaches no other process, no network, nothing
  that outlives it but files, and no setting of the machine.
- ``candidate``: added in the tracer's child before the candidate is loaded.  It starts nothing: no program, no process,
  no thread.  A candidate's Python needs none of them.

A refusal is an error number: Python raises PermissionError at the candidate's own line.  Where a machine cannot do
this, the level says so, with the command that mends it.
"""

from __future__ import annotations

import errno
import functools
import tempfile
from dataclasses import dataclass

from evaluator.lockdown import filters_are_possible
from knowledge_base.records import Level

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

# The new namespaces that clone makes (linux/sched.h): CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET.
CLONE_NEW = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
FCNTL_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: whom a signal about a descriptor goes to
IOCTL_TYPE = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: write what a terminal's user seems to type

# Every way to start something, for the candidate's own process.
STARTS = ("execve", "execveat", "fork", "vfork", "clone")

MEND = "apt-get install libseccomp2, or your system's package of libseccomp 2.5 or later"


@dataclass(frozen=True)
class Containment:
    """The level that this machine reaches.  At ``limited`` both filters are empty, ``why`` says what is missing, and
    ``mend`` what brings it, where anything does."""

    level: Level
    program: bytes = b""
    candidate: bytes = b""
    why: str = ""
    mend: str = ""

    @property
    def short_of(self) -> str:
        """Why it is not more, and what mends that; empty at the highest level."""
        said = "; ".join(part for part in (self.why, self.mend) if part)
        return f" ({said})" if said else ""

    @property
    def says(self) -> str:
        """One sentence for a person: what a candidate can and cannot do here."""
        if self.level is Level.LIMITED:
            return (
                f"Candidate code is limited, not sandboxed ({self.why}): it can start processes, use the network, and "
                "read and write your files."
            )
        return (
            "Candidate code starts no process and no thread, signals nobody and has no network: the kernel refuses. It "
            "can read and write your files."
        )


@functools.cache
def containment() -> Containment:
    """What this machine can do; it is asked once."""
    if not filters_are_possible():
        return Containment(Level.LIMITED, why="this kernel has no seccomp filters")
    try:
        return Containment(Level.FILTERED, program=_program(), candidate=_candidate())
    except (ImportError, RuntimeError) as error:  # pyseccomp's word for a missing libseccomp
        why = "pyseccomp is not installed" if isinstance(error, ImportError) else "libseccomp is missing"
        mend = "python -m pip install pyseccomp" if isinstance(error, ImportError) else MEND
        return Containment(Level.LIMITED, why=why, mend=mend)
    except (OSError, AttributeError) as error:  # an older one does not know a call, or is another library
        return Containment(Level.LIMITED, why=f"libseccomp refuses the filter: {error}", mend=MEND)


def _program() -> bytes:
    from pyseccomp import ALLOW, ERRNO, MASKED_EQ, NE, Arg, SyscallFilter

    filter_ = SyscallFilter(ALLOW)
    refuse = ERRNO(errno.EPERM)
    for call in (*OTHER_PROCESSES, *NETWORK, *LEFT_BEHIND, *NAMESPACES_AND_MOUNTS, *MACHINE, *KERNEL, *LIMITS):
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
