"""The words of everything that people search for, indexed by SQLite (FTS5) and kept up by triggers.

``texts`` has a row of each thing with words (kind, the thing's id, text), ``words`` its full-text index.  Both can be
made anew from the other tables at any time; nothing else reads or writes them but :func:`knowledge_base.browse.search`.
Trials are many and say the same few things: a message is kept once, with the trial that was the first to say it.
Another database has neither: there one looks the tables through, by ILIKE.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

# Kind → table, the thing's id, its words; when it has any.  Columns of a row are named ``:column``.
SOURCES: dict[str, tuple[str, str, str, str]] = {
    "task": ("tasks", ":key", ":name || char(10) || :snf", "1"),
    "kernel": ("candidates", ":digest", ":note || char(10) || :source", "1"),
    "rule": ("rules", ":key", ":statement", "1"),
    "fact": ("facts", ":key", ":subject || ' ' || :name || ': ' || :value || ' ' || :unit || ' ' || :source", "1"),
    "call": ("llm_calls", ":key", "json_extract(:record, '$.text')", "json_extract(:record, '$.text') <> ''"),
    "trial": (
        "trials", ":key", "json_extract(:record, '$.verdict.message')",
        ":status <> 'correct' AND json_extract(:record, '$.verdict.message') <> ''",
    ),
}  # fmt: skip
# Columns whose change changes the words.
_CHANGE = {"call": "record", "trial": "record", "rule": "statement"}

_TABLES = (
    "CREATE TABLE texts (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, thing TEXT NOT NULL, text TEXT NOT NULL,"
    " UNIQUE (kind, thing))",
    "CREATE UNIQUE INDEX uq_texts_of_trials ON texts (text) WHERE kind = 'trial'",
    "CREATE VIRTUAL TABLE words USING fts5(text, content='texts', content_rowid='id')",
    "CREATE TRIGGER words_gain AFTER INSERT ON texts BEGIN"
    " INSERT INTO words (rowid, text) VALUES (new.id, new.text); END",
    "CREATE TRIGGER words_lose AFTER DELETE ON texts BEGIN"
    " INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text); END",
    "CREATE TRIGGER words_change AFTER UPDATE ON texts BEGIN"
    " INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text);"
    " INSERT INTO words (rowid, text) VALUES (new.id, new.text); END",
)


def install(connection: Connection) -> None:
    """Makes the index where there is none, and triggers that are missing: a migration that copies a table drops them.

    Nothing is done on a database that is not SQLite.
    """
    if connection.dialect.name != "sqlite":
        return
    new = not connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'texts'").first()
    for statement in _TABLES if new else ():
        connection.exec_driver_sql(statement)
    for kind, (table, thing, text, when) in SOURCES.items():
        if new:
            known = _insert(kind, *(_of("", part) for part in (thing, text, when)))
            connection.exec_driver_sql(known.replace(" WHERE ", f" FROM {table} WHERE ", 1))
        added = _insert(kind, *(_of("new.", part) for part in (thing, text, when)))
        gone = f"DELETE FROM texts WHERE kind = '{kind}' AND thing = {_of('old.', thing)}"
        _trigger(connection, f"texts_{kind}_gain", f"AFTER INSERT ON {table}", added)
        _trigger(connection, f"texts_{kind}_lose", f"AFTER DELETE ON {table}", gone)
        if kind in _CHANGE:
            _trigger(connection, f"texts_{kind}_change", f"AFTER UPDATE OF {_CHANGE[kind]} ON {table}", gone, added)


def _of(row: str, expression: str) -> str:
    """The expression with its columns taken from ``new.``, ``old.`` or the table that is read."""
    return re.sub(r":(\w+)", row + r"\1", expression)


def _insert(kind: str, thing: str, text: str, when: str) -> str:
    return f"INSERT OR IGNORE INTO texts (kind, thing, text) SELECT '{kind}', {thing}, {text} WHERE {when}"


def _trigger(connection: Connection, name: str, event: str, *actions: str) -> None:
    body = "; ".join(actions)
    connection.exec_driver_sql(f"CREATE TRIGGER IF NOT EXISTS {name} {event} BEGIN {body}; END")
