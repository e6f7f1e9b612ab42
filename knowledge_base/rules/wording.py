"""A rule in words, without its figures: those change with the evidence, and stand beside it."""

from __future__ import annotations

import re

from .form import Condition, RuleForm
from .mined import Direction
from .structure import PERSISTENT

_SAYS = {"faster": "is faster", "slower": "is slower", "free": "is neither faster nor slower"}


def statement(form: RuleForm, direction: Direction) -> str:
    """``linear in bf16 on h200 where M·N ≥ 6,291,456 is faster persistent``.  Raises ValueError without conditions."""
    if not form.when:
        raise ValueError("no condition")
    scope = form.scope
    words = [scope.op or "every kernel"]
    words += [f"in {scope.dtype}"] if scope.dtype else []
    words += [f"on {scope.chip}"] if scope.chip else []
    words += [f"where {_sizes(scope.shape)}"] if scope.shape else []
    return " ".join([*words, _SAYS[direction], *_conditions(form.when)])


def _conditions(conditions: tuple[Condition, ...]) -> list[str]:
    """``persistent with TMA stores at TM=128, occupancy=1``"""
    made = [c for c in conditions if c.structural]
    axes = [f"{c.feature}={c.value}" for c in conditions if not c.structural]
    out = [PERSISTENT if c.value else f"not {PERSISTENT}" for c in made if c.feature == PERSISTENT]
    for word, there in (("with", True), ("without", False)):
        named = [c.feature for c in made if c.feature != PERSISTENT and bool(c.value) == there]
        out += [f"{word} {', '.join(named)}"] if named else []
    return out + ([f"at {', '.join(axes)}"] if axes else [])


def _sizes(shape: str) -> str:
    """``M*N >= 6291456`` as people write it."""
    text = shape.replace("*", "·").replace(">=", "≥").replace("<=", "≤")
    return re.sub(r"\d+$", lambda found: f"{int(found[0]):,}", text)
