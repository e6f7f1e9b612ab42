"""Export: what a base itself found, as the lines of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from knowledge_base import browse
from knowledge_base.database import Database
from knowledge_base.errors import UserError
from knowledge_base.records import COMPOSITION, FOREIGN, PRUNED
from knowledge_base.sharing import parcel
from knowledge_base.sharing.lines import (
    CandidateLine,
    EvidenceLine,
    FactLine,
    Line,
    LineCheck,
    RuleLine,
    TaskLine,
    TrialLine,
)
from knowledge_base.sharing.taking import IMPORT
from knowledge_base.tables import BASES, CANDIDATES, EVIDENCE, TALLIES, TASKS, TRIALS, WINNERS, now

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    Offer = tuple[type[Line], dict[str, Any]]  # a line and its fields


def give(database: Database, path: Path, *, op: str = "", gpu: str = "") -> dict[str, Any]:
    """Writes what ``op`` and ``gpu`` mean to a file; of which base it is, and how many lines of each kind it has.

    What goes: tasks that were tried, candidates, trials but pruned ones, which runs' winners these are, rules with
    their evidence, facts that do not ship.  What was imported stays: who wants it asks the base that it is from.  Runs,
    attempts, whole targets, plans and what language models were asked stay as well.
    ``skipped`` counts what this version reads as something else than the one that stored it.
    Raises EnvironmentLacks where the file can't be written.
    """
    count: Counter[str] = Counter()
    with database.read() as connection:
        own = connection.execute(select(BASES.c.key).where(BASES.c.own)).scalar_one()
        header = {"base": own, "made_at": now(), "op": op, "gpu": gpu}

        def lines() -> Iterator[dict[str, Any]]:
            check = LineCheck()
            for kind, fields in _offers(database, connection, op, gpu):
                try:
                    line = kind(**fields)
                    check.look_at(line)
                except (ValueError, UserError):
                    count["skipped"] += 1
                    continue
                count[line.kind] += 1
                yield line.model_dump(mode="json", exclude_defaults=True) | {"kind": line.kind}

        parcel.write(path, header, lines())
    skipped = count.pop("skipped", 0)
    return {"file": str(path), **header, "lines": dict(count), "skipped": skipped}


def _offers(database: Database, connection: Connection, op: str, gpu: str) -> Iterator[Offer]:
    for task, snf in _tried_tasks(database, connection, op, gpu):
        yield TaskLine, {"key": task, "snf": snf}
        yield from _tried(connection, task, gpu)
    for row in browse.facts(database, op=op, gpu=gpu):
        if row["origin"] not in ("seed", IMPORT):
            yield FactLine, _fields(FactLine, row)
    for row in browse.rules(database, op=op, gpu=gpu):
        if row["origin"] == IMPORT and row["effect"] is None:
            continue
        yield RuleLine, _fields(RuleLine, row)
        mine = select(EVIDENCE).where(EVIDENCE.c.rule == row["key"], EVIDENCE.c.kind == "measured")
        for found in connection.execute(mine.order_by(EVIDENCE.c.key)).mappings():
            yield EvidenceLine, _fields(EvidenceLine, found)


def _fields(kind: type[Line], row: Any) -> dict[str, Any]:
    return {name: row[name] for name in kind.model_fields if name != "kind"}


def _tried_tasks(database: Database, connection: Connection, op: str, gpu: str) -> list[tuple[str, str]]:
    """(identity, text) of the tasks that were tried here."""
    y = TALLIES.c
    tried = select(y.task).where(y.trials > 0, y.status.not_in((PRUNED, FOREIGN)))
    tried = tried.where(y.chip == gpu) if gpu else tried
    files = select(CANDIDATES.c.task).where(CANDIDATES.c.proposer != COMPOSITION)
    wanted = select(TASKS.c.key, TASKS.c.snf).where(TASKS.c.key.in_(tried), TASKS.c.key.in_(files))
    wanted = wanted.order_by(TASKS.c.name, TASKS.c.key)
    meant = browse.tasks_of(database, op)
    return [(key, snf) for key, snf in connection.execute(wanted) if meant is None or key in meant]


def _tried(connection: Connection, task: str, gpu: str) -> Iterator[Offer]:
    """A task's candidates, each with its trials."""
    c, t = CANDIDATES.c, TRIALS.c
    won = _won(connection, task)
    for made in connection.execute(select(CANDIDATES).where(c.task == task).order_by(c.created_at, c.key)).all():
        mine = select(t.key, t.run_id, t.created_at, t.record)
        mine = mine.where(t.candidate == made.key, t.status.not_in((PRUNED, FOREIGN)))
        trials = connection.execute((mine.where(t.chip == gpu) if gpu else mine).order_by(t.created_at, t.key)).all()
        if not trials:
            continue
        names = ("source", "proposer", "parent", "note")
        yield CandidateLine, {"task": task} | {name: getattr(made, name) for name in names}
        of = {"task": task, "candidate": made.digest}
        for key, run, at, record in trials:
            yield TrialLine, {"key": key, "run": run, "at": at, "record": record, "won": won.get(key, []), **of}


def _won(connection: Connection, task: str) -> dict[str, list[dict[str, str]]]:
    """The runs whose winners a task's trials are."""
    of_task = WINNERS.c.trial.in_(select(TRIALS.c.key).where(TRIALS.c.task == task))
    found: dict[str, list[dict[str, str]]] = {}
    for row in connection.execute(select(WINNERS).where(of_task).order_by(WINNERS.c.created_at, WINNERS.c.key)):
        found.setdefault(row.trial, []).append({"run": row.run_id, "at": row.created_at})
    return found
