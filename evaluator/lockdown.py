"""What a process asks of the kernel before it becomes, starts or loads a program that is not trusted.

What is taken away is taken from the process and from all it will start, and nothing gives it back.  The warden asks for
a new process, the tracer's child for itself, just before it loads a candidate.  Which system calls a filter refuses is
decided in :mod:`evaluator.containment`.  Standard library only, and little of it: this is imported where time counts.
"""

from __future__ import annotations

import ctypes
import errno
import os

PR_SET_SECCOMP = 22  # linux/prctl.h
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

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *4 * (ctypes.c_ulong,))


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def no_new_privileges() -> None:
    """No program that this process executes gains rights by its file (setuid): a condition of every filter."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def adopt_orphans() -> None:
    """Orphans below this process become its children, whatever they did to detach."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


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


def refuse(program: bytes) -> None:
    """Installs a seccomp filter: BPF instructions, as libseccomp exports them.  OSError if the kernel does not."""
    filter_ = _Program(len(program) // INSTRUCTION_BYTES, program)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filter_))


def filters_are_possible() -> bool:
    """Whether this kernel takes filters: it then looks for the program, and faults where there is none."""
    return _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0) != 0 and ctypes.get_errno() == errno.EFAULT


def _prctl(option: int, first: int, second: int = 0) -> None:
    if _libc.prctl(option, first, second, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
