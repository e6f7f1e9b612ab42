"""What people browse: the rows behind ``agent kb``, as plain dictionaries ready for a table or for JSON.

Reading only.  Each function makes few queries that an index answers; ids are full content keys (the command line shows
prefixes and ``show`` takes them).  Times are µs and always stand beside their kind: measured or modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, and_, case, func, select, true

from knowledge_base.database import Database
from knowledge_base.errors import UserError
from knowledge_base.store import trials
from knowledge_base.tables import ATTEMPTS, CALLS, CANDIDATES, EVIDENCE, FACTS, RULES, RUNS, TASKS, TRIALS, WINNERS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

Row = dict[str, Any]


def facts(database: Database, *, op: str = "", gpu: str = "") -> list[Row]:
    """Figures and findings with their sources."""
    query = select(FACTS).order_by(FACTS.c.subject, FACTS.c.created_at)
    query = _where(query, _op(FACTS.c.op, op), FACTS.c.chip == gpu if gpu else None)
    return _rows(database, query)


def rules(database: Database, *, op: str = "", gpu: str = "", status: str = "") -> list[Row]:
    """Rules with how many rows of evidence each has."""
    count = select(EVIDENCE.c.rule, func.count().label("evidence")).group_by(EVIDENCE.c.rule).subquery("evidence")
    query = (
        select(RULES, func.coalesce(count.c.evidence, 0).label("evidence"))
        .outerjoin(count, count.c.rule == RULES.c.key)
        .order_by(RULES.c.status, RULES.c.op, func.abs(RULES.c.effect).desc(), RULES.c.created_at)
    )
    chip = RULES.c.chip.in_((gpu, "")) if gpu else None  # a rule without a chip speaks of every chip
    return _rows(database, _where(query, _op(RULES.c.op, op), chip, RULES.c.status == status if status else None))


def runs(database: Database, *, gpu: str = "", status: str = "", limit: int = 50) -> list[Row]:
    """Runs, latest first."""
    query = select(RUNS).order_by(RUNS.c.started_at.desc()).limit(limit)
    return _rows(
        database, _where(query, RUNS.c.chip == gpu if gpu else None, RUNS.c.status == status if status else None)
    )


def attempts(
    database: Database, *, op: str = "", gpu: str = "", status: str = "", run: str = "", limit: int = 50
) -> list[Row]:
    """Trials, latest first, each with its task's name; of one run: its attempts, in order."""
    t = TRIALS.c
    wanted = (_task_keys(database, t.task, op), t.chip == gpu if gpu else None, t.status == status if status else None)
    tried = [ATTEMPTS.c.move, ATTEMPTS.c.reused, ATTEMPTS.c.created_at] if run else [t.created_at]
    query = select(t.key, TASKS.c.name.label("task"), *tried).select_from(TRIALS)
    if run:
        query = query.join(ATTEMPTS, and_(ATTEMPTS.c.trial == t.key, *_begins(ATTEMPTS.c.run_id, run)))
        query = _where(query, *wanted).order_by(ATTEMPTS.c.id).limit(limit)
    else:  # the few rows that are shown first, so that the joins are made for them alone
        latest = _where(select(t.key), *wanted).order_by(t.created_at.desc()).limit(limit)
        query = query.where(t.key.in_(latest.scalar_subquery())).order_by(t.created_at.desc())
    with database.read() as connection:
        return _briefs(connection, _listed(connection, query.join(TASKS, TASKS.c.key == t.task)))


def calls(database: Database, *, op: str = "", status: str = "", run: str = "", limit: int = 50) -> list[Row]:
    """Calls of language models, latest first, without their texts; of one run: in its order."""
    c = CALLS.c
    asked, came = (c.run_id, c.number, c.model, c.move), (c.candidate, c.status, c.paid)
    cost = (c.tokens_in, c.tokens_out, c.cost_usd, c.seconds)
    query = select(c.key.label("call"), TASKS.c.name.label("task"), *asked, *came, *cost, c.created_at)
    query = query.join(TASKS, TASKS.c.key == c.task)
    query = query.order_by(c.created_at if run else c.created_at.desc()).limit(limit)
    of_run = and_(*_begins(c.run_id, run)) if run else None
    wanted = (_task_keys(database, c.task, op), c.status == status if status else None, of_run)
    return _rows(database, _where(query, *wanted))


def kernels(database: Database, *, op: str = "", gpu: str = "", status: str = "", limit: int = 50) -> list[Row]:
    """Winners, best first within task and chip.  ``status``: measured, modelled or promoted."""
    t, w = TRIALS.c, WINNERS.c
    query = _winners(w.run_id, w.folder, w.promoted_at, w.created_at, t.candidate)
    wanted = {"": None, "promoted": w.promoted_at != ""}
    query = _where(
        query, _task_keys(database, t.task, op), t.chip == gpu if gpu else None, wanted.get(status, t.kind == status)
    )
    found: dict[tuple[str, str, str], Row] = {}
    with database.read() as connection:
        for row in _listed(connection, query):
            found.setdefault((row["chip"], str(row.pop("shape")), row.pop("candidate")), row)
        return _briefs(connection, list(found.values())[:limit])


def _winners(*columns: Any) -> Any:
    """Winners, best first within task and chip: their task's name, key, chip and shape of their trial, ``columns``."""
    t = TRIALS.c
    return (
        select(TASKS.c.name.label("task"), t.key, t.chip, t.record["shape"].label("shape"), *columns)
        .select_from(WINNERS)
        .join(TRIALS, t.key == WINNERS.c.trial)
        .join(TASKS, TASKS.c.key == t.task)
        .order_by(TASKS.c.name, t.chip, case((t.kind == "measured", 0), else_=1), t.us)
    )


def _briefs(connection: Connection, rows: list[Row], only: Sequence[str] = ()) -> list[Row]:
    """Rows with the ``key`` of a trial, and what lists say of that trial in its place: everything, or these fields."""
    found = trials(connection, list(dict.fromkeys(row["key"] for row in rows)))
    said = {trial.key: trial.brief() for trial in found}
    if only:
        said = {key: {name: brief[name] for name in only} for key, brief in said.items()}
    return [{name: value for name, value in row.items() if name != "key"} | said[row["key"]] for row in rows]


def tasks(database: Database, *, op: str = "", gpu: str = "") -> list[Row]:
    """Tasks with how often each was tried and the best winner per chip."""
    t = TRIALS.c
    # A chip is counted and not filtered by, so that SQLite reads one index that has all columns, not every record.
    here = t.chip == gpu if gpu else true()
    tried = func.sum(case((here, 1), else_=0)).label("trials")
    correct = func.sum(case((and_(here, t.status == "correct"), 1), else_=0)).label("correct")
    count = select(t.task, tried, correct).group_by(t.task).subquery("counts")
    query = (
        select(
            TASKS.c.key.label("identity"),
            TASKS.c.name.label("task"),
            TASKS.c.ops,
            TASKS.c.dtype,
            TASKS.c.precision,
            func.coalesce(count.c.trials, 0).label("trials"),
            func.coalesce(count.c.correct, 0).label("correct"),
        )
        .outerjoin(count, count.c.task == TASKS.c.key)
        .order_by(TASKS.c.name)
    )
    found = _rows(database, _where(query, _op_of_task(op), count.c.trials > 0 if gpu else None))
    won = _where(_winners(), _task_keys(database, t.task, op), t.chip == gpu if gpu else None)
    first: dict[tuple[str, str, str], Row] = {}
    best: dict[str, list[Row]] = {}
    with database.read() as connection:
        for row in _listed(connection, won):
            first.setdefault((row["task"], row["chip"], str(row.pop("shape"))), row)
        for row in _briefs(connection, list(first.values()), BEST):
            best.setdefault(row.pop("task"), []).append(row)
    return [row | {"best": best.get(row["task"], [])} for row in found]


BEST = ("kernel", "chip", "shape", "kind", "us", "floor_us", "general")

# ---------------------------------------------------------------------------------------------------- show

# What an id may name: kind, table, the column with the id.
_NAMED: tuple[tuple[str, Table, str], ...] = (
    ("run", RUNS, "id"),
    ("task", TASKS, "key"),
    ("kernel", CANDIDATES, "digest"),
    ("trial", TRIALS, "key"),
    ("rule", RULES, "key"),
    ("fact", FACTS, "key"),
    ("call", CALLS, "key"),
)


def show(database: Database, prefix: str) -> Row:
    """Everything about the one thing whose id begins with ``prefix`` (or the task of that name).

    The row has ``is``: run | task | kernel | trial | rule | fact | call.  Raises UserError if none or several match.
    """
    matches: list[tuple[str, Row]] = []
    with database.read() as connection:
        for kind, table, column in _NAMED:
            named = and_(*_begins(table.c[column], prefix))
            if kind == "task":
                named = named | (table.c.name == prefix.replace("-", "_"))
            found = connection.execute(select(table).where(named).limit(4)).mappings()
            matches += [(kind, dict(row)) for row in found]
        if len({(kind, row[_column(kind)]) for kind, row in matches}) == 1:
            kind, only = matches[0]
            return {"is": kind} | _details(connection, kind, only)
    if not matches:
        raise UserError(
            f"nothing has an id that begins with {prefix!r}", "`agent kb runs`, `tasks`, `kernels` … list ids."
        )
    listed = ", ".join(f"{kind} {row[_column(kind)][:12]}" for kind, row in matches[:6])
    raise UserError(f"{prefix!r} begins several ids: {listed}", "Give more of it.")


def _column(kind: str) -> str:
    return next(column for name, _, column in _NAMED if name == kind)


def _details(connection: Connection, kind: str, row: Row) -> Row:
    t, w = TRIALS.c, WINNERS.c
    if kind == "trial":
        (trial,) = trials(connection, [row["key"]])
        stored = {name: row[name] for name in ("run_id", "created_at")}
        return (
            {"task": _task_name(connection, row["task"])}
            | trial.document()
            | stored
            | {"source": trial.candidate.source}
        )
    if kind == "kernel":
        tried = _listed(
            connection, select(t.key, t.created_at).where(t.candidate == row["key"]).order_by(t.created_at).limit(200)
        )
        seen = ("trial", "chip", "shape", "configuration", "status", "message")
        asked = _listed(connection, select(CALLS.c.key).where(CALLS.c.candidate == row["digest"]).limit(20))
        row |= {"calls": [call["key"] for call in asked]} if asked else {}
        named = {"kernel": row.pop("digest"), "task": _task_name(connection, row["task"])}
        return {k: v for k, v in row.items() if k != "key"} | named | {"trials": _briefs(connection, tried, seen)}
    if kind == "run":
        won = _briefs(connection, _listed(connection, _winners().where(w.run_id == row["id"])), BEST)
        count = select(func.count()).select_from(ATTEMPTS).where(ATTEMPTS.c.run_id == row["id"])
        calls = select(func.count()).select_from(CALLS).where(CALLS.c.run_id == row["id"])
        row |= {"calls": connection.execute(calls).scalar()}
        return row | {"winners": won, "attempts": connection.execute(count).scalar()}
    if kind == "task":
        won = _briefs(connection, _listed(connection, _winners(w.run_id).where(t.task == row["key"]).limit(50)), BEST)
        tried = _listed(
            connection, select(t.status, func.count().label("count")).where(t.task == row["key"]).group_by(t.status)
        )
        return {"identity": row.pop("key")} | row | {"trials": tried, "winners": won}
    if kind == "call":
        said = row["record"]
        return {"call": row["key"], "task": _task_name(connection, row["task"]), "created_at": row["created_at"]} | {
            name: value for name, value in said.items() if name != "task"
        }
    if kind == "rule":
        return row | {"evidence": _listed(connection, EVIDENCE.select().where(EVIDENCE.c.rule == row["key"]))}
    return row


def _task_name(connection: Connection, key: str) -> str:
    return str(connection.execute(select(TASKS.c.name).where(TASKS.c.key == key)).scalar())


# ---------------------------------------------------------------------------------------------------- filters


def _where(query: Any, *conditions: Any) -> Any:
    for condition in conditions:
        if condition is not None:
            query = query.where(condition)
    return query


def _begins(column: Any, prefix: str) -> tuple[Any, Any]:
    """``column`` begins with ``prefix``, as a range that an index answers."""
    return column >= prefix, column < prefix + "\U0010ffff"


def _op(column: Any, op: str) -> Any:
    """``--op`` on a row that names its op: that op, or a name that begins with it."""
    return None if not op else column.startswith(op.replace("-", "_"), autoescape=True)


def _op_of_task(op: str) -> Any:
    """``--op`` on tasks: the task's name begins with it, or one of its ops is it."""
    if not op:
        return None
    plain = op.replace("-", "_")
    return TASKS.c.name.startswith(plain, autoescape=True) | TASKS.c.ops.contains(f",{plain},", autoescape=True)


def _task_keys(database: Database, column: Any, op: str) -> Any:
    # Tasks are few and trials many: look the tasks up first, so that an index on the task is used.
    if not op:
        return None
    with database.read() as connection:
        return column.in_(list(connection.execute(select(TASKS.c.key).where(_op_of_task(op))).scalars()))


def _rows(database: Database, query: Any) -> list[Row]:
    with database.read() as connection:
        return _listed(connection, query)


def _listed(connection: Connection, query: Any) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]
