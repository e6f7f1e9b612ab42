"""Recordings of runs: ``agent run --record`` writes one, ``--replay`` finds one."""

from __future__ import annotations

import os
from pathlib import Path

from agent.files import no_base, write_at_once
from agent.loop import RUNS, RunOptions, find_run
from agent.proposers import Recording, read_recording, shipped_recordings
from knowledge_base.errors import UserError
from knowledge_base.store import Store


def find(store: Store, name: str) -> tuple[Recording, str]:
    """The recording in the file ``name``, the one of that name that ships, or that of a run in the knowledge base.

    With it comes the name that finds it later, too.  Raises UserError where there is none, or it holds no answers.
    """
    ships = shipped_recordings()
    if os.path.isfile(name):
        return read_recording(_text(Path(name)), name), os.path.abspath(name)
    if name in ships:
        return read_recording(_text(ships[name]), name), name
    try:
        run = find_run(name).name
    except UserError as error:
        if os.sep in name or name.endswith(".jsonl"):
            raise UserError(f"--replay: no file {name}", "agent run --record FILE writes one.") from None
        also = f"A file will do, too, or what ships: {', '.join(ships)}."
        raise UserError(f"--replay: {error.what}", f"{error.mend} {also}") from None
    return of_run(store, run), run


def of_run(store: Store, run: str) -> Recording:
    """The recording of a run of this folder.  Raises UserError if it asked no language model."""
    record = store.run(run)
    options = RunOptions(**record.options)
    snf = RUNS / run / "target.snf"
    calls = tuple(store.calls(run))
    recording = Recording(
        run=run, target=Path(record.target).name, snf=_text(snf), chip=record.chip, seed=options.seed,
        rounds=options.rounds, versions=record.versions, calls=calls,
    )  # fmt: skip
    if not recording.answers:
        raise UserError(f"run {run} got no answer of a language model", "There is nothing to record or to replay.")
    return recording


def check_place(file: str) -> str:
    """The path that ``--record file`` will write, absolute.  Raises UserError where that can't be."""
    path = Path(os.path.abspath(file))
    if path.is_dir():
        raise UserError(f"--record {file}: that is a folder", "Name a file in it.")
    if not path.parent.is_dir():
        raise UserError(f"--record {file}: there is no folder {path.parent}", "Make it first.")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"--record {file}: {path.parent} can't be written to", "Name another file.")
    return str(no_base(path))


def write(store: Store, run: str, file: str) -> str:
    """Writes the recording of a run; what became of it, for people."""
    try:
        recording = of_run(store, run)
        write_at_once(Path(file), recording.text())
    except UserError as error:
        return f"nothing was recorded: {error.what}"
    except OSError as error:
        return f"the recording was not written: {error.strerror}; again: agent run --resume {run} --record FILE"
    return f"recorded: {file}, {len(recording.calls)} calls. Show it again: agent run --replay {file}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text", "agent run --record FILE writes a recording.") from None
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}", "Check the path and its permissions.") from None
