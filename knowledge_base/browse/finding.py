"""Searching by words: tasks, kernels, rules, facts, answers of models, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import func, literal, select, text, union_all

from knowledge_base.browse.asking import Row, listed
from knowledge_base.database import Database
from knowledge_base.tables import TASKS, TRIALS
from knowledge_base.text_index import SOURCES

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

KINDS = tuple(SOURCES)
OPEN, CLOSE = "\x02", "\x03"  # around what was found, within a snippet
AROUND = 60  # characters of a snippet on either side
_LOOKED_THROUGH = 20_000  # trials, the latest, where there is no index


def search(database: Database, words: Sequence[str], *, kinds: Sequence[str] = (), limit: int = 20) -> list[Row]:
    """What has all of the words (or begins of words; several in one are a phrase), what fits best first.

    kinds: of KINDS, by default all.  A row: ``is``, ``id``, ``of`` (a task's name, where the thing is of one) and
    ``text``, a snippet with what was found between OPEN and CLOSE.
    """
    asked = ["".join(c if c.isprintable() else " " for c in word) for word in words]
    asked = [word for word in asked if any(letter.isalnum() for letter in word)]
    if not asked:
        return []
    with database.read() as connection:
        if _indexed(connection):
            found = _by_index(connection, asked, kinds or KINDS, limit)
        else:
            found = _by_looking(connection, asked, kinds or KINDS, limit)
        return [row | {"of": _task_of(connection, row)} for row in found]


def _indexed(connection: Connection) -> bool:
    if connection.dialect.name != "sqlite":
        return False
    return connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'words'").first() is not None


def _by_index(connection: Connection, words: Sequence[str], kinds: Sequence[str], limit: int) -> list[Row]:
    phrases = " AND ".join('"' + word.replace('"', '""') + '" *' for word in words)
    query = text(
        "SELECT texts.kind AS \"is\", texts.thing AS id, snippet(words, 0, :open, :close, '…', 16) AS text"
        " FROM words JOIN texts ON texts.id = words.rowid"
        f" WHERE words MATCH :phrases AND texts.kind IN ({', '.join(f':kind{i}' for i in range(len(kinds)))})"
        " ORDER BY rank LIMIT :limit"
    )
    given = {"phrases": phrases, "open": OPEN, "close": CLOSE, "limit": limit}
    return listed(connection, query.bindparams(**given, **{f"kind{i}": kind for i, kind in enumerate(kinds)}))


def _by_looking(connection: Connection, words: Sequence[str], kinds: Sequence[str], limit: int) -> list[Row]:
    """Without an index: tables are looked through, of trials the latest; newer things come first."""
    latest = select(TRIALS.c.key).order_by(TRIALS.c.created_at.desc()).limit(_LOOKED_THROUGH).scalar_subquery()
    parts = []
    for kind in kinds:
        source = SOURCES[kind]
        wanted = [source.has, *(source.text.icontains(word, autoescape=True) for word in words)]
        wanted += [TRIALS.c.key.in_(latest)] if kind == "trial" else []
        created_at = source.thing.table.c.created_at
        columns = (literal(kind).label("is"), source.thing.label("id"), source.text.label("text"), created_at)
        parts.append(select(*columns).where(*wanted))
    every = union_all(*parts).subquery()
    who = func.row_number().over(partition_by=(every.c["is"], every.c.text), order_by=every.c.created_at).label("who")
    first = select(every, who).subquery()
    query = select(first.c["is"], first.c.id, first.c.text).where(first.c.who == 1)
    rows = listed(connection, query.order_by(first.c.created_at.desc()).limit(limit))
    return [row | {"text": _snippet(row["text"], words)} for row in rows]


def _snippet(whole: str, words: Sequence[str]) -> str:
    plain = whole.lower()
    at = max(0, plain.find(words[0].lower()))
    start, end = max(0, at - AROUND), min(len(whole), at + AROUND)
    shown = whole[start:at] + OPEN + whole[at : at + len(words[0])] + CLOSE + whole[at + len(words[0]) : end]
    return ("…" if start else "") + shown + ("…" if end < len(whole) else "")


def _task_of(connection: Connection, row: Row) -> str:
    """The name of the task that a thing is, or is of; empty for what is of none."""
    source = SOURCES[row["is"]]
    if source.task is None:
        return ""
    task = select(source.task).where(source.thing == row["id"]).limit(1).scalar_subquery()
    return str(connection.execute(select(TASKS.c.name).where(TASKS.c.key == task)).scalar() or "")
