"""What people browse: the rows behind ``agent kb``, as plain dictionaries ready for a table or for JSON.

Reading only.  Each function makes few queries that an index answers; ids are full content keys (the command line shows
prefixes and ``show`` takes them).  Times are µs and always stand beside their kind: measured or modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, and_, case, func, select, true

from .errors import UserError
from .tables import ATTEMPTS, CANDIDATES, EVIDENCE, FACTS, RULES, RUNS, TASKS, TRIALS, WINNERS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from .database import Database

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
        .order_by(RULES.c.status, RULES.c.op, RULES.c.created_at)
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
    """Trials, latest first, with task, candidate and the time that counts; of one run: its attempts, in order."""
    t = TRIALS.c
    wanted = (_task_keys(database, t.task, op), t.chip == gpu if gpu else None, t.status == status if status else None)
    named = [
        t.key.label("id"),
        TASKS.c.name.label("task"),
        CANDIDATES.c.digest.label("candidate"),
        CANDIDATES.c.proposer,
    ]
    tried = [ATTEMPTS.c.move, ATTEMPTS.c.reused, ATTEMPTS.c.created_at] if run else [t.created_at]
    query = select(*named, t.chip, t.status, t.kind, t.us, *tried, t.record).select_from(TRIALS)
    if run:
        query = query.join(ATTEMPTS, and_(ATTEMPTS.c.trial == t.key, *_begins(ATTEMPTS.c.run_id, run)))
        query = _where(query, *wanted).order_by(ATTEMPTS.c.id).limit(limit)
    else:  # the few rows that are shown first, so that the joins are made for them alone
        latest = _where(select(t.key), *wanted).order_by(t.created_at.desc()).limit(limit)
        query = query.where(t.key.in_(latest.scalar_subquery())).order_by(t.created_at.desc())
    query = query.join(TASKS, TASKS.c.key == t.task).join(CANDIDATES, CANDIDATES.c.key == t.candidate)
    return [_trial(row) for row in _rows(database, query)]


def kernels(database: Database, *, op: str = "", gpu: str = "", status: str = "", limit: int = 50) -> list[Row]:
    """Winners, best first within task and chip.  ``status``: measured, modelled or promoted."""
    t, w = TRIALS.c, WINNERS.c
    query = _winners(
        CANDIDATES.c.digest.label("id"),
        CANDIDATES.c.proposer,
        CANDIDATES.c.note,
        t.key.label("evaluation"),
        w.folder,
        w.promoted_at,
        w.created_at,
    ).order_by(TASKS.c.name, t.chip, case((t.kind == "measured", 0), else_=1), t.us)
    wanted = {"": None, "promoted": w.promoted_at != ""}
    query = _where(
        query, _task_keys(database, t.task, op), t.chip == gpu if gpu else None, wanted.get(status, t.kind == status)
    )
    found: dict[tuple[str, str, str, str], Row] = {}
    for row in map(_trial, _rows(database, query)):
        found.setdefault((row["task"], row["chip"], str(row["shape"]), row["id"]), row)
    return list(found.values())[:limit]


def _winners(*columns: Any) -> Any:
    """Winners with their task's name, their run and their trial, for :func:`_trial`, and ``columns``."""
    t = TRIALS.c
    return (
        select(TASKS.c.name.label("task"), WINNERS.c.run_id, t.chip, t.status, t.kind, t.us, t.record, *columns)
        .select_from(WINNERS)
        .join(TRIALS, t.key == WINNERS.c.trial)
        .join(TASKS, TASKS.c.key == t.task)
        .join(CANDIDATES, CANDIDATES.c.key == t.candidate)
    )


def _trial(row: Row) -> Row:
    """A row with the fields of its trial's record that people ask for in place of the record."""
    record = row.pop("record")
    times = [m for m in record["measurements"] if (m["kind"], m["us"]) == (row["kind"], row["us"])]
    floor = times[0]["floor_us"] if times else None
    shown = {name: record[name] for name in ("configuration", "shape")}
    general = row["status"] == "correct" and not record["infeasible"]
    return row | shown | _said(record) | {"kind": row["kind"] or None, "floor_us": floor, "general": general}


def _said(record: Row) -> Row:
    """What the verdict says, empty before there is one."""
    verdict = record["verdict"] or {}
    return {name: verdict.get(name, "") for name in ("stage", "error_class", "message")}


def tasks(database: Database, *, op: str = "", gpu: str = "") -> list[Row]:
    """Tasks with how often each was tried and the best winner per chip."""
    t = TRIALS.c
    # A chip is counted and not filtered by, so that SQLite reads one index that has all columns, not every record.
    here = t.chip == gpu if gpu else true()
    tried = func.sum(case((here, 1), else_=0)).label("evaluations")
    correct = func.sum(case((and_(here, t.status == "correct"), 1), else_=0)).label("correct")
    count = select(t.task, tried, correct).group_by(t.task).subquery("counts")
    query = (
        select(
            TASKS.c.key.label("id"),
            TASKS.c.name.label("task"),
            TASKS.c.ops,
            TASKS.c.dtype,
            TASKS.c.precision,
            func.coalesce(count.c.evaluations, 0).label("evaluations"),
            func.coalesce(count.c.correct, 0).label("correct"),
        )
        .outerjoin(count, count.c.task == TASKS.c.key)
        .order_by(TASKS.c.name)
    )
    found = _rows(database, _where(query, _op_of_task(op), count.c.evaluations > 0 if gpu else None))
    winners: dict[str, list[Row]] = {}
    for row in kernels(database, op=op, gpu=gpu, limit=10_000):
        best = winners.setdefault(row["task"], [])
        if not any(b["chip"] == row["chip"] and b["shape"] == row["shape"] for b in best):
            best.append({k: row[k] for k in ("chip", "shape", "kind", "us", "floor_us")} | {"kernel": row["id"]})
    return [row | {"best": winners.get(row["task"], [])} for row in found]


# ---------------------------------------------------------------------------------------------------- show

# What an id may name: kind, table, the column with the id.
_NAMED: tuple[tuple[str, Table, str], ...] = (
    ("run", RUNS, "id"),
    ("task", TASKS, "key"),
    ("kernel", CANDIDATES, "digest"),
    ("evaluation", TRIALS, "key"),
    ("rule", RULES, "key"),
    ("fact", FACTS, "key"),
)


def show(database: Database, prefix: str) -> Row:
    """Everything about the one thing whose id begins with ``prefix`` (or the task of that name).

    The row has ``is``: run | task | kernel | evaluation | rule | fact.  Raises UserError if none or several match.
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
    def listed(query: Any) -> list[Row]:
        return [dict(r) for r in connection.execute(query).mappings()]

    t, w = TRIALS.c, WINNERS.c
    best = _winners(CANDIDATES.c.digest.label("kernel"))
    if kind == "evaluation":
        made = CANDIDATES.select().where(CANDIDATES.c.key == row["candidate"])
        ((candidate,), record) = listed(made), row.pop("record")
        mine = {"task": _task_name(connection, row["task"]), "candidate": candidate["digest"]}
        return row | record | _said(record) | mine | {name: candidate[name] for name in ("proposer", "source")}
    if kind == "kernel":
        shown = (t.key.label("evaluation"), t.chip, t.status, t.kind, t.us, t.created_at, t.record)
        tried = select(*shown).where(t.candidate == row["key"]).order_by(t.created_at).limit(200)
        seen = ("evaluation", "chip", "shape", "configuration", "status", "message", "created_at")
        evaluations = [{k: r[k] for k in seen} for r in map(_trial, listed(tried))]
        return row | {"task": _task_name(connection, row["task"]), "evaluations": evaluations}
    if kind == "run":
        won = [_trial(r) for r in listed(best.where(w.run_id == row["id"]).order_by(w.created_at))]
        count = select(func.count()).select_from(ATTEMPTS).where(ATTEMPTS.c.run_id == row["id"])
        winners = [{k: r[k] for k in ("task", "kernel", "kind", "us", "floor_us")} for r in won]
        return row | {"winners": winners, "attempts": connection.execute(count).scalar()}
    if kind == "task":
        won = [_trial(r) for r in listed(best.where(t.task == row["key"]).order_by(t.chip, t.us).limit(50))]
        shown_of = ("kernel", "chip", "shape", "kind", "us", "floor_us", "general", "run_id")
        tried = select(t.status, func.count().label("count")).where(t.task == row["key"]).group_by(t.status)
        return row | {"evaluations": listed(tried), "winners": [{k: r[k] for k in shown_of} for r in won]}
    if kind == "rule":
        return row | {"evidence": listed(EVIDENCE.select().where(EVIDENCE.c.rule == row["key"]))}
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
        return [dict(row) for row in connection.execute(query).mappings()]
