"""Which candidate was made from which: the tree that one stands in, and what changed on the way to it."""

from __future__ import annotations

import difflib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, func, select

from knowledge_base.browse.asking import Row, listed
from knowledge_base.records import COMPILED, FOREIGN, PRUNED
from knowledge_base.tables import CANDIDATES, TASKS, TRIALS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

MANY = 60  # candidates of a tree that are told of, and steps back to its first one


def lineage(connection: Connection, digest: str) -> tuple[list[Row], list[Row]]:
    """The tree of a candidate (digest), parents before children; and the steps from its first one to it.

    A row of the tree: kernel, parent, depth, task, proposer, note, here (whether it is that one), and of its trials
    the best: status, chip, kind, us.  A step: from, to, note and ``diff``, unified.
    """
    path = _path(connection, digest)
    known = {row["digest"]: row for row in path}
    depths = {row["digest"]: depth for depth, row in enumerate(path)}
    waiting = [row["digest"] for row in path]
    while waiting and len(known) < MANY:
        for row in _candidates(connection, CANDIDATES.c.parent.in_(waiting)):
            known.setdefault(row["digest"], row)
        waiting = [name for name, row in known.items() if name not in depths and row["parent"] in depths]
        depths |= {name: depths[known[name]["parent"]] + 1 for name in waiting}
    return _tree(connection, known, depths, digest), _steps(path)


def _path(connection: Connection, digest: str) -> list[Row]:
    """From the first candidate that is known to this one."""
    path: list[Row] = []
    while digest and len(path) < MANY and digest not in {row["digest"] for row in path}:
        found = _candidates(connection, CANDIDATES.c.digest == digest)
        if not found:
            break
        path.append(found[0])
        digest = found[0]["parent"]
    return path[::-1]


def _candidates(connection: Connection, condition: Any) -> list[Row]:
    c = CANDIDATES.c
    columns = (c.key, c.digest, c.parent, c.proposer, c.note, c.source, c.created_at, TASKS.c.name.label("task"))
    query = select(*columns).join(TASKS, TASKS.c.key == c.task).where(condition)
    return listed(connection, query.order_by(c.created_at, c.key).limit(MANY))


def _tree(connection: Connection, known: dict[str, Row], depths: dict[str, int], digest: str) -> list[Row]:
    bests = _bests(connection, [row["key"] for row in known.values()])
    none = {"status": "", "chip": "", "kind": None, "us": None}
    children: dict[str, list[str]] = {}
    for name, row in sorted(known.items(), key=lambda one: (one[1]["created_at"], one[0])):
        if name in depths:
            children.setdefault(row["parent"] if row["parent"] in depths else "", []).append(name)
    ordered: list[Row] = []
    waiting = children.pop("", [])[::-1]
    while waiting:
        name = waiting.pop()
        row = known[name]
        said = {field: row[field] for field in ("parent", "task", "proposer", "note", "created_at")}
        place = {"kernel": name, "depth": depths[name], "here": name == digest}
        ordered.append(place | said | bests.get(row["key"], none))
        waiting += children.pop(name, [])[::-1]
    return ordered


def _bests(connection: Connection, keys: list[str]) -> dict[str, Row]:
    """Of each candidate (key) its best trial: correct ones come before unjudged ones, and foreign ones last.

    Of equals measured ones come first.
    """
    t = TRIALS.c
    unjudged = t.status.in_((COMPILED, PRUNED))
    said = ((unjudged & t.us.is_not(None), 2), (unjudged, 3), (t.status == FOREIGN, 4))
    rank = case((t.status == "correct", 0), *said, else_=1)
    place = func.row_number().over(partition_by=t.candidate, order_by=(rank, t.kind == "modelled", t.us, t.key))
    ranked = select(t.candidate, t.status, t.chip, t.kind, t.us, place.label("place")).where(t.candidate.in_(keys))
    found = ranked.subquery()
    rows = listed(connection, select(found).where(found.c.place == 1))
    return {row["candidate"]: {name: row[name] or None for name in ("status", "chip", "kind", "us")} for row in rows}


def _steps(path: list[Row]) -> list[Row]:
    steps = []
    for before, after in pairwise(path):
        texts = (before["source"].splitlines(), after["source"].splitlines())
        names = (before["digest"][:8], after["digest"][:8])
        diff = "\n".join(difflib.unified_diff(*texts, *names, lineterm=""))
        steps.append({"from": before["digest"], "to": after["digest"], "note": after["note"], "diff": diff})
    return steps
