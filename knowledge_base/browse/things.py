"""Everything about one thing: a run, task, chip, kernel, trial, rule, fact, call, or another base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Table, func, select

from knowledge_base.browse.asking import BEST, Row, begins, briefs, listed, winners
from knowledge_base.browse.learning import curves_of
from knowledge_base.browse.lineage import lineage
from knowledge_base.browse.listings import facts, rules, tasks
from knowledge_base.browse.standings import by_status, places
from knowledge_base.chips import CHIPS
from knowledge_base.database import Database
from knowledge_base.errors import UserError, nearest
from knowledge_base.records import COMPOSITION
from knowledge_base.store import trials
from knowledge_base.tables import (
    ATTEMPTS,
    BASES,
    CALLS,
    CANDIDATES,
    EVIDENCE,
    FACTS,
    RULES,
    RUNS,
    TASKS,
    TRIALS,
    WINNERS,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_MOST = 50  # winners of a task

# What an id may name: kind, table, the column with the id.
_NAMED: tuple[tuple[str, Table, str], ...] = (
    ("run", RUNS, "id"),
    ("task", TASKS, "key"),
    ("kernel", CANDIDATES, "digest"),
    ("trial", TRIALS, "key"),
    ("rule", RULES, "key"),
    ("fact", FACTS, "key"),
    ("call", CALLS, "key"),
    ("base", BASES, "key"),
)


def show(database: Database, what: str, *, gpu: str = "") -> Row:
    """Everything about the one thing that ``what`` names: a task or a chip by its name, else the beginning of an id.

    ``gpu``: of a task, what was tried on that chip alone.  The row has ``is``: run | task | chip | kernel | trial |
    rule | fact | call | base.  Raises UserError if nothing or several things match.
    """
    name = what.replace("-", "_")
    if what.lower() in CHIPS:
        return {"is": "chip"} | _chip(database, what.lower())
    with database.read() as connection:
        matches = [("task", row) for row in _tasks_named(connection, name)]
        if not matches:
            for kind, table, column in _NAMED:
                found = listed(connection, select(table).where(*begins(table.c[column], what)).limit(4))
                matches += [(kind, row) for row in found]
        if len({(kind, row[_column(kind)]) for kind, row in matches}) == 1:
            kind, only = matches[0]
            return {"is": kind} | _details(connection, kind, only, gpu)
        if not matches:
            known = [*connection.execute(select(TASKS.c.name).distinct()).scalars(), *CHIPS]
            near = nearest(name, known)
            listing = "`agent kb runs`, `tasks`, `kernels` … list ids; a task's or a GPU's name will do."
            raise UserError(
                f"nothing has an id or a name that begins with {what!r}",
                f"Did you mean {' or '.join(near)}? {listing}" if near else listing,
            )
    ids = ", ".join(f"{kind} {row[_column(kind)][:12]}{_said(kind, row)}" for kind, row in matches[:6])
    raise UserError(f"{what!r} names several things: {ids}", "Give one of these ids, or more of it.")


def _tasks_named(connection: Connection, name: str) -> list[Row]:
    """The tasks of this name.  A target has its one task's name too: it is left out where that task is here."""
    found = listed(connection, TASKS.select().where(TASKS.c.name == name).limit(9))
    keys = [row["key"] for row in found]
    composed = select(CANDIDATES.c.task).where(CANDIDATES.c.task.in_(keys), CANDIDATES.c.proposer == COMPOSITION)
    whole = set(connection.execute(composed).scalars())
    return [row for row in found if row["key"] not in whole] or found


def _said(kind: str, row: Row) -> str:
    return f" ({row['name']} in {row['dtype']}, {row['precision']})" if kind == "task" else ""


def _column(kind: str) -> str:
    return next(column for name, _, column in _NAMED if name == kind)


def _chip(database: Database, name: str) -> Row:
    """What is known of a chip, and what was tried on it."""
    chip = CHIPS[name]
    return {"chip": name, "product": chip.product, "arch": chip.arch} | {
        "facts": facts(database, gpu=name),
        "rules": [row for row in rules(database, gpu=name) if row["chip"] == name],
        "tasks": tasks(database, gpu=name),
    }


def _details(connection: Connection, kind: str, row: Row, gpu: str) -> Row:
    match kind:
        case "trial":
            return _trial(connection, row)
        case "kernel":
            return _kernel(connection, row)
        case "run":
            return _run(connection, row)
        case "task":
            return _task(connection, row, gpu)
        case "call":
            said = {name: value for name, value in row["record"].items() if name != "task"}
            known = {"call": row["key"], "task": _task_name(connection, row["task"]), "created_at": row["created_at"]}
            return known | said
        case "rule":
            evidence = EVIDENCE.select().where(EVIDENCE.c.rule == row["key"])
            return row | {"evidence": listed(connection, evidence.order_by(EVIDENCE.c.created_at))}
    return row


def _trial(connection: Connection, row: Row) -> Row:
    (trial,) = trials(connection, [row["key"]])
    stored = {name: row[name] for name in ("run_id", "created_at")}
    named = {"task": _task_name(connection, row["task"])}
    return named | trial.document() | stored | {"source": trial.candidate.source}


def _kernel(connection: Connection, row: Row) -> Row:
    t = TRIALS.c
    tried = select(t.key, t.created_at).where(t.candidate == row["key"]).order_by(t.created_at).limit(200)
    seen = ("trial", "chip", "shape", "configuration", "status", "kind", "us", "message")
    asked = listed(connection, select(CALLS.c.key).where(CALLS.c.candidate == row["digest"]).limit(20))
    row |= {"calls": [call["key"] for call in asked]} if asked else {}
    named = {"kernel": row.pop("digest"), "task": _task_name(connection, row["task"])}
    tree, steps = lineage(connection, named["kernel"])
    return {k: v for k, v in row.items() if k != "key"} | named | {
        "trials": briefs(connection, listed(connection, tried), seen), "lineage": tree, "steps": steps,
    }  # fmt: skip


def _run(connection: Connection, row: Row) -> Row:
    won = briefs(connection, listed(connection, winners().where(WINNERS.c.run_id == row["id"])), BEST)
    count = select(func.count()).select_from(ATTEMPTS).where(ATTEMPTS.c.run_id == row["id"])
    calls = select(func.count()).select_from(CALLS).where(CALLS.c.run_id == row["id"])
    return row | {
        "calls": connection.execute(calls).scalar(),
        "winners": won,
        "attempts": connection.execute(count).scalar(),
        "curves": curves_of(connection, row["id"]),
    }


def _task(connection: Connection, row: Row, gpu: str) -> Row:
    query = winners(WINNERS.c.run_id, tasks=[row["key"]], gpu=gpu).limit(_MOST)
    won = briefs(connection, listed(connection, query), BEST)
    found, count = places(connection, row["key"], gpu)
    named = {"identity": (key := row.pop("key")), "task": row.pop("name")}
    seen = {"trials": by_status(connection, key), "places": found, "more_places": count - len(found)}
    return named | row | seen | {"winners": won}


def _task_name(connection: Connection, key: str) -> str:
    return str(connection.execute(select(TASKS.c.name).where(TASKS.c.key == key)).scalar())
