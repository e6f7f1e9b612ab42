"""The words of all that people search for: what they are, and SQLite's index of them (FTS5), kept up by triggers.

``texts`` has a row of each thing with words (kind, the thing's id, text), ``words`` its full-text index.  Both can be
made anew from the other tables at any time; nothing else reads or writes them but :func:`knowledge_base.browse.search`.
Trials are many and say the same few things: a message is kept once, with the trial that was the first to say it.
Another database has neither: there one looks the tables through, by ILIKE.
Slow to import (SQLAlchemy).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, and_, literal, select, true
from sqlalchemy.dialects import sqlite

from knowledge_base.tables import CALLS, CANDIDATES, FACTS, RULES, TASKS, TRIALS

if TYPE_CHECKING:
    from sqlalchemy import Column
    from sqlalchemy.engine import Connection


@dataclass(frozen=True)
class Source:
    """Where words of a kind stand: the thing's id, its words, whether it has any, and the task that it is of.

    ``changed``: the column of which a change changes the words; None where nothing does.
    """

    thing: Column[Any]
    text: ColumnElement[str]
    has: ColumnElement[bool]
    task: Column[Any] | None = None
    changed: Column[Any] | None = None


_ANSWER = CALLS.c.record["text"].as_string()
_MESSAGE = TRIALS.c.record[("verdict", "message")].as_string()
_F = FACTS.c

SOURCES = {
    "task": Source(TASKS.c.key, TASKS.c.name + "\n" + TASKS.c.snf, true(), TASKS.c.key),
    "kernel": Source(CANDIDATES.c.digest, CANDIDATES.c.note + "\n" + CANDIDATES.c.source, true(), CANDIDATES.c.task),
    "rule": Source(RULES.c.key, RULES.c.statement, true(), changed=RULES.c.statement),
    "fact": Source(_F.key, _F.subject + " " + _F.name + ": " + _F.value + " " + _F.unit + " " + _F.source, true()),
    "call": Source(CALLS.c.key, _ANSWER, _ANSWER != "", CALLS.c.task, CALLS.c.record),
    "trial": Source(
        TRIALS.c.key, _MESSAGE, and_(TRIALS.c.status != "correct", _MESSAGE != ""), TRIALS.c.task, TRIALS.c.record
    ),
}

_TABLES = (
    "CREATE TABLE texts (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, thing TEXT NOT NULL, text TEXT NOT NULL,"
    " UNIQUE (kind, thing))",
    "CREATE UNIQUE INDEX uq_texts_of_trials ON texts (text) WHERE kind = 'trial'",
    "CREATE VIRTUAL TABLE words USING fts5(text, content='texts', content_rowid='id')",
    "CREATE TRIGGER words_gain AFTER INSERT ON texts BEGIN"
    " INSERT INTO words (rowid, text) VALUES (new.id, new.text); END",
    "CREATE TRIGGER words_lose AFTER DELETE ON texts BEGIN"
    " INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text); END",
)
_ADD = "INSERT OR IGNORE INTO texts (kind, thing, text)"


def install(connection: Connection) -> None:
    """Makes the index where there is none, and triggers that are missing: a migration that copies a table drops them.

    Nothing is done on a database that is not SQLite.
    """
    if connection.dialect.name != "sqlite":
        return
    new = not connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'texts'").first()
    for statement in _TABLES if new else ():
        connection.exec_driver_sql(statement)
    for kind, source in SOURCES.items():
        if new:
            known = select(literal(kind), source.thing, source.text).where(source.has)
            connection.exec_driver_sql(f"{_ADD} {_sql(known)}")
        table = source.thing.table.name
        thing, words, has = (_sql(part, table, "new") for part in (source.thing, source.text, source.has))
        added = f"{_ADD} SELECT '{kind}', {thing}, {words} WHERE {has}"
        gone = f"DELETE FROM texts WHERE kind = '{kind}' AND thing = {_sql(source.thing, table, 'old')}"
        _trigger(connection, f"texts_{kind}_gain", f"AFTER INSERT ON {table}", added)
        _trigger(connection, f"texts_{kind}_lose", f"AFTER DELETE ON {table}", gone)
        if source.changed is not None:
            event = f"AFTER UPDATE OF {source.changed.name} ON {table}"
            _trigger(connection, f"texts_{kind}_change", event, gone, added)


def _sql(expression: Any, table: str = "", row: str = "") -> str:
    """An expression as SQLite's text; in a trigger of a table its columns are those of the ``row``: new or old."""
    said = str(expression.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    return said.replace(f"{table}.", f"{row}.") if row else said


def _trigger(connection: Connection, name: str, event: str, *actions: str) -> None:
    body = "; ".join(actions)
    connection.exec_driver_sql(f"CREATE TRIGGER IF NOT EXISTS {name} {event} BEGIN {body}; END")
