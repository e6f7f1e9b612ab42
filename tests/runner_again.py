"""A process that is the runner of one test after another: it imports torch once for all of them.

It takes lines instead of being started with one, and serves each as :mod:`evaluator.replay.runner_server` serves its
own: with a device made anew.  What ends a runner's process ends this one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

from evaluator.confinement import FreshPython


class Counted(Connection):
    """A line that knows how many answers are due: a device's word that it is ready is one, too."""

    due = 0

    def send(self, message: object) -> None:
        self.due += 1
        super().send(message)

    def recv(self) -> object:
        answer = super().recv()
        self.due -= 1
        return answer


class LentPython:
    """In the place of a runner's :class:`FreshPython`: the process goes back if it has answered all that it was asked.

    One that was ended while it was at work, or that died, is ended as ever.
    """

    idle: list[FreshPython] = []  # noqa: RUF012 (of this process, whatever test)

    def __init__(self, _module: str) -> None:
        self._python = self.idle.pop() if self.idle else FreshPython("runner_again")
        self._said: str | None = None
        self.process = self._python.process
        ours, theirs = socket.socketpair()
        with theirs:
            send_handle(self._python.line, theirs.fileno(), self.process.pid)
        self.line = Counted(ours.detach())
        self._ending = threading.Lock()

    def end(self) -> str:
        with self._ending:
            return self._end()

    def _end(self) -> str:
        if self._said is None:
            gone = self.process.poll() is not None or self.line.closed or (self.line.poll() and not self.line.due)
            self.line.close()
            if gone or self.line.due:
                self._said = self._python.end()
            else:
                self._said = "exit code 0"
                self.idle.append(self._python)
        return self._said


def main(lines: Connection) -> None:
    from evaluator.replay import runner_server

    while True:
        line = recv_handle(lines)
        with Connection(line) as served, contextlib.suppress(EOFError, OSError):
            runner_server.main(served)


if __name__ == "__main__":
    try:
        main(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        os._exit(0)
