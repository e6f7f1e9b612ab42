"""A fresh interpreter that runs one of our own modules, and the line to it.

Not a fork: it inherits no memory of ours, and imports torch while we go on.  What passes over the line is pickled, so
both ends must be this package's own code.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from knowledge_base.errors import cannot_start

_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def without_secrets() -> dict[str, str]:
    """This process's environment without what its names call a key, token, secret, password or credential."""
    return {name: value for name, value in os.environ.items() if not any(s in name.upper() for s in _SECRETS)}


def portable(error: Exception) -> Exception:
    """``error``, if it survives being pickled, else its traceback in one that does."""
    try:
        pickle.loads(pickle.dumps(error))  # an exception of several arguments may not come back
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def in_short(error: Exception) -> str:
    """``error`` in a line, with the place that raised it: ``KeyError: 'x' (ops.py:515)``."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"


class FreshPython:
    """``python -m module FD``, which ends when the line, a socket, closes: with us, if not before.

    Raises EnvironmentLacks where no process can be started.
    """

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    pass_fds=(theirs.fileno(),),
                    env=without_secrets() | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},  # others have the other cores
                    start_new_session=True,  # Ctrl-C is the caller's to handle
                )
            except OSError as error:
                ours.close()
                raise cannot_start(error) from None
        self.line = Connection(ours.detach())
        self._ending = threading.Lock()  # closed twice at once, the line's number may be another's

    def end(self) -> str:
        """Ends the process, if it has not ended; how it ended, with the last line that it wrote.

        May be called twice, from any thread; the second hears nothing.
        """
        with self._ending:
            return self._end()

    def _end(self) -> str:
        self.process.kill()
        code = self.process.wait()
        self.line.close()
        if self._log.closed:
            return ""
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self._log.close()
        return f"{cause}{': ' + lines[-1] if lines else ''}"
