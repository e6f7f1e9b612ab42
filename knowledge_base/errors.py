"""What a user can mend: one exception base, and the exit codes of the command line.

A defect of our own is never one of these; it keeps its traceback.  An expected failure of a candidate kernel is a
:class:`knowledge_base.records.Verdict`, not an exception.
"""

from __future__ import annotations

EXIT_DONE = 0  # run: every task has a correct kernel; check: correct
EXIT_REJECTED = 1  # a task without kernel, or a rejected candidate
EXIT_USAGE = 2  # a wrong name, a malformed file, an option that makes no sense
EXIT_ENVIRONMENT = 3  # something this machine lacks: the toolchain, a GPU, a writable database
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Something the user can mend.  ``what`` and where it happened, and ``mend``: what to do about it."""

    exit_code = EXIT_USAGE

    def __init__(self, what: str, mend: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.what}\n{self.mend}" if self.mend else self.what


class Interrupted(UserError):
    """Ctrl-C: exit code 130."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted")


class EnvironmentLacks(UserError):
    """The machine lacks something: exit code 3."""

    exit_code = EXIT_ENVIRONMENT


def cannot_start(error: OSError) -> EnvironmentLacks:
    """``error`` met while a process was to be started."""
    why = error.strerror or error
    mend = "End some, free some memory, or raise their limit (ulimit -u), and try again."
    return EnvironmentLacks(f"this machine starts no more processes: {why}", mend)


def nearest(word: str, known: list[str] | tuple[str, ...], count: int = 3) -> list[str]:
    """The known spellings nearest to ``word``, best first; ignores case, ``-`` and ``_``."""
    import difflib

    def plain(text: str) -> str:
        return text.lower().replace("-", "_")

    by_plain: dict[str, str] = {}
    for name in known:
        by_plain.setdefault(plain(name), name)
    return [by_plain[hit] for hit in difflib.get_close_matches(plain(word), list(by_plain), n=count, cutoff=0.5)]
