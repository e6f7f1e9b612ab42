"""What a process asks of the kernel before it becomes, starts or loads a program that is not trusted.

What is taken away is taken from the process and from all it will start, and nothing gives it back.  The warden asks for
a new process, the tracer's child for itself, just before it loads a candidate.  Which system calls and which files are
refused is decided in :mod:`.barriers`.  Standard library only, and little of it: this is imported where
time counts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2  # linux/seccomp.h
CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
CAP_DAC_READ_SEARCH = 2
CAPABILITIES = 64  # a set is two words of 32 bits; the kernel refuses numbers that it does not know
INSTRUCTION_BYTES = 8  # struct sock_filter
# linux/sched.h: new mount, IPC, user, process and network namespaces
CLONE_NEW = 0x00020000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}  # the system call's number
LANDLOCK_RESTRICT_SELF = 446  # on every architecture
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000  # linux/mount.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *4 * (ctypes.c_ulong,))
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.syscall.restype = ctypes.c_long
_syscall = ctypes.PyDLL(None, use_errno=True).syscall  # keeps the interpreter's lock: a fork must not wake without it
_syscall.restype = ctypes.c_long


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def no_new_privileges() -> None:
    """No program that this process executes gains rights by its file (setuid): a condition of every filter."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def adopt_orphans() -> None:
    """Orphans below this process become its children, whatever they did to detach."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """This process is killed when its parent ends, however that ended.  A fork of it is not."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_capabilities() -> None:
    """Takes from root what a user does not have; from a user it takes nothing.

    With its capabilities root may write into the memory of any process, through /proc.  One is kept, that of reading
    the files of others: the interpreter may lie in a user's home.
    """
    if os.geteuid() != 0:
        return
    kept = 1 << CAP_DAC_READ_SEARCH
    for capability in range(CAPABILITIES):
        if not kept >> capability & 1 and _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last one, or a container's root, which has few
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    # Effective, permitted and inheritable set of the low word, then of the high one.  An execve as root takes from the
    # bounding and the inheritable set.
    header, sets = (2 * ctypes.c_uint32)(CAPABILITY_VERSION_3, 0), 6 * ctypes.c_uint32
    if _libc.capset(header, sets(kept, kept)) != 0:  # a root that does not have even that one
        _libc.capset(header, sets())


def namespaces_are_known() -> bool:
    """Whether :func:`fork_apart` knows this architecture's clone."""
    return os.uname().machine in CLONE


def fork_apart() -> int:
    """``os.fork`` into new namespaces, in which the child is process 1: when it ends, the kernel ends all of them.

    The child must wait until its parent has called :func:`name_ids`.  For processes of one thread.  OSError where the
    machine allows it to nobody, or not to this user.
    """
    pid = int(_syscall(*map(ctypes.c_long, (CLONE[os.uname().machine], CLONE_NEW | signal.SIGCHLD, 0, 0, 0, 0))))
    if pid < 0:
        raise _error("clone")
    return pid


def name_ids(pid: int) -> None:
    """Gives a child of :func:`fork_apart` the users and groups of outside, under the same numbers.

    A user may give it his own alone; root all of them, so that reading the files of others stays what it is.
    """
    for ids, own in (("uid", os.geteuid()), ("gid", os.getegid())):
        with open(f"/proc/self/{ids}_map") as file:
            known = [line.split() for line in file]
        everyone = "".join(f"{first} {first} {count}\n" for first, _, count in known)
        try:
            _write(f"/proc/{pid}/{ids}_map", everyone)
        except PermissionError:
            with suppress(OSError):  # the kernel's condition for a group's number; old ones have no such file
                _write(f"/proc/{pid}/setgroups", "deny")
            _write(f"/proc/{pid}/{ids}_map", f"{own} {own} 1\n")


def see_only_ourselves() -> None:
    """In a child of :func:`fork_apart`: a /proc that shows its own processes, and mounts that nobody else sees."""
    if _libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise _error("private mounts")
    if _libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None) != 0:
        raise _error("a /proc of its own")


def keep_to(ruleset: int) -> None:
    """Installs a Landlock ruleset, a descriptor: from here on files are opened by its rules."""
    if _libc.syscall(ctypes.c_long(LANDLOCK_RESTRICT_SELF), ctypes.c_long(ruleset), ctypes.c_long(0)) != 0:
        raise _error("landlock_restrict_self")


def refuse(program: bytes) -> None:
    """Installs a seccomp filter: BPF instructions, as libseccomp exports them.  OSError if the kernel does not."""
    filter_ = _Program(len(program) // INSTRUCTION_BYTES, program)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filter_))


def filters_are_possible() -> bool:
    """Whether this kernel takes filters: it then looks for the program, and faults where there is none."""
    return _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0) != 0 and ctypes.get_errno() == errno.EFAULT


def _prctl(option: int, first: int, second: int = 0) -> None:
    if _libc.prctl(option, first, second, 0, 0) != 0:
        raise _error(f"prctl({option})")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())  # at once, as the kernel wants it
    finally:
        os.close(descriptor)
