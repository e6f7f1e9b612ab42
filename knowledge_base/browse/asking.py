"""How rows are asked for: filters that an index answers, and rows as dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, select

from knowledge_base.database import Database
from knowledge_base.store import trials
from knowledge_base.tables import TASKS, TRIALS, WINNERS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

Row = dict[str, Any]
BEST = ("kernel", "chip", "shape", "kind", "us", "floor_us", "general")  # what is said of a winner


def winners(*columns: Any) -> Any:
    """Winners, best first within task and chip: their task's name, key, chip and shape of their trial, ``columns``."""
    t = TRIALS.c
    return (
        select(TASKS.c.name.label("task"), t.key, t.chip, t.shape, *columns)
        .select_from(WINNERS)
        .join(TRIALS, t.key == WINNERS.c.trial)
        .join(TASKS, TASKS.c.key == t.task)
        .order_by(TASKS.c.name, t.chip, case((t.kind == "measured", 0), else_=1), t.us)
    )


def briefs(connection: Connection, rows: list[Row], only: Sequence[str] = ()) -> list[Row]:
    """Rows with the ``key`` of a trial, and what lists say of that trial in its place: everything, or these fields."""
    found = trials(connection, list(dict.fromkeys(row["key"] for row in rows)))
    said = {trial.key: trial.brief() for trial in found}
    if only:
        said = {key: {name: brief[name] for name in only} for key, brief in said.items()}
    return [{name: value for name, value in row.items() if name != "key"} | said[row["key"]] for row in rows]


def where(query: Any, *conditions: Any) -> Any:
    for condition in conditions:
        if condition is not None:
            query = query.where(condition)
    return query


def begins(column: Any, prefix: str) -> tuple[Any, Any]:
    """``column`` begins with ``prefix``, as a range that an index answers."""
    return column >= prefix, column < prefix + "\U0010ffff"


def of_op(column: Any, op: str) -> Any:
    """``--op`` on a row that names its op: that op, or a name that begins with it."""
    return None if not op else column.startswith(op.replace("-", "_"), autoescape=True)


def op_of_task(op: str) -> Any:
    """``--op`` on tasks: the task's name begins with it, or one of its ops is it."""
    if not op:
        return None
    plain = op.replace("-", "_")
    return TASKS.c.name.startswith(plain, autoescape=True) | TASKS.c.ops.contains(f",{plain},", autoescape=True)


def task_keys(database: Database, column: Any, op: str) -> Any:
    # Tasks are few and trials many: look the tasks up first, so that an index on the task is used.
    if not op:
        return None
    with database.read() as connection:
        return column.in_(list(connection.execute(select(TASKS.c.key).where(op_of_task(op))).scalars()))


def rows(database: Database, query: Any) -> list[Row]:
    with database.read() as connection:
        return listed(connection, query)


def listed(connection: Connection, query: Any) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]
