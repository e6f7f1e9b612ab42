"""Rules that measured configurations yield by themselves, without a language model.

For every value of every feature, and for values together which the fastest configurations cannot change one by one
without loss, both effects (:mod:`knowledge_base.rules.effects`) are looked at in every space.  A rule is written where
the shapes of an op agree; where they do not, but a size parts those where it is slower from the others, there is one
for each side.  What a wider rule says is not said again by a narrower one.

Of all that was looked at those rules are kept of which at most FALSE are to be expected to be wrong (Benjamini and
Hochberg 1995), by how often the resampled effect has the other sign.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .effects import Conditions, Draws, Look, between, look, noise_of, paired_interval, resampled_mean, resampled_median
from .form import Condition, RuleForm, Scope, measure
from .mined import Direction, Effect, Mined, ShapeEvidence
from .spaces import Space
from .structure import STRUCTURES

TOLERANCE = 0.003  # of a time: "best, or as good as it"
FREE = 0.01  # of a time: less is no difference
FALSE = 0.05  # of the rules
MIN_PAIRS = 8  # of a rule
SENSITIVE = 0.01  # of a time that a change has to cost for a value to be part of why a configuration is fast
MOST_TOGETHER = 3  # conditions of a rule
MOST_OF_A_SCOPE = 1  # rules of several conditions
AGREEING = 0.8  # of the shapes that say anything
OF_SIZES = 2  # dimensions in a measure of size
TO_PART = 3  # shapes, at least, that a size parts, and on the one side of which something is said
DOUBTFUL = 0.01  # chance of a rule for all sizes above which one for some is looked for


def mine(some: Sequence[Space], seed: int = 0) -> list[Mined]:
    """The rules, the largest effects first.  The same spaces and seed give the same rules."""
    draws = Draws(seed)
    found: list[_Claim] = []
    tested = 0
    for chip, dtype in dict.fromkeys((space.chip, space.dtype) for space in some):
        here = [space for space in some if (space.chip, space.dtype) == (chip, dtype)]
        noise, scope = noise_of(here), Scope(chip=chip, dtype=dtype)
        for conditions in (*_singles(here), *_together(here)):
            claims = _generalised(_shapes(here, conditions, noise, draws), conditions, scope, draws)
            tested += max(1, len(claims))
            found += claims
    rules = [claim.mined(draws.about(claim.form, "pairs")) for claim in _told_once(_believable(found, tested))]
    return sorted(rules, key=lambda rule: (-abs(rule.best.value), str(rule.form)))


def judged(
    some: Iterable[Space], form: RuleForm, claimed: Direction, seed: int = 0, clock: Iterable[Space] = ()
) -> Mined | None:
    """What the spaces say of a rule that claims this; None where no shape has enough pairs to look at.

    Not settled where the shapes contradict each other, or leave it open.  clock: other spaces, which tell how exact
    times are.
    """
    draws = Draws(seed)
    shapes = _of_rule(some, form, draws, clock)
    if not shapes:
        return None
    direction = _agreed(_counted(shapes.values()))
    found = _claim(form, direction or claimed, shapes, draws).mined(draws.about(form, "pairs"))
    return found.model_copy(update={"settled": direction is not None})


def to_refute(some: Iterable[Space], form: RuleForm, claimed: Direction, seed: int = 0) -> int:
    """How many more shapes have to say the contrary, so that not enough of all agree on what a rule claims.

    0 where they do not agree on it as it is.
    """
    said = _counted(_of_rule(some, form, Draws(seed)).values())
    contrary, more = _CONTRARY.get(claimed, "slower"), 0
    while _agreed(said) == claimed:
        said[contrary] += 1
        more += 1
    return more


def _of_rule(some: Iterable[Space], form: RuleForm, draws: Draws, clock: Iterable[Space] = ()) -> dict[Any, _Shape]:
    """What the shapes in a rule's scope say of its conditions."""

    def within(spaces: Iterable[Space]) -> list[Space]:
        return [one for one in spaces if form.scope.holds(one.ops, one.chip, one.dtype, one.sizes)]

    here = within(some)
    if form.when is None or not here:
        return {}
    conditions = tuple((condition.feature, condition.value) for condition in form.when)
    return _shapes(here, conditions, noise_of([*here, *within(clock)]), draws)


# -------------------------------------------------------------------------------------------------------- claims


_CONTRARY: dict[Direction, Direction] = {"faster": "slower", "slower": "faster"}


@dataclass(frozen=True, eq=False)
class _Shape:
    """What the spaces of one shape say of a candidate."""

    looks: tuple[Look, ...]
    best: float
    resampled: np.ndarray
    low: float
    high: float

    @classmethod
    def of(cls, looks: Sequence[Look]) -> _Shape:
        resampled, best = looks[0].resampled, looks[0].best
        if len(looks) > 1:
            resampled = np.mean([one.resampled for one in looks], axis=0)
            best = float(np.mean([one.best for one in looks]))
        low, high = between(resampled)
        return cls(tuple(looks), best, resampled, min(low, best), max(high, best))

    @functools.cached_property
    def says(self) -> Direction | None:
        """None: undecided."""
        if self.low > TOLERANCE:
            return "slower" if self.best > FREE else "free"
        if self.high <= TOLERANCE:
            return "faster" if self.best < -FREE else "free"
        return "free" if self.low >= -FREE and self.high <= FREE else None

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.looks[0].space.sizes

    @functools.cached_property
    def pairs(self) -> np.ndarray:
        return np.concatenate([one.pairs for one in self.looks])

    def evidence(self, agrees: bool) -> ShapeEvidence:
        space = self.looks[0].space
        sessions = tuple(dict.fromkeys(one.space.session for one in self.looks))
        return ShapeEvidence(
            task=space.task,
            sizes=dict(space.sizes),
            chip=space.chip,
            dtype=space.dtype,
            sessions=sessions,
            best=_rounded(self.best),
            paired=_rounded(float(np.median(self.pairs))),
            pairs=len(self.pairs),
            agrees=agrees,
        )


@dataclass(frozen=True, eq=False)
class _Claim:
    """A rule that may be one.  effect: the mean of its shapes' effects; resampled: as it might have been."""

    form: RuleForm
    direction: Direction
    shapes: Mapping[Any, _Shape]
    effect: float
    resampled: np.ndarray

    @functools.cached_property
    def chance(self) -> float:
        """How often the mean effect is none or has the other sign.

        Of what makes no difference: how often the median of pairs is above FREE, or 1 if the mean effect is.
        """
        if self.direction == "free":
            drawn = resampled_median([shape.pairs for shape in self.shapes.values()], np.random.default_rng(0))
            wrong = np.abs(drawn) > (FREE if abs(self.effect) <= FREE else -1)
        else:
            drawn = self.resampled
            wrong = drawn >= 0 if self.direction == "faster" else drawn <= 0
        return (1 + int(wrong.sum())) / (1 + len(drawn))

    @property
    def conditions(self) -> frozenset[tuple[str, Any]]:
        return frozenset((c.feature, c.value) for c in self.form.when or ())

    def mined(self, rng: np.random.Generator) -> Mined:
        other = _CONTRARY.get(self.direction)
        contrary = (other,) if other else ("faster", "slower")
        low, high = between(self.resampled)
        return Mined(
            form=self.form,
            direction=self.direction,
            best=_effect(self.effect, low, high),
            paired=_effect(*paired_interval([shape.pairs for shape in self.shapes.values()], rng)),
            evidence=tuple(shape.evidence(shape.says not in contrary) for shape in self.shapes.values()),
        )


def _effect(value: float, low: float, high: float) -> Effect:
    return Effect(value=_rounded(value), low=_rounded(min(low, value)), high=_rounded(max(high, value)))


def _rounded(log_ratio: float) -> float:
    """To a hundredth of a percent."""
    return round(log_ratio, 4)


def _claim(form: RuleForm, direction: Direction, shapes: Mapping[Any, _Shape], draws: Draws) -> _Claim:
    effect = float(np.mean([shape.best for shape in shapes.values()]))
    resampled = resampled_mean([shape.resampled for shape in shapes.values()], draws.about(form))
    return _Claim(form, direction, shapes, effect, resampled)


# ---------------------------------------------------------------------------------------------------- candidates


def _singles(some: Iterable[Space]) -> list[Conditions]:
    """Every value of every feature that has another one somewhere."""
    found: dict[tuple[str, Any], None] = {}
    for space in some:
        for name, values in zip(space.names, space.values, strict=True):
            if len(values) > 1:
                found |= dict.fromkeys((name, value) for value in values)
    # Of a structure that is there or not one side says all.
    return [((name, value),) for name, value in found if not (name in STRUCTURES and value is False)]


def _together(some: Iterable[Space]) -> list[Conditions]:
    """Two or more of the values that the fastest configuration of a space needs, of which two need each other there."""
    found: dict[Conditions, None] = {}
    for space in some:
        needed = sorted(_needed(space), key=str)
        bound = [set(two) for two in itertools.combinations(needed, 2) if (_surplus(space, *two) or 0.0) < -SENSITIVE]
        for count in range(2, MOST_TOGETHER + 1):
            for together in itertools.combinations(needed, count):
                if any(two <= set(together) for two in bound):
                    found[together] = None
    return list(found)


def _needed(space: Space) -> list[tuple[str, Any]]:
    """Of the fastest configuration: the values in whose place any other one costs SENSITIVE of the time."""
    fastest = int(space.us.argmin())
    needed = []
    for k, name in enumerate(space.names):
        group, code = space.groups((k,)), int(space.codes[fastest, k])
        others = (group == group[fastest]) & (space.codes[:, k] != code)
        if code >= 0 and others.any() and space.us[others].min() > space.us[fastest] * (1 + SENSITIVE):
            needed.append((name, space.values[k][code]))
    return needed


# ------------------------------------------------------------------------------------------------ generalisation


def _shapes(some: Iterable[Space], conditions: Conditions, noise: float, draws: Draws) -> dict[Any, _Shape]:
    groups: dict[Any, list[Look]] = {}
    for space in some:
        one = look(space, conditions, noise, draws)
        if one is not None:
            groups.setdefault(space.shape, []).append(one)
    return {key: _Shape.of(looks) for key, looks in groups.items()}


def _generalised(shapes: Mapping[Any, _Shape], conditions: Conditions, scope: Scope, draws: Draws) -> list[_Claim]:
    """Claims of the widest ops whose shapes agree, or are parted by a size."""
    by_op: dict[str, dict[Any, _Shape]] = {}
    for key, shape in shapes.items():
        for op in shape.looks[0].space.ops:
            by_op.setdefault(op, {})[key] = shape
    when = tuple(Condition(feature=name, value=value, structural=name in STRUCTURES) for name, value in conditions)
    found: list[_Claim] = []
    said: set[Any] = set()
    for op, of_op in sorted(by_op.items(), key=lambda item: (-len(item[1]), len(item[0]), item[0])):
        if of_op.keys() <= said:
            continue
        wide = scope.model_copy(update={"op": op})
        claims = _claims(when, [(wide, of_op)], draws)
        if not claims or claims[0].chance > DOUBTFUL:
            claims = _claims(when, _parted(wide, of_op), draws) or claims
        found += claims
        said |= {key for claim in claims for key in claim.shapes}
    return found


def _claims(
    when: tuple[Condition, ...], parts: Iterable[tuple[Scope, Mapping[Any, _Shape]]], draws: Draws
) -> list[_Claim]:
    """One for each part whose shapes agree and have enough pairs."""
    claims = []
    for scope, part in parts:
        direction = _agreed(_counted(part.values()))
        if direction and sum(len(shape.pairs) for shape in part.values()) >= MIN_PAIRS:
            claims.append(_claim(RuleForm(scope=scope, when=when), direction, part, draws))
    return claims


def _counted(shapes: Iterable[_Shape]) -> Counter[Direction | None]:
    return Counter(shape.says for shape in shapes)


def _agreed(said: Mapping[Direction | None, int]) -> Direction | None:
    """What nearly all say that say anything.  Free agrees with whichever side the others take."""
    faster, slower, free = said.get("faster", 0), said.get("slower", 0), said.get("free", 0)
    enough = AGREEING * (faster + slower + free)
    if faster and not slower:  # as good everywhere, better somewhere
        return "faster"
    if faster > free and faster + free >= enough:
        return "faster"
    if slower > free and slower + free >= enough:
        return "slower"
    return "free" if free and free >= enough else None


def _parted(scope: Scope, shapes: Mapping[Any, _Shape]) -> list[tuple[Scope, dict[Any, _Shape]]]:
    """Both sides of a size that parts shapes where it is slower from the others, or the one side that agrees.

    Of several sizes: one of which both sides agree, the one against which the fewest shapes speak, for which the most
    do and of which the fewest say nothing, a single dimension before a product, and the one with the widest gap.
    """
    if len(shapes) < TO_PART:
        return []
    dims = sorted(set.intersection(*(set(shape.sizes) for shape in shapes.values())))
    best: tuple[tuple[float, ...], list[tuple[Scope, dict[Any, _Shape]]]] | None = None
    for count in range(1, OF_SIZES + 1):
        for name in ("*".join(names) for names in itertools.combinations(dims, count)):
            sized = sorted(((_size(name, shape), key) for key, shape in shapes.items()), key=lambda pair: pair[0])
            low: Counter[Direction | None] = Counter()
            high = _counted(shapes.values())
            for cut in range(1, len(sized)):
                (below, key), (above, _) = sized[cut - 1], sized[cut]
                low[shapes[key].says] += 1
                high[shapes[key].says] -= 1
                if below == above:
                    continue
                sides = [(direction, said) for said in (low, high) if (direction := _agreed(said))]
                told = {direction for direction, _ in sides}
                if not sides or (len(sides) == 2 and (len(told) < 2 or "slower" not in told)):
                    continue
                within = sum(sum(said.values()) for _, said in sides)
                if len(sides) == 1 and within < TO_PART:
                    continue
                contrary = sum(said[_CONTRARY[direction]] for direction, said in sides if direction in _CONTRARY)
                undecided = sum(said[None] for _, said in sides)
                rank = (len(sides), -contrary, within - undecided, -undecided, -count, math.log(above / below))
                if best is None or rank > best[0]:
                    bounds = (f"{name} <= {below}", f"{name} >= {above}")
                    scopes = [scope.model_copy(update={"shape": bound}) for bound in bounds]
                    parts = [{key: shapes[key] for _, key in side} for side in (sized[:cut], sized[cut:])]
                    of_both = zip(scopes, parts, (low, high), strict=True)
                    best = rank, [(where, part) for where, part, said in of_both if _agreed(said)]
    return best[1] if best else []


def _size(name: str, shape: _Shape) -> int:
    size = measure(name, shape.sizes)
    assert size is not None
    return size


# ------------------------------------------------------------------------------------------------------ selection


def _believable(found: Sequence[_Claim], tested: int) -> list[_Claim]:
    """Those that are kept if FALSE of them may be wrong."""
    ordered = sorted(found, key=lambda claim: claim.chance)
    last = max((i for i, claim in enumerate(ordered, 1) if claim.chance <= FALSE * i / max(tested, 1)), default=0)
    return ordered[:last]


def _told_once(found: Sequence[_Claim]) -> list[_Claim]:
    """What remains if a reader, or a search, is told a thing once.

    Of what is faster: every single condition, and of several together the longest of those that cover the most, a few
    of a scope.  Of what is slower: the other side of a size of those, and single values where none of the feature's
    others is faster.  Of what makes no difference: structures.
    """
    order = sorted(found, key=lambda c: (-len(c.shapes), -len(c.conditions), -abs(c.effect), str(c.form)))
    out: list[_Claim] = []
    kept: dict[Scope, list[frozenset[tuple[str, Any]]]] = {}
    for claim in order:
        if claim.direction != "faster":
            continue
        others = kept.setdefault(claim.form.scope, [])
        several = [o for o in others if len(o) > 1]
        these = claim.conditions
        news = len(several) < MOST_OF_A_SCOPE and not any(these <= o or o <= these for o in several)
        if len(these) == 1 or (news and _more_than_its_parts(claim)):
            others.append(these)
            out.append(claim)
    parted = {(claim.form.scope.op, claim.conditions) for claim in out if claim.form.scope.shape}
    features = {
        (claim.form.scope.op, name) for claim in out if len(claim.conditions) == 1 for name, _ in claim.conditions
    }
    for claim in order:
        op, (name, *more) = claim.form.scope.op, [name for name, _ in claim.conditions]
        news = (op, claim.conditions) in parted or (not more and (op, name) not in features)
        if (claim.direction == "slower" and news) or (claim.direction == "free" and not more and name in STRUCTURES):
            out.append(claim)
    return out


def _more_than_its_parts(claim: _Claim) -> bool:
    """Whether two of its conditions do more together than each does without the other."""
    spaces = [one.space for shape in claim.shapes.values() for one in shape.looks]
    for pair in itertools.combinations(sorted(claim.conditions, key=str), 2):
        surplus = [found for space in spaces if (found := _surplus(space, *pair)) is not None]
        if surplus and float(np.mean(surplus)) < -SENSITIVE:
            return True
    return False


def _surplus(space: Space, first: tuple[str, Any], second: tuple[str, Any]) -> float | None:
    """The effect of both, less that of either alone, best against best; None where one of the four sides is empty."""
    a, b = space.selected([first]), space.selected([second])
    if a is None or b is None:
        return None
    sides = [a & b, ~a & ~b, a & ~b, ~a & b]
    if not all(side.any() for side in sides):
        return None
    both, neither, one, other = (float(space.log_us[side].min()) for side in sides)
    return both + neither - one - other
