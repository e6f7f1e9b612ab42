"""What a value of a feature, or several together, are worth: two effects, each a log-ratio of times (negative: faster).

- **best against best**: the fastest configuration that has them over the fastest that has not, a geometric mean over
  shapes.  It is what a search cares for, which may choose all else anew.
- **paired**: the median over pairs that differ in these features alone: what changing nothing else brings.

The two can have different signs.  On large products a persistent kernel is slower in the median (some of its
configurations spill registers) and faster at its best.

Of a space that was timed in part only configurations with a counterpart count, one that differs from it in these
features alone: a search looks longer where it hopes for more, and the best of many is faster than the best of few.

Intervals (95%) are percentiles of a bootstrap over shapes, and within a shape over what is uncertain there: the clock's
noise, and for a space of which only a part was timed the choice of that part.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .spaces import Space

NOISE = 0.002  # of a time, where no configuration was timed in two sessions: the least that was seen between processes
RESAMPLES = 300
DRAWN = 32 * RESAMPLES
MOST_PAIRS = 512  # of a space that are looked at: so many tell where the median is
FEW_PAIRS = 8  # where not all configurations were timed, fewer say nothing
NEAR = 16  # configurations that may turn out the fastest
Conditions = tuple[tuple[str, Any], ...]


class Draws:
    """Random numbers for many bootstraps, drawn once; each takes a stretch of them that begins somewhere.

    Where it begins depends on what the bootstrap is ``about``, so that nothing else that is mined changes it.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self.rng = seed, np.random.default_rng(seed)
        self._normal, self._absent = _drawn(seed)
        self._noise, self._scaled = 1.0, self._normal  # many bootstraps have the same noise

    def about(self, *what: object) -> np.random.Generator:
        """Numbers for this from now on; returned, and in ``rng``."""
        digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
        self.rng = np.random.default_rng((self._seed, int.from_bytes(digest)))
        return self.rng

    def _rows(self) -> slice:
        start = int(self.rng.integers(0, DRAWN - RESAMPLES))
        return slice(start, start + RESAMPLES)

    def best_over_best(self, having: np.ndarray, others: np.ndarray, whole: bool, noise: float) -> np.ndarray:
        """What the fastest of ``having`` over the fastest of ``others`` might have been, RESAMPLES times.

        Both are logarithms, by group; infinite where a group has none.  not whole: groups are resampled, too.
        """
        near = np.argsort(np.minimum(having - having.min(), others - others.min()), kind="stable")[:NEAR]
        rows, count = self._rows(), len(near)
        if noise != self._noise:
            self._noise, self._scaled = noise, noise * self._normal
        a = having[near, None] + self._scaled[:count, rows]
        b = others[near, None] + self._scaled[NEAR : NEAR + count, rows]
        if not whole:
            absent = self._absent[:count, self._rows()]
            nobody = absent.min(0) > 0
            if nobody.any():
                absent = np.where(nobody, 0.0, absent)
            a += absent
            b += absent
        drawn: np.ndarray = a.min(0) - b.min(0)
        return drawn


@functools.lru_cache(maxsize=2)
def _drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """DRAWN columns: of standard normal numbers, and infinity for who is absent from a resample of as many, else 0."""
    rng = np.random.default_rng(seed)
    normal, absent = rng.standard_normal((DRAWN, 2 * NEAR)), rng.random((DRAWN, NEAR)) < math.exp(-1)
    return np.ascontiguousarray(normal.T), np.where(absent.T, np.inf, 0.0)


@dataclass(frozen=True, eq=False)
class Look:
    """What one space says.  best: the effect, and ``resampled`` what it might have been; pairs: of each pair."""

    space: Space
    best: float
    resampled: np.ndarray
    pairs: np.ndarray


def look(space: Space, conditions: Conditions, noise: float, draws: Draws) -> Look | None:
    """Both effects in a space; None where there is nothing to compare, or too little.

    That is where no two configurations differ in this alone, or where few do of those that happened to be timed.
    """
    rows = space.selected(conditions)
    if rows is None or np.count_nonzero(rows) in (0, len(rows)):
        return None
    compared = _compared(space, conditions, rows)
    left, right = compared.pairs()
    if len(left) < (1 if space.whole else FEW_PAIRS):
        return None
    draws.about(conditions, space.shape, space.session)
    sides = (np.flatnonzero(rows), np.flatnonzero(~rows)) if space.whole else (compared.having, compared.others)
    a, b = (compared.fastest(side, space.log_us) for side in sides)
    if not space.whole:
        both = np.isfinite(a) & np.isfinite(b)
        a, b = a[both], b[both]
    ratios = space.log_us[left] - space.log_us[right]
    if len(ratios) > MOST_PAIRS:
        ratios = draws.rng.choice(ratios, MOST_PAIRS, replace=False)
    return Look(space, float(a.min() - b.min()), draws.best_over_best(a, b, space.whole, noise), ratios)


@dataclass(frozen=True, eq=False)
class _Compared:
    """Numbers of configurations that have the values and of those that have not, these group after group.

    group: of every configuration, the number of those that differ from it in these features alone; there are ``count``.
    """

    having: np.ndarray
    others: np.ndarray
    group: np.ndarray
    count: int

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """One that has the values and one that has not, for all that differ in these features alone."""
        of_others = np.bincount(self.group[self.others], minlength=self.count)
        mine = self.group[self.having]
        many = of_others[mine]
        until = np.cumsum(many)
        first = (np.cumsum(of_others) - of_others)[mine]
        right = np.arange(until[-1] if len(until) else 0) + np.repeat(first - until + many, many)
        return np.repeat(self.having, many), self.others[right]

    def fastest(self, some: np.ndarray, log_us: np.ndarray) -> np.ndarray:
        """Of each group the least time among ``some``; infinity where none is of it."""
        found = np.full(self.count, np.inf)
        np.minimum.at(found, self.group[some], log_us[some])
        return found


def _compared(space: Space, conditions: Conditions, rows: np.ndarray) -> _Compared:
    """What is to be compared where ``rows`` have the values: of configurations that have the features at all."""
    group, count, comparable = space.comparable(tuple(space.columns[name] for name, _ in conditions))
    selected = rows[comparable]
    return _Compared(np.sort(comparable[selected]), comparable[~selected], group, count)


def noise_of(some: Sequence[Space]) -> float:
    """The relative noise of a time: how far two sessions differ on one file's configurations, but for a common factor.

    The median over pairs of spaces of the normalised median deviation; NOISE where no two have three configurations in
    common, and never less.
    """
    by_shape: dict[tuple[Any, ...], list[dict[tuple[Any, ...], float]]] = {}
    for space in some:
        table = {
            tuple(
                (n, space.values[k][c]) for k, (n, c) in enumerate(zip(space.names, codes, strict=True)) if c >= 0
            ): us
            for codes, us in zip(space.codes.tolist(), space.us.tolist(), strict=True)
        }
        by_shape.setdefault(space.shape, []).append(table)
    deviations = []
    for tables in by_shape.values():
        for i, first in enumerate(tables):
            for second in tables[i + 1 :]:
                both = [math.log(first[key] / second[key]) for key in first.keys() & second.keys()]
                if len(both) >= 3:
                    spread = np.median(np.abs(np.array(both) - np.median(both)))
                    deviations.append(1.4826 * float(spread) / math.sqrt(2))
    return max(NOISE, float(np.median(deviations))) if deviations else NOISE


def resampled_mean(of_shapes: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """RESAMPLES means of shapes' effects: shapes are resampled, and within each what its spaces leave open."""
    table = np.stack(of_shapes)
    which = rng.integers(0, len(table), (RESAMPLES, len(table)))
    return np.asarray(table[which, np.arange(RESAMPLES)[:, None]].mean(1))


def paired_interval(of_shapes: Sequence[np.ndarray], rng: np.random.Generator) -> tuple[float, float, float]:
    """The median over all pairs and its interval."""
    return float(np.median(np.concatenate(of_shapes))), *between(resampled_median(of_shapes, rng))


def between(drawn: np.ndarray) -> tuple[float, float]:
    """The 95% interval of what was drawn: percentiles, without interpolation."""
    ordered = np.sort(drawn)
    cut = int(0.025 * len(ordered))
    return float(ordered[cut]), float(ordered[-1 - cut])


def resampled_median(of_shapes: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Medians over all pairs: shapes are resampled, then their pairs."""
    whole, lengths = np.concatenate(of_shapes), np.array([len(part) for part in of_shapes])
    starts = np.cumsum(lengths) - lengths
    drawn = []
    for _ in range(RESAMPLES // 5):
        chosen = rng.integers(0, len(of_shapes), len(of_shapes))
        many = lengths[chosen]
        drawn.append(np.median(whole[np.repeat(starts[chosen], many) + rng.integers(0, np.repeat(many, many))]))
    return np.array(drawn)
