"""Processes take turns on a GPU: what one does there would be in the times that another one measures meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE_S = 0.005  # between two looks whether it is our turn


@contextlib.contextmanager
def turn(name: str, stopped: Callable[[], bool]) -> Iterator[None]:
    """Holds the turn ``name``, once no other process of this user does; does not wait any more once ``stopped``."""
    path = Path(tempfile.gettempdir()) / f"tilewright-{os.getuid()}-{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not stopped():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(PATIENCE_S)
        yield
    finally:
        os.close(descriptor)
