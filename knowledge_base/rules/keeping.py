"""Rules and their evidence in the knowledge base: what mining finds is kept, what evidence says of others is noted.

A rule is hypothesised until there is evidence on which the shapes agree, then supported or refuted, and superseded by
one that says the same of more.  Where new evidence contradicts the old it is hypothesised again.  Each change of status
is kept in the rule's history with the figures that it was made for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowledge_base.content import content_key

from .form import RuleForm, form_of
from .mined import Direction, Mined, ShapeEvidence
from .wording import statement

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from knowledge_base.database import Database

    from .spaces import Space

MINED = "mined"  # the origin of rules that nobody wrote
SHIPPED = "mined from the landscapes that ship"  # the source of rules


@dataclass(frozen=True)
class Change:
    """What became of a rule.  was: empty for a new one."""

    key: str
    statement: str
    was: str
    status: str
    why: str


@dataclass(frozen=True)
class Lesson:
    """What a base's own measured configurations and those that ship taught.  changes: of rules."""

    configurations: int
    own: int
    spaces: int
    changes: tuple[Change, ...]

    @property
    def says(self) -> str:
        """In a line."""
        if not self.changes:
            return "no rule changed"
        became = Counter("new" if not change.was else change.status for change in self.changes)
        return f"of the rules, {', '.join(f'{number} {status}' for status, number in became.items())}"


def learn(database: Database, most: int | None = None) -> Lesson | None:
    """Mines what ships and the base's own measured configurations, and holds every rule of the base to them.

    None where the base has more than ``most`` of its own: then nothing was done, as it would take long.
    """
    from .rows import own, shipped
    from .spaces import in_spaces

    ours = list(own(database, None if most is None else most + 1))
    if most is not None and len(ours) > most:
        return None
    theirs = list(shipped())
    some = in_spaces([*theirs, *ours])
    source = f"{SHIPPED} and {len(ours)} configurations of this base" if ours else SHIPPED
    return Lesson(len(theirs) + len(ours), len(ours), len(some), tuple(review(database, some, source)))


def review(database: Database, some: Sequence[Space], source: str) -> list[Change]:
    """Mines ``some`` and holds every rule of the base to them; what changed, new rules first.

    source: what the rules were mined from, in words.
    """
    from sqlalchemy import select

    from knowledge_base.tables import RULES

    from .mining import mine

    def stored(connection: Connection) -> dict[str, dict[str, Any]]:
        return {row["key"]: dict(row) for row in connection.execute(select(RULES)).mappings()}

    with database.read() as connection:
        known = stored(connection)
    found = {key_of(rule.form, rule.direction): rule for rule in mine(some)}
    looked = {key: _looked(row, some) for key, row in known.items() if key not in found}
    changes: list[Change] = []
    with database.write() as connection:
        known = stored(connection)  # another process may have mined meanwhile
        for key, rule in found.items():
            if key not in known:
                insert(connection, {key: rule}, source)
                changes.append(Change(key, statement(rule.form, rule.direction), "", "supported", _why(rule)))
            else:
                changes += _note(connection, known[key], rule, "supported", "")
        for key, held in looked.items():
            if held is None or key not in known:
                continue
            row = known[key]
            wider = _wider(row, held, found)
            changes += _note(connection, row, held, "superseded" if wider else _status(row, held), wider)
    return changes


def key_of(form: RuleForm, direction: Direction) -> str:
    """A rule's key: of what it says, whatever the figures, and whoever said it."""
    return content_key("rule", statement(form, direction), form.document())


def insert(connection: Connection, rules: Mapping[str, Mined], source: str) -> None:
    """Stores rules that are not there yet, with their evidence."""
    from knowledge_base.tables import EVIDENCE, RULES, now

    rows: list[dict[str, Any]] = []
    evidence: list[dict[str, Any]] = []
    for key, rule in rules.items():
        history = [{"was": "hypothesised", "status": "supported", "why": _why(rule), "at": now()}]
        rows.append(
            {
                "key": key, "statement": statement(rule.form, rule.direction), "status": "supported",
                "op": rule.form.scope.op, "chip": rule.form.scope.chip, "form": rule.form.document(),
                "claimed": {"direction": rule.direction}, "source": source, "origin": MINED, "superseded_by": "",
                "created_at": now(), "updated_at": now(), "history": history, **_figures(rule),
            }
        )  # fmt: skip
        evidence += _evidence(key, rule)
    if rows:
        connection.execute(RULES.insert(), rows)
        connection.execute(EVIDENCE.insert(), evidence)


def _looked(row: Mapping[str, Any], some: Sequence[Space]) -> Mined | None:
    """What there is for or against a rule of the base."""
    from .mining import judged

    form = form_of(row)
    return judged(some, form, claimed(row)) if form else None


def claimed(row: Mapping[str, Any]) -> Direction:
    """What a rule of the base says its conditions do."""
    said: Direction = row["claimed"].get("direction", "faster")
    return said


def _status(row: Mapping[str, Any], held: Mined) -> str:
    if not held.settled:
        return "hypothesised"
    return "supported" if held.direction == claimed(row) else "refuted"


def _wider(row: Mapping[str, Any], rule: Mined, found: Mapping[str, Mined]) -> str:
    """The key of a new rule that says the same of all that a mined one speaks of, and of more; empty if none does."""
    if row["origin"] != MINED or rule.direction != claimed(row):
        return ""
    shapes = {_shape(one) for one in rule.evidence}
    for key, other in found.items():
        same = (other.direction, other.form.when) == (rule.direction, rule.form.when)
        if same and shapes <= {_shape(one) for one in other.evidence}:
            return key
    return ""


def _shape(one: ShapeEvidence) -> tuple[Any, ...]:
    return one.task, one.chip, one.dtype, tuple(sorted(one.sizes.items()))


def _note(connection: Connection, row: Mapping[str, Any], rule: Mined, status: str, by: str) -> list[Change]:
    """Puts evidence in the place of what a rule had, and its status with it."""
    from knowledge_base.tables import EVIDENCE, RULES, now

    key = row["key"]
    new: dict[str, Any] = {**_figures(rule), "superseded_by": by}
    changed = []
    if row["status"] != status:
        change = {"was": row["status"], "status": status, "why": _why(rule), "at": now()}
        new |= {"status": status, "history": [*(row["history"] or []), change]}
        changed.append(Change(key, row["statement"], row["status"], status, _why(rule)))
    if any(row[name] != value for name, value in new.items()):
        connection.execute(RULES.update().where(RULES.c.key == key).values(**new, updated_at=now()))
        mined = (EVIDENCE.c.rule == key) & (EVIDENCE.c.kind == "measured") & EVIDENCE.c.with_trial.is_(None)
        connection.execute(EVIDENCE.delete().where(mined))
        connection.execute(EVIDENCE.insert(), list(_evidence(key, rule)))
    return changed


def _figures(rule: Mined) -> dict[str, Any]:
    effect, low, high = rule.best.value, rule.best.low, rule.best.high
    paired = rule.paired.model_dump() | {"pairs": rule.pairs}
    return {"effect": effect, "effect_low": low, "effect_high": high, "paired": paired}


def _why(rule: Mined) -> str:
    shapes = f"{rule.agreeing} of {len(rule.evidence)} shapes"
    if rule.settled:
        return f"{rule.direction} in {shapes}, {rule.pairs} pairs"
    return f"open: {shapes} do not contradict that it is {rule.direction}, {rule.pairs} pairs"


def _evidence(key: str, rule: Mined) -> Iterator[dict[str, Any]]:
    from knowledge_base.tables import now

    for one in rule.evidence:
        place = one.model_dump(mode="json", include={"task", "sizes", "chip", "dtype", "sessions"})
        yield {
            "key": content_key("evidence", key, place), "rule": key, "kind": "measured", "with_trial": None,
            "without_trial": None, "log_ratio": one.best, "paired": one.paired, "pairs": one.pairs, "place": place,
            "note": "" if one.agrees else "says the contrary", "created_at": now(),
        }  # fmt: skip
