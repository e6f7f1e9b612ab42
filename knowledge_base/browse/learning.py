"""Learning curves: how a run came to its times, evaluation by evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from knowledge_base.browse.asking import Row, listed
from knowledge_base.database import Database
from knowledge_base.records import Status, Trial
from knowledge_base.store import trials
from knowledge_base.tables import ATTEMPTS, TASKS, TRIALS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


def curves(database: Database, run: str) -> list[Row]:
    """A run's (id) learning curves, one of each task, chip and shape, in the order in which they began.

    A row: task, identity, chip, shape, kind, evaluations (how many configurations the run looked at) and ``points``,
    each an evaluation that was better than all before: its number, from 1, and µs.  A time counts if its kernel was
    found right in this run, in whichever configuration, and nothing was found wrong with the configuration itself.
    """
    with database.read() as connection:
        return curves_of(connection, run)


def curves_of(connection: Connection, run: str) -> list[Row]:
    """:func:`curves` within a transaction."""
    t, a = TRIALS.c, ATTEMPTS.c
    columns = (TASKS.c.name.label("task"), t.task.label("identity"), t.chip, t.shape, t.candidate, t.status)
    query = (
        select(a.trial, *columns, t.standing, t.kind, t.us)
        .join(TRIALS, t.key == a.trial)
        .join(TASKS, TASKS.c.key == t.task)
        .where(a.run_id == run)
        .order_by(a.id)
    )
    tried = listed(connection, query)
    right = {row["candidate"] for row in tried if row["status"] == Status.CORRECT.value}
    places: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in tried:  # what was looked at again later in the run is one evaluation
        places.setdefault((row["identity"], row["chip"], row["shape"]), {}).setdefault(row["trial"], row)
    firsts = trials(connection, [next(iter(rows)) for rows in places.values()])
    return [_curve(list(rows.values()), right, first) for rows, first in zip(places.values(), firsts, strict=True)]


def _curve(rows: list[Row], right: set[str], first: Trial) -> Row:
    timed = [(number, row) for number, row in enumerate(rows, 1) if _counts(row, right)]
    kind = "measured" if any(row["kind"] == "measured" for _, row in timed) else "modelled"
    points: list[tuple[int, float]] = []
    for number, row in timed:
        if row["kind"] == kind and (not points or row["us"] < points[-1][1]):
            points.append((number, row["us"]))
    said = {name: rows[0][name] for name in ("task", "identity", "chip")}
    said |= {"shape": first.shape, "kind": kind if points else None}
    return said | {"evaluations": len(rows), "points": points}


def _counts(row: Row, right: set[str]) -> bool:
    return row["us"] is not None and row["standing"] in ("ranked", "spills") and row["candidate"] in right
