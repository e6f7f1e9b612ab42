"""Rules that somebody claims without evidence: a language model after its answers were timed.

They enter as hypothesised; what was measured, then or later, makes them supported or refuted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from knowledge_base.errors import UserError, nearest
from knowledge_base.records import Record, Said, clean

from .form import RuleForm, read_form
from .keeping import Change, key_of
from .structure import STRUCTURES
from .wording import statement

if TYPE_CHECKING:
    from knowledge_base.database import Database

MODEL = "llm"  # the origin of rules that a language model claimed
HYPOTHESISED = "hypothesised"
MOST_CONDITIONS = 4
LONGEST = 200  # characters of a reason
Claimed = Literal["faster", "slower"]


class Claim(Record):
    """``because``: its author's reason, in a sentence."""

    form: RuleForm
    direction: Claimed
    because: Said = ""


def read_claim(said: Any, ops: Collection[str], chip: str, dtype: str, axes: Collection[str]) -> Claim:
    """The claim in a model's words, about a task of these ``ops`` and this dtype on ``chip``.

        {"op": "linear", "shape": "M >= 4096", "when": {"TM": 128, "persistent": true}, "direction": "faster",
         "because": "…"}

    axes: of the configurations that were seen; a condition names one of these, or a structure.  ``op`` may be left out
    where there is one, ``shape`` and ``because`` always.  Raises UserError, which says what is wrong with it.
    """
    if not isinstance(said, Mapping):
        raise UserError(f"a rule is an object, not {_short(said)}")
    if extra := set(map(str, said)) - {"op", "shape", "when", "direction", "because"}:
        raise UserError(f"a rule has no {', '.join(sorted(extra))}")
    op = said.get("op") or (next(iter(ops)) if len(ops) == 1 else "")
    if not isinstance(op, str) or op not in ops:
        raise UserError(f"op {_short(op)} is not of this task: it has {', '.join(sorted(ops))}")
    when, direction = said.get("when"), next((d for d in get_args(Claimed) if d == said.get("direction")), None)
    if direction is None:
        raise UserError(f"direction is faster or slower, not {_short(said.get('direction'))}")
    if not isinstance(when, Mapping) or not 1 <= len(when) <= MOST_CONDITIONS:
        raise UserError(f"when is an object of one to {MOST_CONDITIONS} conditions, not {_short(when)}")
    scope = {"op": op, "chip": chip, "dtype": dtype} | ({"shape": said["shape"]} if said.get("shape") else {})
    conditions = [_condition(str(name), value, axes) for name, value in sorted(when.items())]
    document = {"scope": scope, "when": {"all": conditions}, "against": "other values", "effect": "log_ratio"}
    because = said.get("because")
    reason = because[:LONGEST] if isinstance(because, str) else ""
    return Claim(form=read_form(document, "a rule"), direction=direction, because=reason)


def claim(database: Database, claims: Iterable[Claim], source: str) -> tuple[Change, ...]:
    """Stores the claims that say what no rule of the base says yet; returns those."""
    from sqlalchemy import select

    from knowledge_base.tables import RULES, now

    new: list[Change] = []
    with database.write() as connection:
        for one in claims:
            key, words = key_of(one.form, one.direction), statement(one.form, one.direction)
            if connection.execute(select(RULES.c.key).where(RULES.c.key == key)).first():
                continue
            claimed = {"direction": one.direction} | ({"because": one.because} if one.because else {})
            row = {
                "key": key, "statement": words, "status": HYPOTHESISED, "op": one.form.scope.op,
                "chip": one.form.scope.chip, "form": one.form.document(), "claimed": claimed, "source": source,
                "origin": MODEL, "superseded_by": "", "created_at": now(), "updated_at": now(), "history": [],
            }  # fmt: skip
            connection.execute(RULES.insert().values(**row))
            new.append(Change(key, words, "", HYPOTHESISED, one.because))
    return tuple(new)


def _condition(name: str, value: Any, axes: Collection[str]) -> dict[str, Any]:
    if name in STRUCTURES:
        if not isinstance(value, bool):
            raise UserError(f"{name} is true or false, not {_short(value)}")
        return {"structure": name} | ({} if value else {"value": False})
    if name not in axes:
        known = [*axes, *STRUCTURES]
        raise UserError(f"there is no {_short(name)} among {', '.join(nearest(name, known) or known)}")
    if not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"{name} is a number or a text, not {_short(value)}")
    return {"axis": name, "value": clean(value) if isinstance(value, str) else value}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
