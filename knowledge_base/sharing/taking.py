"""Import: another base's rows beside one's own.

Nothing of it replaces anything.  A trial becomes *foreign*: under a key of its own, whose verdict and times are the
other base's word, until a run judges its candidate here.  A rule that is not here enters as hypothesised; what the
other base makes of a rule, and its evidence, stand below the rule as claimed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from knowledge_base.content import canonical as canonical_text
from knowledge_base.content import content_key, plain
from knowledge_base.database import Database
from knowledge_base.records import FOREIGN, Trial, trial_key
from knowledge_base.sharing import parcel
from knowledge_base.sharing.lines import (
    MOST_CLAIMED,
    CandidateLine,
    EvidenceLine,
    FactLine,
    Header,
    Line,
    LineCheck,
    RuleLine,
    TaskLine,
    TrialLine,
    read_header,
    read_line,
)
from knowledge_base.store import COUNTED, candidate_key, candidate_row, count, store_new, task_row
from knowledge_base.tables import BASES, CANDIDATES, EVIDENCE, FACTS, RULES, TASKS, TRIALS, WINNERS, now

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

IMPORT = "import"  # the origin of rules and facts
_MANY = 500  # lines of one transaction: other writers wait for no more


@dataclass(frozen=True)
class Origin:
    """Where lines come from.  older: a later export of the same base is here already."""

    base: str
    older: bool


def take(database: Database, path: Path) -> dict[str, Any]:
    """Stores what a file has; of which base it is, and how many things of each kind were new, changed or known.

    The whole file is read and checked before anything is stored.  To import it again changes nothing; a later export of
    the same base brings what changed there, and an older one (``older`` in the answer) what is not here alone.
    Raises UserError for a file that is damaged, or holds what is not as its key says.
    """
    header = _checked(path)
    with database.read() as connection:
        last = connection.execute(select(BASES.c.exported_at).where(BASES.c.key == header.base)).scalar() or ""
    origin = Origin(header.base, older=header.made_at < last)
    took: dict[str, Counter[str]] = {}
    lines = _read(path)
    while some := list(islice(lines, _MANY)):
        with database.write() as connection:
            for kind, change in _store(connection, origin, some):
                took.setdefault(kind, Counter())[change] += 1
    counted = {kind: dict(sorted(changes.items())) for kind, changes in took.items()}
    if any(set(changes) != {"known"} for changes in counted.values()):
        with database.write() as connection:
            seen = {"file": path.name[:255], "imported_at": now(), "took": counted}
            seen["exported_at"] = max(last, header.made_at)
            store_new(connection, BASES, [{"key": header.base, "own": False, **seen}])
            connection.execute(BASES.update().where(BASES.c.key == header.base).values(**seen))
    return {"file": str(path), "base": header.base, "made_at": header.made_at, "older": origin.older, "took": counted}


def _checked(path: Path) -> Header:
    """The first line of a file, all of which was looked at."""
    header, check = None, LineCheck()
    for number, document in parcel.read(path):
        where = f"{path}, line {number}"
        if header is None:
            header = read_header(document, where)
        else:
            read_line(document, where, check)
    assert header is not None, "a file that is whole has a first line"
    return header


def _read(path: Path) -> Iterator[Line]:
    for number, document in parcel.read(path):
        if number > 1:
            yield read_line(document, f"{path}, line {number}")


def _store(connection: Connection, origin: Origin, lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
    """Stores lines, in their order; (kind, new | changed | known) of each."""
    at = 0
    while at < len(lines):
        kind = type(lines[at])
        some: list[Any] = []
        while at < len(lines) and isinstance(lines[at], kind):
            some.append(lines[at])
            at += 1
        changes = _STORED[kind](connection, origin, some)
        yield from ((line.kind, change) for line, change in zip(some, changes, strict=True))


def _tasks(connection: Connection, _: Origin, lines: Sequence[TaskLine]) -> list[str]:
    new = store_new(connection, TASKS, [task_row(line.task) for line in lines])
    return ["new" if line.key in new else "known" for line in lines]


def _candidates(connection: Connection, _: Origin, lines: Sequence[CandidateLine]) -> list[str]:
    rows = [candidate_row(line.candidate, "") for line in lines]
    new = store_new(connection, CANDIDATES, rows)
    return ["new" if row["key"] in new else "known" for row in rows]


def _trials(connection: Connection, origin: Origin, lines: Sequence[TrialLine]) -> list[str]:
    t = TRIALS.c
    rows = [_trial_row(line, line.trial, origin) for line in lines]
    keys = [line.key for line in lines] + [row["key"] for row in rows]
    found = connection.execute(select(t.key, t.record).where(t.key.in_(keys))).all()
    here = {row.key: row.record for row in found}
    # What this base itself has in the very same words is nobody else's: it is its own export, or a copy's.
    same = {line.key for line in lines if here.get(line.key) == line.record}
    new = store_new(connection, TRIALS, [row for row, line in zip(rows, lines, strict=True) if line.key not in same])
    changes = []
    tally: Counter[tuple[str, ...]] = Counter()
    for row, line in zip(rows, lines, strict=True):
        if row["key"] in new:
            tally[tuple(row[name] for name in COUNTED)] += 1
            changes.append("new")
        elif line.key in same or here.get(row["key"]) == row["record"] or origin.older:
            changes.append("known")
        else:
            values = {name: row[name] for name in ("kind", "us", "record")}
            connection.execute(TRIALS.update().where(t.key == row["key"]).values(**values))
            changes.append("changed")
    count(connection, tally)
    won = [
        {"key": content_key("winner", one.run, row["key"]), "run_id": one.run, "trial": row["key"], "folder": "",
         "promoted_at": "", "created_at": one.at}
        for row, line in zip(rows, lines, strict=True) if line.key not in same
        for one in line.won
    ]  # fmt: skip
    store_new(connection, WINNERS, won)
    return changes


def _trial_row(line: TrialLine, trial: Trial, origin: Origin) -> dict[str, Any]:
    foreign = trial.fuller(origin=origin.base)
    time = foreign.time
    return {
        "key": trial_key(line.candidate, foreign),
        "task": line.task,
        "candidate": candidate_key(line.task, line.candidate),
        "chip": trial.chip,
        "shape": canonical_text(trial.shape),
        "evaluator": trial.evaluator,
        "status": FOREIGN,
        "standing": FOREIGN,
        "kind": time.kind if time else "",
        "us": time.us if time else None,
        "run_id": line.run,
        "created_at": line.at,
        "record": plain(foreign.model_dump(exclude={"candidate"})),
        "seal": "",
    }


def _facts(connection: Connection, _: Origin, lines: Sequence[FactLine]) -> list[str]:
    said = [line.model_dump(exclude={"kind"}) for line in lines]
    rows = [{"key": content_key("fact", fact), "origin": IMPORT, "created_at": now(), **fact} for fact in said]
    new = store_new(connection, FACTS, rows)
    return ["new" if row["key"] in new else "known" for row in rows]


def _rules(connection: Connection, origin: Origin, lines: Sequence[RuleLine]) -> list[str]:
    found = connection.execute(select(RULES).where(RULES.c.key.in_([line.key for line in lines]))).mappings()
    here = {row["key"]: row for row in found}
    new = store_new(connection, RULES, [_rule_row(line) for line in lines])
    words = [(_word(origin, line), _agrees(here.get(line.key), line)) for line in lines]
    told = _claim(connection, origin, words)
    changed = {word["rule"] for word, _ in words if word["key"] in told}
    return ["new" if line.key in new else "changed" if line.key in changed else "known" for line in lines]


def _rule_row(line: RuleLine) -> dict[str, Any]:
    """A rule as it enters: a claim, whatever it is where it comes from."""
    scope, claimed = line.form["scope"], dict(line.claimed)
    if line.effect is not None:
        claimed = {name: value for name, value in claimed.items() if name not in MOST_CLAIMED}
        faster, ratio = line.effect < 0, math.exp(line.effect)
        claimed |= {"saving": round(1 - ratio, 3)} if faster else {"ratio": round(ratio, 3)}
    return {
        "key": line.key, "statement": line.statement, "status": "hypothesised", "op": scope.get("op", ""),
        "chip": scope.get("chip", ""), "form": line.form, "claimed": claimed, "effect": None, "effect_low": None,
        "effect_high": None, "paired": {}, "history": [], "source": line.source, "origin": IMPORT, "superseded_by": "",
        "created_at": now(), "updated_at": now(),
    }  # fmt: skip


def _agrees(row: Any, line: RuleLine) -> bool:
    """Whether this base says the very same of the rule."""
    figures = ("status", "effect", "effect_low", "effect_high", "paired")
    return row is not None and all(row[name] == getattr(line, name) for name in figures)


def _word(origin: Origin, line: RuleLine) -> dict[str, Any]:
    """What another base makes of a rule as a whole, as evidence of it."""
    place = {"base": origin.base, "status": line.status, "low": line.effect_low, "high": line.effect_high}
    return {
        "key": content_key("evidence", line.key, origin.base), "rule": line.key, "kind": "claimed",
        "with_trial": None, "without_trial": None, "log_ratio": line.effect, "paired": line.paired.get("value"),
        "pairs": int(line.paired.get("pairs") or 0), "place": place, "created_at": now(),
        "note": f"{line.status} in base {origin.base[:8]}",
    }  # fmt: skip


def _evidence(connection: Connection, origin: Origin, lines: Sequence[EvidenceLine]) -> list[str]:
    e = EVIDENCE.c
    places = [line.place.model_dump(mode="json") for line in lines]
    own = [content_key("evidence", line.rule, place) for line, place in zip(lines, places, strict=True)]
    here = {row.key: row.log_ratio for row in connection.execute(select(e.key, e.log_ratio).where(e.key.in_(own)))}
    rows = [
        {
            "key": content_key("evidence", line.rule, place, origin.base), "rule": line.rule, "kind": "claimed",
            "with_trial": None, "without_trial": None, "log_ratio": line.log_ratio, "paired": line.paired,
            "pairs": line.pairs, "place": {"base": origin.base} | place, "note": line.note, "created_at": now(),
        }
        for line, place in zip(lines, places, strict=True)
    ]  # fmt: skip
    said = [(row, here.get(key) == row["log_ratio"]) for row, key in zip(rows, own, strict=True)]
    told = _claim(connection, origin, said)
    return ["known" if row["key"] not in told else "changed" if agrees else "new" for row, agrees in said]


def _claim(connection: Connection, origin: Origin, said: Sequence[tuple[dict[str, Any], bool]]) -> set[str]:
    """Stores claims in the place of what the same base said before; the keys of those that are other ones now.

    said: claims, and whether this base says so itself: then there is none, and no longer the one that was.
    """
    e = EVIDENCE.c
    some = connection.execute(select(EVIDENCE).where(e.key.in_([row["key"] for row, _ in said]))).mappings().all()
    here = {row["key"]: {name: row[name] for name in row if name != "created_at"} for row in some}
    new = [
        row for row, agrees in said
        if not agrees and here.get(row["key"]) != {name: row[name] for name in row if name != "created_at"}
    ]  # fmt: skip
    gone = {row["key"] for row, agrees in said if agrees} & here.keys()
    if origin.older:
        new, gone = [row for row in new if row["key"] not in here], set()
    connection.execute(EVIDENCE.delete().where(e.key.in_([*gone, *(row["key"] for row in new)])))
    return store_new(connection, EVIDENCE, new) | gone


_STORED: dict[type, Any] = {
    TaskLine: _tasks,
    CandidateLine: _candidates,
    TrialLine: _trials,
    FactLine: _facts,
    RuleLine: _rules,
    EvidenceLine: _evidence,
}
