"""A rule's checkable form: where it holds, which configurations it speaks of, and against which others.

    {"scope": {"op": "linear", "chip": "h200", "dtype": "bf16", "shape": "M*N >= 6291456"},
     "when": {"structure": "persistent"}, "against": "other values", "effect": "log_ratio"}

``when`` is one condition or ``{"all": [...]}`` of several.  A condition is of an axis (``{"axis": "TN", "value":
256}``), or of how the kernel is made (``{"structure": "persistent"}``, :mod:`knowledge_base.rules.structure`).  What
cannot be read off a configuration (``{"precision": "tf32"}``) is a form as well: nothing here is evidence of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from knowledge_base.chips import CHIPS
from knowledge_base.element_types import BYTES
from knowledge_base.errors import UserError
from knowledge_base.records import Record

OTHERS = "other values"  # what most rules stand against
_LONGEST = 128  # characters of an op
_SHAPE = re.compile(r"(?P<measure>[A-Za-z]\w*(?:\*[A-Za-z]\w*)*) (?P<sign>>=|<=) (?P<bound>[1-9]\d*)")


def known_as(name: str, ops: Iterable[str]) -> frozenset[str]:
    """What a rule's scope may call a task: its name, its ops, and attention, where scores are weights of a product."""
    found = {name, *ops}
    return frozenset(found | ({"attention"} if {"softmax", "matmul"} <= found else set()))


class Scope(Record):
    """Where a rule holds; empty is everywhere.  op: one of a task's ops, or its name.  shape: ``M*N >= 6291456``."""

    op: str = ""
    chip: str = ""
    dtype: str = ""
    shape: str = ""

    def holds(self, ops: Iterable[str], chip: str, dtype: str, sizes: Mapping[str, int]) -> bool:
        """Whether a task of these ops and sizes, on that chip, lies in it."""
        return (
            (not self.op or self.op in ops)
            and self.chip in ("", chip)
            and self.dtype in ("", dtype)
            and (not self.shape or self._at(sizes))
        )

    def _at(self, sizes: Mapping[str, int]) -> bool:
        found = _SHAPE.fullmatch(self.shape)
        assert found is not None, self.shape  # checked
        size = measure(found["measure"], sizes)
        bound = int(found["bound"])
        return size is not None and (size >= bound if found["sign"] == ">=" else size <= bound)


def measure(name: str, sizes: Mapping[str, int]) -> int | None:
    """The product of dimensions, ``M*N``; None for sizes that have no such dimension."""
    names = name.split("*")
    return math.prod(sizes[n] for n in names) if all(n in sizes for n in names) else None


class Condition(Record):
    """A feature of a configuration and its value: an axis, or a structure, which is there or not."""

    feature: str
    value: Any
    structural: bool = False

    def document(self) -> dict[str, Any]:
        if not self.structural:
            return {"axis": self.feature, "value": self.value}
        return {"structure": self.feature} | ({} if self.value is True else {"value": self.value})


class RuleForm(Record):
    """``when`` is None where the form's condition is not one of configurations."""

    scope: Scope
    when: tuple[Condition, ...] | None
    against: Any = OTHERS

    def document(self) -> dict[str, Any]:
        """As it is written.  Raises ValueError without conditions."""
        if not self.when:
            raise ValueError("no condition")
        conditions = [condition.document() for condition in self.when]
        when = conditions[0] if len(conditions) == 1 else {"all": conditions}
        scope = {name: value for name, value in self.scope.model_dump().items() if value}
        return {"scope": scope, "when": when, "against": self.against, "effect": "log_ratio"}


def form_of(row: Mapping[str, Any]) -> RuleForm | None:
    """The form of a rule that is stored; None where it is none, as in an older base."""
    try:
        return read_form(row["form"], row["statement"])
    except UserError:
        return None


def read_form(document: Mapping[str, Any], where: str) -> RuleForm:
    """The form that a document is.  Raises UserError for one that names nothing, saying ``where`` it stands."""
    if set(document) != {"scope", "when", "against", "effect"}:
        raise UserError(f"{where}: a rule's form wants exactly scope, when, against and effect")
    scope = document["scope"]
    if not isinstance(scope, Mapping) or set(scope) - set(Scope.model_fields):
        raise UserError(f"{where}: a scope has {', '.join(Scope.model_fields)}, not {scope!r}")
    if not all(isinstance(value, str) for value in scope.values()):
        raise UserError(f"{where}: a scope's values are texts, not {scope!r}")
    if document["effect"] != "log_ratio":
        raise UserError(f"{where}: an effect is a log_ratio, not {document['effect']!r}")
    found = Scope(**scope)
    if len(found.op) > _LONGEST:
        raise UserError(f"{where}: an op has at most {_LONGEST} characters, not {len(found.op)}")
    if found.chip and found.chip not in CHIPS:
        raise UserError(f"{where}: there is no chip {found.chip!r}", f"known: {', '.join(CHIPS)}")
    if found.dtype and found.dtype not in BYTES:
        raise UserError(f"{where}: there is no dtype {found.dtype!r}", f"known: {', '.join(BYTES)}")
    if found.shape and not _SHAPE.fullmatch(found.shape):
        raise UserError(f"{where}: a shape is written M >= 4096 or M*N <= 65536, not {found.shape!r}")
    return RuleForm(scope=found, when=_conditions(document["when"], where), against=document["against"])


def _conditions(when: Any, where: str) -> tuple[Condition, ...] | None:
    parts = when["all"] if isinstance(when, Mapping) and set(when) == {"all"} else [when]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) and part for part in parts):
        raise UserError(f"{where}: a rule's when is a condition or {{'all': [conditions]}}, not {when!r}")
    conditions = []
    if not all(isinstance(part.get("value", True), str | int | float) for part in parts):
        raise UserError(f"{where}: a condition's value is a number, a text, true or false, not {when!r}")
    for part in parts:
        if set(part) == {"axis", "value"}:
            conditions.append(Condition(feature=str(part["axis"]), value=part["value"]))
        elif "structure" in part and set(part) <= {"structure", "value"}:
            value = part.get("value", True)
            conditions.append(Condition(feature=str(part["structure"]), value=value, structural=True))
        elif "axis" in part:
            raise UserError(f"{where}: a condition of an axis has axis and value, not {part!r}")
        else:
            return None
    return tuple(conditions)
