"""The knowledge that ships: chips' facts and findings (facts.jsonl), beliefs to be tested (rules.jsonl), and what the
landscapes say (mined.jsonl, written by ``python -m knowledge_base.rules``).

Planting is idempotent: a row's key is the hash of its content.  A planted fact that left the seed is removed; a rule
leaves only if nothing was ever found out about it, a mined one if nothing but what shipped with it was.  Statuses,
effects and evidence are never touched.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from knowledge_base.chips import CHIPS
from knowledge_base.content import content_key
from knowledge_base.errors import UserError
from knowledge_base.rules import SHIPPED, Mined, insert, key_of, read_form

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from knowledge_base.database import Database

STATUSES = ("hypothesised", "supported", "refuted", "superseded")


def facts() -> list[dict[str, str]]:
    """The findings of facts.jsonl and every figure of every recorded chip."""
    found = []
    for line in _lines("facts.jsonl"):
        _check(line, "facts.jsonl", required=("subject", "name", "value", "source"), optional=("unit", "op", "chip"))
        found.append({"unit": "", "op": "", "chip": "", **line})
    for chip in CHIPS.values():
        named = [("product", chip.product, "", "name"), ("arch", chip.arch, "", "CUDA compute capability")]
        figures = [(f.name, f"{f.value:.12g}", f.unit, f.source) for f in chip.figures()]
        for name, value, unit, source in (*named, *figures):
            fact = {"subject": chip.name, "name": name, "value": value, "unit": unit, "source": source}
            found.append({**fact, "op": "", "chip": chip.name})
    return found


def rules() -> list[dict[str, Any]]:
    """The rules of rules.jsonl, each with its checkable form."""
    found = _lines("rules.jsonl")
    for rule in found:
        _check(rule, "rules.jsonl", required=("statement", "form", "source"), optional=("claimed",))
        read_form(rule["form"], f"rules.jsonl: {rule['statement']!r}")
        rule.setdefault("claimed", {})
    return found


def mined() -> list[Mined]:
    """The rules of mined.jsonl, with their evidence."""
    return [Mined.model_validate(line) for line in _lines("mined.jsonl")]


def plant(database: Database) -> None:
    """Brings the base's seed rows up to date; nothing to do (and quick) if they are."""
    from sqlalchemy import select

    from knowledge_base.tables import META

    figures = [chip.model_dump(mode="json") for chip in CHIPS.values()]
    seed = content_key("seed", *(_text(name) for name in ("facts.jsonl", "rules.jsonl", "mined.jsonl")), figures)
    newest = select(META.c.value).where(META.c.name == "seed")
    with database.read() as connection:
        if connection.execute(newest).scalar() == seed:
            return
    with database.write() as connection:
        _plant_facts(connection)
        _plant_rules(connection)
        _plant_mined(connection)
        connection.execute(META.delete().where(META.c.name == "seed"))
        connection.execute(META.insert().values(name="seed", value=seed))


def _plant_facts(connection: Connection) -> None:
    from knowledge_base.tables import FACTS, now

    wanted: dict[str, dict[str, Any]] = {content_key("fact", fact): dict(fact) for fact in facts()}
    present = set(connection.execute(FACTS.select().with_only_columns(FACTS.c.key)).scalars())
    connection.execute(FACTS.delete().where(FACTS.c.origin == "seed", FACTS.c.key.not_in(list(wanted))))
    for key, fact in wanted.items():
        if key not in present:
            connection.execute(FACTS.insert().values(key=key, origin="seed", created_at=now(), **fact))


def _plant_rules(connection: Connection) -> None:
    from sqlalchemy import select

    from knowledge_base.tables import EVIDENCE, RULES, RuleRow, now

    wanted = {content_key("rule", r["statement"], r["form"]): r for r in rules()}
    present = set(connection.execute(RULES.select().with_only_columns(RULES.c.key)).scalars())
    untouched = (RULES.c.origin == "seed") & (RULES.c.status == "hypothesised")
    unproven = RULES.c.key.not_in(select(EVIDENCE.c.rule))
    connection.execute(RULES.delete().where(untouched, unproven, RULES.c.key.not_in(list(wanted))))
    for key, rule in wanted.items():
        if key in present:
            continue
        scope = rule["form"]["scope"]
        row = RuleRow(
            key=key,
            statement=rule["statement"],
            status="hypothesised",
            op=scope.get("op", ""),
            chip=scope.get("chip", ""),
            form=rule["form"],
            claimed=rule["claimed"],
            source=rule["source"],
            origin="seed",
            created_at=now(),
            updated_at=now(),
        )
        connection.execute(RULES.insert().values(**row.model_dump()))


def _plant_mined(connection: Connection) -> None:
    from sqlalchemy import select

    from knowledge_base.tables import EVIDENCE, RULES

    wanted = {key_of(rule.form, rule.direction): rule for rule in mined()}
    shipped = select(RULES.c.key, RULES.c.history).where(RULES.c.source == SHIPPED)
    left = [key for key, history in connection.execute(shipped) if key not in wanted and len(history) <= 1]
    connection.execute(EVIDENCE.delete().where(EVIDENCE.c.rule.in_(left)))
    connection.execute(RULES.delete().where(RULES.c.key.in_(left)))
    present = set(connection.execute(select(RULES.c.key).where(RULES.c.key.in_(list(wanted)))).scalars())
    insert(connection, {key: rule for key, rule in wanted.items() if key not in present}, SHIPPED)


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _text(name).splitlines() if line.strip()]


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _check(line: dict[str, Any], file: str, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    missing, unknown = set(required) - set(line), set(line) - set(required) - set(optional)
    if missing or unknown:
        raise UserError(f"{file}: {sorted(missing or unknown)[0]!r} is {'missing' if missing else 'unknown'} in {line}")
