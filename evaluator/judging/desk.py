"""The line between those who want a judgement, the process that has them made, and the judgement in a fork of it.

    caller → process    the limits (JSON), then the question, a pickle for the judgement
    process → caller    READY once; then PROGRESS, and at the end RESULT, RAISED or ENDED
    judgement → process UNTIL, PROGRESS, and at the end RESULT or RAISED

Callers read this, and need no torch.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .oracle import Oracle

READY, PROGRESS, UNTIL, RESULT, RAISED, ENDED = b"+", b"p", b"u", b"r", b"x", b"e"
HARD, SLACK_S = 1.1, 0.2  # a judgement is ended at this many times the seconds that a step may take, and so much more
PATIENCE_S = 15.0  # beyond its limit the caller waits so long for the process to have ended it


class Desk:
    """What a function that runs in a fork is given, as its last argument."""

    def __init__(self, line: Connection, oracle: Oracle) -> None:
        self._line, self.oracle = line, oracle

    def progress(self, stage: str, share: float) -> None:
        """Passed on to the caller."""
        self._line.send_bytes(PROGRESS + pickle.dumps((stage, share)))

    @contextlib.contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Inside, this process is ended after ``seconds``, a little later; ``what`` is then said to have run too long.

        It is for steps that mind the time themselves, where they can: what it ends cannot say more.
        """
        self._line.send_bytes(UNTIL + json.dumps([HARD * seconds + SLACK_S, what]).encode())
        try:
            yield
        finally:
            self._line.send_bytes(UNTIL)
