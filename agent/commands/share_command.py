"""``agent kb export`` and ``agent kb import``: what one base knows, for another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.console import console, count, emit
from agent.files import no_base
from knowledge_base.errors import EXIT_DONE
from knowledge_base.sharing import give, take
from knowledge_base.store import Store

from .kb import known_chip, known_op, plain, reading


def export(file: str, op: str, gpu: str, db: str | None, as_json: bool) -> int:
    """Writes the file and says what is in it.  Raises UserError for an op or a chip that there is not."""
    with reading(db) as store:
        given = give(store.database, no_base(Path(file)), op=known_op(op), gpu=known_chip(gpu))
    if as_json:
        emit(given)
        return EXIT_DONE
    out = console()
    out.print(plain(f"{file}: {_counted(given['lines']) or 'nothing'} of base {given['base'][:8]}."))
    if given["skipped"]:
        out.print(f"{count(given['skipped'], 'row')} left out, which this version reads as something else.")
    return EXIT_DONE


def import_rows(file: str, db: str | None, as_json: bool) -> int:
    """Stores what the file has and says what of it was new.  Raises UserError for a file that is not whole."""
    with Store.open(db) as store:
        taken = take(store.database, Path(file))
    if as_json:
        emit(taken)
        return EXIT_DONE
    out = console()
    if taken["older"]:
        base = taken["base"][:8]
        out.print(plain(f"A later export of base {base} is here: of this one only what was not here is taken."))
    changes = {change: {kind: n[change] for kind, n in taken["took"].items() if n.get(change)} for change in _SAID}
    for change, said in _SAID.items():
        if changes[change]:
            out.print(plain(f"{said}: {_counted(changes[change])}."))
    if changes["new"] or changes["changed"]:
        base = taken["base"][:8]
        out.print(plain(f"What base {base} says of its trials is shown as foreign; a run judges them again."))
    else:
        out.print("Nothing new.")
    return EXIT_DONE


_SAID = {"new": "New", "changed": "Changed there", "known": "Known"}


def _counted(numbers: Mapping[str, int]) -> str:
    """``2 tasks, 3 pieces of evidence``"""
    said = (f"{count(n, 'piece')} of {kind}" if kind == "evidence" else count(n, kind) for kind, n in numbers.items())
    return ", ".join(said)
