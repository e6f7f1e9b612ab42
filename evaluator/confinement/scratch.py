"""The directory of a run: how much a program may leave in it, what is read of it, and how it goes away.

A program may have left anything there: links, directories that it closed (mode 0) or nested a thousand deep.
Standard library only, and little of it: the warden imports this.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator

FILES = 1000  # that may lie in a directory at once, directories among them; honest programs leave one or two
FULL = 4  # times the greatest size of one file may all of them take


def crowded(folder: str, file_bytes: int) -> bool:
    """Whether there is too much in the directory, or more than can be found out."""
    count = size = 0
    todo = [folder]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    count += 1
                    size += 512 * entry.stat(follow_symlinks=False).st_blocks
                    if count > FILES or size > FULL * file_bytes:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # it went away meanwhile, or is closed to us
        except OSError:
            return True  # a path longer than the kernel takes
    return False


def filled(folder: str, limit: int) -> bool:
    """Whether a file of the directory has the greatest size allowed: a failed program wanted to write on."""
    for at, _, files in os.walk(folder):
        for path in (os.path.join(at, name) for name in files):
            with contextlib.suppress(OSError):
                if os.lstat(path).st_size >= limit:
                    return True
    return False


def read(folder: str, name: str, limit: int) -> bytes | None:
    """A file that the program left; None for what is missing, too large, or not a plain file of the directory."""
    try:
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size >= limit:  # at the limit it was cut off
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def remove(folder: str) -> None:
    """Removes the directory with all that was left in it.  A program may have put a link in its place.

    Nested directories are drawn up to the top and removed there, so that no depth is too great: neither for the length
    of a path nor for the number of descriptors.  Two may do it at once.
    """
    with contextlib.suppress(OSError):
        if os.path.islink(folder):
            os.unlink(folder)
            return
        os.chmod(folder, 0o700)
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fresh = (f"{os.urandom(8).hex()}.{number}" for number in itertools.count())
            while names := os.listdir(top):
                for name in names:
                    if not _unlinked(name, top):
                        _draw_up(name, top, fresh)
        finally:
            os.close(top)
        os.rmdir(folder)


def _unlinked(name: str, at: int) -> bool:
    """Removes what is no directory; a directory stays, opened up."""
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass  # another removed it
    except IsADirectoryError:
        os.chmod(name, 0o700, dir_fd=at)
        return False
    return True


def _draw_up(name: str, top: int, fresh: Iterator[str]) -> None:
    """Removes a directory of ``top``; the directories in it become directories of ``top`` under fresh names."""
    with contextlib.suppress(FileNotFoundError):  # another was faster
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        try:
            for nested in os.listdir(inner):
                if not _unlinked(nested, inner):
                    os.rename(nested, next(fresh), src_dir_fd=inner, dst_dir_fd=top)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
