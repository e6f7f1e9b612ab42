"""The processes below one, for tests that look at them while they come and go."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Seen(NamedTuple):
    """A process that was there. Numbers are used again, so that its start (clock ticks since boot) tells it apart."""

    pid: int
    start: int


def below(pid: int) -> list[Seen]:
    """The children of a process, and theirs. One that ends meanwhile is left out, whichever moment it chooses."""
    found: list[Seen] = []
    for task in _entries(Path(f"/proc/{pid}/task")):
        for child in map(int, _read(task / "children").split()):
            found += [*_seen(child), *below(child)]
    return found


def running(processes: Iterable[Seen]) -> list[Seen]:
    """Those that are still there; one that has ended and waits for its parent is not."""
    return [process for process in processes if process in _seen(process.pid)]


def gone(processes: Iterable[Seen], within_s: float) -> bool:
    """Whether all have ended, looked at until then."""
    until = time.monotonic() + within_s
    while left := running(processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return not left


def idle(processes: Iterable[Seen], within_s: float) -> bool:
    """Whether all come to sleep and stay so for half a second: one that still starts runs, or waits for a disk."""
    until = time.monotonic() + within_s
    asleep = 0
    while asleep < 10 and time.monotonic() < until:
        states = {
            _read(Path(f"/proc/{process.pid}/stat")).rpartition(b")")[2].split()[:1] == [b"S"] for process in processes
        }
        asleep = asleep + 1 if False not in states else 0
        time.sleep(0.05)
    return asleep == 10


def environment(process: Seen) -> bytes:
    """What it was started with; nothing if it is gone."""
    return _read(Path(f"/proc/{process.pid}/environ"))


def _seen(pid: int) -> list[Seen]:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return [Seen(pid, int(fields[19]))] if fields and fields[0] != b"Z" else []


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> bytes:
    """A file of /proc: opening, listing and reading each fail when the process is gone, and not with one error."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
