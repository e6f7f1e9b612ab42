"""The tables of ``agent kb``: one function each, filtered as its options say."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, case, func, select

from knowledge_base.browse.asking import (
    BEST,
    Row,
    among,
    begins,
    briefs,
    listed,
    of_op,
    op_of_task,
    rows,
    tasks_of,
    where,
    winners,
)
from knowledge_base.database import Database
from knowledge_base.records import FOREIGN
from knowledge_base.tables import ATTEMPTS, CALLS, EVIDENCE, FACTS, RULES, RUNS, TALLIES, TASKS, TRIALS, WINNERS


def facts(database: Database, *, op: str = "", gpu: str = "") -> list[Row]:
    """Figures and findings with their sources."""
    query = select(FACTS).order_by(FACTS.c.subject, FACTS.c.created_at)
    query = where(query, of_op(FACTS.c.op, op), FACTS.c.chip == gpu if gpu else None)
    return rows(database, query)


def rules(database: Database, *, op: str = "", gpu: str = "", status: str = "") -> list[Row]:
    """Rules with how many rows of evidence each has."""
    count = select(EVIDENCE.c.rule, func.count().label("evidence")).group_by(EVIDENCE.c.rule).subquery("evidence")
    query = (
        select(RULES, func.coalesce(count.c.evidence, 0).label("evidence"))
        .outerjoin(count, count.c.rule == RULES.c.key)
        .order_by(RULES.c.status, RULES.c.op, func.abs(RULES.c.effect).desc(), RULES.c.created_at)
    )
    chip = RULES.c.chip.in_((gpu, "")) if gpu else None  # a rule without a chip speaks of every chip
    return rows(database, where(query, of_op(RULES.c.op, op), chip, RULES.c.status == status if status else None))


def runs(database: Database, *, gpu: str = "", status: str = "", limit: int = 50) -> list[Row]:
    """Runs, latest first."""
    query = select(RUNS).order_by(RUNS.c.started_at.desc()).limit(limit)
    return rows(
        database, where(query, RUNS.c.chip == gpu if gpu else None, RUNS.c.status == status if status else None)
    )


def attempts(
    database: Database, *, op: str = "", gpu: str = "", status: str = "", run: str = "", limit: int = 50
) -> list[Row]:
    """Trials, latest first, each with its task's name; of one run: its attempts, in order."""
    t = TRIALS.c
    of_tasks = among(t.task, tasks_of(database, op))
    wanted = (of_tasks, t.chip == gpu if gpu else None, t.status == status if status else None)
    tried = [ATTEMPTS.c.move, ATTEMPTS.c.reused, ATTEMPTS.c.created_at] if run else [t.created_at]
    query = select(t.key, TASKS.c.name.label("task"), *tried).select_from(TRIALS)
    if run:
        query = query.join(ATTEMPTS, and_(ATTEMPTS.c.trial == t.key, *begins(ATTEMPTS.c.run_id, run)))
        query = where(query, *wanted).order_by(ATTEMPTS.c.id).limit(limit)
    else:  # the few rows that are shown first, so that the joins are made for them alone
        latest = where(select(t.key), *wanted).order_by(t.created_at.desc()).limit(limit)
        query = query.where(t.key.in_(latest.scalar_subquery())).order_by(t.created_at.desc())
    with database.read() as connection:
        return briefs(connection, listed(connection, query.join(TASKS, TASKS.c.key == t.task)))


def calls(database: Database, *, op: str = "", status: str = "", run: str = "", limit: int = 50) -> list[Row]:
    """Calls of language models, latest first, without their texts; of one run: in its order."""
    c = CALLS.c
    asked, came = (c.run_id, c.number, c.model, c.move), (c.candidate, c.status, c.paid)
    cost = (c.tokens_in, c.tokens_out, c.cost_usd, c.seconds)
    query = select(c.key.label("call"), TASKS.c.name.label("task"), *asked, *came, *cost, c.created_at)
    query = query.join(TASKS, TASKS.c.key == c.task)
    query = query.order_by(c.created_at if run else c.created_at.desc()).limit(limit)
    of_run = and_(*begins(c.run_id, run)) if run else None
    wanted = (among(c.task, tasks_of(database, op)), c.status == status if status else None, of_run)
    return rows(database, where(query, *wanted))


def kernels(database: Database, *, op: str = "", gpu: str = "", status: str = "", limit: int = 50) -> list[Row]:
    """Winners, best first within task and chip, other bases' last.

    ``status``: measured, modelled or promoted (this base's alone), or foreign.
    """
    t, w = TRIALS.c, WINNERS.c
    columns = (w.run_id, w.folder, w.promoted_at, w.created_at, t.candidate)
    query = winners(*columns, tasks=tasks_of(database, op), gpu=gpu, foreign=status in ("", FOREIGN))
    wanted = {"": None, "promoted": w.promoted_at != "", FOREIGN: t.status == FOREIGN}
    query = where(query, wanted.get(status, t.kind == status))
    found: dict[tuple[str, str, str], Row] = {}
    with database.read() as connection:
        for row in listed(connection, query):
            found.setdefault((row["chip"], row.pop("shape"), row.pop("candidate")), row)
        return briefs(connection, list(found.values())[:limit])


def specifications(database: Database, identities: Sequence[str]) -> dict[str, str]:
    """The SNF of tasks, by identity."""
    query = select(TASKS.c.key, TASKS.c.snf).where(TASKS.c.key.in_(set(identities)))
    return {row["key"]: row["snf"] for row in rows(database, query)}


def tasks(database: Database, *, op: str = "", gpu: str = "") -> list[Row]:
    """Tasks with how often each was tried, here and in other bases, and the best winner per chip and shape."""
    t, y = TRIALS.c, TALLIES.c
    tried = func.sum(case((y.status == FOREIGN, 0), else_=y.trials)).label("trials")
    correct = func.sum(case((y.status == "correct", y.trials), else_=0)).label("correct")
    foreign = func.sum(case((y.status == FOREIGN, y.trials), else_=0)).label("foreign")
    count = (
        where(select(y.task, tried, correct, foreign), y.chip == gpu if gpu else None)
        .group_by(y.task)
        .subquery("counts")
    )
    query = (
        select(
            TASKS.c.key.label("identity"),
            TASKS.c.name.label("task"),
            TASKS.c.ops,
            TASKS.c.dtype,
            TASKS.c.precision,
            func.coalesce(count.c.trials, 0).label("trials"),
            func.coalesce(count.c.correct, 0).label("correct"),
            func.coalesce(count.c.foreign, 0).label("foreign"),
        )
        .outerjoin(count, count.c.task == TASKS.c.key)
        .order_by(TASKS.c.name)
    )
    found = rows(database, where(query, op_of_task(op), count.c.trials + count.c.foreign > 0 if gpu else None))
    won = winners(t.task.label("identity"), tasks=tasks_of(database, op), gpu=gpu)
    first: dict[tuple[str, str, str], Row] = {}
    best: dict[str, list[Row]] = {}
    with database.read() as connection:
        for row in listed(connection, won):
            first.setdefault((row["identity"], row["chip"], row.pop("shape")), row)
        for row in briefs(connection, list(first.values()), BEST):
            del row["task"]
            best.setdefault(row.pop("identity"), []).append(row)
    return [row | {"best": best.get(row["identity"], [])} for row in found]
