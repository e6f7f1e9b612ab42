"""What mining finds: a rule, its two effects, and what each shape says of it."""

from __future__ import annotations

from typing import Literal

from knowledge_base.records import Record

from .form import RuleForm

Direction = Literal["faster", "slower", "free"]


class ShapeEvidence(Record):
    """What one shape says: log-ratios, best against best and the median of pairs.

    agrees: it does not say the contrary of the rule.
    """

    task: str
    sizes: dict[str, int]
    chip: str
    dtype: str
    sessions: tuple[str, ...]
    best: float
    paired: float
    pairs: int
    agrees: bool = True


class Effect(Record):
    """A log-ratio of times with its 95% interval."""

    value: float
    low: float
    high: float


class Mined(Record):
    """A rule with what it rests on.  best: best against best; paired: the median of pairs.

    direction: faster, slower, or free where it makes no difference.  settled: whether the shapes agree on it; if not it
    is what somebody claims.
    """

    form: RuleForm
    direction: Direction
    best: Effect
    paired: Effect
    evidence: tuple[ShapeEvidence, ...]
    settled: bool = True

    @property
    def pairs(self) -> int:
        return sum(one.pairs for one in self.evidence)

    @property
    def agreeing(self) -> int:
        """Shapes that do not say the contrary."""
        return sum(one.agrees for one in self.evidence)
