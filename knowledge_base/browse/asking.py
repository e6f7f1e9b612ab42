"""How rows are asked for: filters that an index answers, and rows as dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, select

from knowledge_base.database import Database
from knowledge_base.records import FOREIGN
from knowledge_base.store import trials
from knowledge_base.tables import TASKS, TRIALS, WINNERS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

Row = dict[str, Any]
BEST = ("kernel", "chip", "shape", "kind", "us", "floor_us", "general")  # what is said of a winner


def winners(*columns: Any, tasks: Sequence[str] | None = None, gpu: str = "", foreign: bool = False) -> Any:
    """Winners, best first within task and chip: their task's name, key, chip and shape of their trial, ``columns``.

    ``tasks``: of these (identities) alone.  ``foreign``: those of other bases as well, after this one's.
    """
    t = TRIALS.c
    query = select(TASKS.c.name.label("task"), t.key, t.chip, t.shape, *columns).select_from(WINNERS)
    query = query.join(TRIALS, t.key == WINNERS.c.trial).join(TASKS, TASKS.c.key == t.task)
    # Winners are few and trials many: an expression in place of a column keeps a database from beginning with the
    # trials of that task or chip because they have an index.
    query = where(
        query,
        (t.task + "").in_(tasks) if tasks is not None else None,
        (t.chip + "") == gpu if gpu else None,
        None if foreign else t.status != FOREIGN,
    )
    own_first = (case((t.status == FOREIGN, 1), else_=0), case((t.kind == "measured", 0), else_=1))
    return query.order_by(TASKS.c.name, t.chip, *own_first, t.us)


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


def tasks_of(database: Database, op: str) -> list[str] | None:
    """The identities of the tasks that ``--op`` means; None: all.

    Tasks are few and trials many: with the tasks looked up first, an index on the task is used.
    """
    if not op:
        return None
    with database.read() as connection:
        return list(connection.execute(select(TASKS.c.key).where(op_of_task(op))).scalars())


def among(column: Any, values: Sequence[str] | None) -> Any:
    """The column is one of these; None: no condition."""
    return None if values is None else column.in_(values)


def rows(database: Database, query: Any) -> list[Row]:
    with database.read() as connection:
        return listed(connection, query)


def listed(connection: Connection, query: Any) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]
