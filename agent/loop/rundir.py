"""A run's folder: its name, its lock, its log, and the texts that stay for people.

    runs/<id>/target.snf   what was asked for, as it was then; --resume reads this
              log.txt      one line per event, and the traceback of a defect
              plans/       the fusion plans, as lists of tasks
              prompts/     what a proposer was told about each task; in a replay, how its prompts differ
              winners/     see agent.loop.winners
              report.md

The lock is the operating system's: it goes with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import re
import secrets
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from agent.files import write_at_once
from knowledge_base.errors import EnvironmentLacks, UserError

RUNS = Path("runs")
LOCK = ".lock"  # every run's folder has it


def new_id(target: str) -> str:
    """Sortable and readable: ``20260102-030405-gpt2-block-7f3a``."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(target).stem.lower()).strip("-")[:24] or "target"
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def find_run(run: str) -> Path:
    """The folder of the run whose id begins with ``run``.  Raises UserError for none or several."""
    ids = sorted(p.name for p in RUNS.iterdir() if (p / LOCK).is_file()) if RUNS.is_dir() else []
    matches = [run] if run in ids else [i for i in ids if run and i.startswith(run)]
    if len(matches) == 1:
        return RUNS / matches[0]
    if matches:
        raise UserError(f"{run!r} begins several runs: {', '.join(matches[-4:])}", "Give more of it.")
    latest = f"The latest are {', '.join(ids[-3:])}." if ids else f"There is no run in {RUNS.resolve()}."
    raise UserError(f"no run {run!r}", latest)


class RunFolder:
    """The folder of one run, locked for this process.  Raises EnvironmentLacks where it can't be written."""

    def __init__(self, run_id: str, root: Path = RUNS) -> None:
        self.path = root / run_id
        self._guard = threading.Lock()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = open(self.path / LOCK, "w")  # noqa: SIM115 - held as long as the run lasts
        except OSError as error:
            raise EnvironmentLacks(
                f"can't write to {self.path}: {error.strerror}", "Start agent in a folder that you can write to."
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UserError(f"run {run_id} is still going on in another process", "Wait for it, or end it.") from None

    def write(self, name: str, text: str) -> Path:
        """Writes a text file (replacing it at once) and returns its path."""
        return write_at_once(self.path / name, text)

    def log(self, text: str) -> None:
        """Adds a line to log.txt."""
        with self._guard, open(self.path / "log.txt", "a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")

    def close(self) -> None:
        self._lock.close()
