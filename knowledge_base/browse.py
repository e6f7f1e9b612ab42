"""What people browse: the rows behind ``agent kb``, as plain dictionaries ready for a table or for JSON.

Reading only.  Each function makes few queries that an index answers; ids are full content keys (the command line shows
prefixes and ``show`` takes them).  Times are µs and always stand beside their kind: measured or modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, and_, case, func, select

from .errors import UserError
from .tables import METADATA

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from .database import Database

Row = dict[str, Any]

RUNS, TASKS, CANDIDATES, EVALUATIONS, MEASUREMENTS, ATTEMPTS, WINNERS, FACTS, RULES, EVIDENCE = (
    METADATA.tables[name]
    for name in (
        "runs", "tasks", "candidates", "evaluations", "measurements", "attempts", "winners", "facts", "rules",
        "rule_evidence",
    )
)  # fmt: skip


def facts(database: Database, *, op: str = "", gpu: str = "") -> list[Row]:
    """Figures and findings with their sources."""
    query = select(FACTS).order_by(FACTS.c.subject, FACTS.c.id)
    query = _where(query, _op(FACTS.c.op, op), FACTS.c.chip == gpu if gpu else None)
    return _rows(database, query)


def rules(database: Database, *, op: str = "", gpu: str = "", status: str = "") -> list[Row]:
    """Rules with how many rows of evidence each has."""
    count = select(EVIDENCE.c.rule_id, func.count().label("evidence")).group_by(EVIDENCE.c.rule_id).subquery("evidence")
    query = (
        select(RULES, func.coalesce(count.c.evidence, 0).label("evidence"))
        .outerjoin(count, count.c.rule_id == RULES.c.id)
        .order_by(RULES.c.status, RULES.c.op, RULES.c.id)
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
    """Evaluations, latest first, each with its task, candidate and best time; of one run: its attempts, in order."""
    e, m = EVALUATIONS, MEASUREMENTS
    wanted = (
        _task_ids(database, e.c.task_id, op),
        e.c.chip == gpu if gpu else None,
        e.c.status == status if status else None,
    )
    best = (  # a measured time hides every modelled one
        select(m.c.id)
        .where(m.c.evaluation_id == e.c.id, m.c.status != "quarantined")
        .order_by(case((m.c.kind == "measured", 0), else_=1), m.c.us)
        .limit(1)
        .correlate(e)
        .scalar_subquery()
    )
    shown = [e.c[n] for n in ("configuration", "chip", "shape", "status", "stage", "error_class", "message")]
    named = [TASKS.c.name.label("task"), CANDIDATES.c.digest.label("candidate"), CANDIDATES.c.proposer]
    tried = [ATTEMPTS.c.move, ATTEMPTS.c.reused, ATTEMPTS.c.created_at] if run else [e.c.created_at]
    query = select(e.c.key.label("id"), *named, *shown, m.c.us, m.c.kind, *tried).select_from(e)
    if run:
        query = query.join(ATTEMPTS, and_(ATTEMPTS.c.evaluation_id == e.c.id, *_begins(ATTEMPTS.c.run_id, run)))
        query = _where(query, *wanted).order_by(ATTEMPTS.c.id).limit(limit)
    else:  # the few rows that are shown first, so that the joins are made for them alone
        latest = _where(select(e.c.id), *wanted).order_by(e.c.id.desc()).limit(limit)
        query = query.where(e.c.id.in_(latest.scalar_subquery())).order_by(e.c.id.desc())
    query = query.join(TASKS, TASKS.c.id == e.c.task_id).join(CANDIDATES, CANDIDATES.c.id == e.c.candidate_id)
    return _rows(database, query.outerjoin(m, m.c.id == best))


def kernels(database: Database, *, op: str = "", gpu: str = "", status: str = "", limit: int = 50) -> list[Row]:
    """Winners, best first within task and chip.  ``status``: measured, modelled or promoted."""
    w = WINNERS
    shown = [
        w.c[n] for n in ("chip", "shape", "kind", "us", "floor_us", "run_id", "folder", "promoted_at", "created_at")
    ]
    query = (
        select(
            CANDIDATES.c.digest.label("id"),
            TASKS.c.name.label("task"),
            CANDIDATES.c.proposer,
            CANDIDATES.c.note,
            EVALUATIONS.c.configuration,
            EVALUATIONS.c.key.label("evaluation"),
            *shown,
        )
        .select_from(w)
        .join(TASKS, TASKS.c.id == w.c.task_id)
        .join(CANDIDATES, CANDIDATES.c.id == w.c.candidate_id)
        .join(EVALUATIONS, EVALUATIONS.c.id == w.c.evaluation_id)
        .order_by(TASKS.c.name, w.c.chip, case((w.c.kind == "measured", 0), else_=1), w.c.us)
    )
    wanted = {"": None, "promoted": w.c.promoted_at != "", "measured": w.c.kind == "measured"}
    query = _where(
        query,
        _task_ids(database, w.c.task_id, op),
        w.c.chip == gpu if gpu else None,
        wanted.get(status, w.c.kind == status),
    )
    found: dict[tuple[str, str, str, str], Row] = {}
    for row in _rows(database, query):
        found.setdefault((row["task"], row["chip"], str(row["shape"]), row["id"]), row)
    return list(found.values())[:limit]


def tasks(database: Database, *, op: str = "", gpu: str = "") -> list[Row]:
    """Tasks with how often each was evaluated and the best winner per chip."""
    counts = select(
        EVALUATIONS.c.task_id,
        func.count().label("evaluations"),
        func.sum(case((EVALUATIONS.c.status == "correct", 1), else_=0)).label("correct"),
    ).group_by(EVALUATIONS.c.task_id)
    if gpu:
        counts = counts.where(EVALUATIONS.c.chip == gpu)
    count = counts.subquery("counts")
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
        .outerjoin(count, count.c.task_id == TASKS.c.id)
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
    ("evaluation", EVALUATIONS, "key"),
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

    row = {k: v for k, v in row.items() if k != "id" or kind == "run"} | {"_id": row["id"]}
    row_id = row.pop("_id")
    if kind == "evaluation":
        task, candidate, proposer, source = connection.execute(
            select(TASKS.c.name, CANDIDATES.c.digest, CANDIDATES.c.proposer, CANDIDATES.c.source)
            .select_from(CANDIDATES)
            .join(TASKS, TASKS.c.id == CANDIDATES.c.task_id)
            .where(CANDIDATES.c.id == row["candidate_id"])
        ).one()
        times = listed(select(MEASUREMENTS).where(MEASUREMENTS.c.evaluation_id == row_id))
        row |= {"task": task, "candidate": candidate, "proposer": proposer, "source": source, "measurements": times}
    elif kind == "kernel":
        e = EVALUATIONS
        shown = [e.c[n] for n in ("chip", "shape", "configuration", "status", "message", "created_at")]
        tried = (
            select(e.c.key.label("evaluation"), *shown).where(e.c.candidate_id == row_id).order_by(e.c.id).limit(200)
        )
        row |= {"task": _task_name(connection, row["task_id"]), "evaluations": listed(tried)}
    elif kind == "run":
        w = WINNERS
        won = (
            select(TASKS.c.name.label("task"), CANDIDATES.c.digest.label("kernel"), w.c.kind, w.c.us, w.c.floor_us)
            .select_from(w)
            .join(TASKS, TASKS.c.id == w.c.task_id)
            .join(CANDIDATES, CANDIDATES.c.id == w.c.candidate_id)
            .where(w.c.run_id == row["id"])
            .order_by(w.c.id)
        )
        count = select(func.count()).select_from(ATTEMPTS).where(ATTEMPTS.c.run_id == row["id"])
        row |= {"winners": listed(won), "attempts": connection.execute(count).scalar()}
    elif kind == "task":
        w = WINNERS
        shown = [w.c[n] for n in ("chip", "shape", "kind", "us", "floor_us", "general", "run_id")]
        won = (
            select(CANDIDATES.c.digest.label("kernel"), *shown)
            .join(CANDIDATES, CANDIDATES.c.id == w.c.candidate_id)
            .where(w.c.task_id == row_id)
            .order_by(w.c.chip, w.c.us)
            .limit(50)
        )
        tried = select(EVALUATIONS.c.status, func.count().label("count")).where(EVALUATIONS.c.task_id == row_id)
        row |= {"evaluations": listed(tried.group_by(EVALUATIONS.c.status)), "winners": listed(won)}
    elif kind == "rule":
        row |= {"evidence": listed(select(EVIDENCE).where(EVIDENCE.c.rule_id == row_id))}
    return {k: v for k, v in row.items() if not k.endswith("_id") or k == "run_id"}


def _task_name(connection: Connection, task_id: int) -> str:
    return str(connection.execute(select(TASKS.c.name).where(TASKS.c.id == task_id)).scalar())


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


def _task_ids(database: Database, column: Any, op: str) -> Any:
    # Tasks are few and evaluations many: look the tasks up first, so that the index on task_id is used.
    if not op:
        return None
    with database.read() as connection:
        return column.in_(list(connection.execute(select(TASKS.c.id).where(_op_of_task(op))).scalars()))


def _rows(database: Database, query: Any) -> list[Row]:
    with database.read() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]
