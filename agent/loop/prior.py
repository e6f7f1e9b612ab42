"""What a search tries first where near work is known: a prior, made of measured spaces of other work.

A space is near where its task has ops in common, its kernels the same axes, and its work about the same size.  Each
near one is a guess: that the configurations of this file stand to one another as those do.  Guesses weigh as much as
they are near and, from the second time on, as well as they say what was measured here; one more guess is that nothing
is known, so that a wrong one loses weight though there is no other.

First come the configurations that the guesses together would be sorry to miss: a portfolio, chosen greedily, as
Feurer, Eggensperger, Falkner, Lindauer and Hutter make theirs (Auto-sklearn 2.0, JMLR 2022, section 3.2).  Once there
is little to miss, what the guesses expect on average counts beside what the sampler sees itself, and the less the more
that is; weighing by what was measured is the idea of Feurer, Letham and Bakshy (Scalable Meta-Learning for Bayesian
Optimization using Ranking-Weighted Gaussian Process Ensembles, 2018).

docs/measuring.md, "A search", has what that is worth on measured spaces; `agent experiment compounding` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from knowledge_base.chips import CHIPS
from knowledge_base.rules import Space, known_as

NEAREST = 32  # spaces that are asked
TRUSTED = 0.02  # what they have to weigh together
NOTHING = 3.0  # weight of the guess that nothing is known: all configurations are alike
ALIKE = 0.3  # the share of common ops counts to this power: what ops a kernel has matters less than its axes
SMALLER = 1.0  # what a factor of two in the size of the work takes, in powers of e
LONGER = 0.25  # and in each dimension
OTHER_DTYPE, OTHER_CHIP, OTHER_ARCH = 0.3, 0.5, 0.2
FAR = 0.001  # weight of a configuration that differs in one axis, beside one that agrees in all
WORST = 1.0  # of log(time ÷ the best one's): what is slower, or does not run, is no worse
PORTFOLIO = 12  # tries that it may have
AT_FIRST = 0.5  # log(time ÷ the best one's) that each guess has for what was not tried at all
LEAST = 0.0005  # of log time that has to be gained in the mean of all guesses
COUNTED = 0.3  # of log(time ÷ the best one's): how far from the best, here or by a guess, a time says much of the guess
MEASUREMENTS = 8  # that count at most, as they are not independent
WITHIN = 0.03  # of log time, how exact a guess can be
STEP, FADES = 0.1, 0.5  # of what they expect on average: of log time that is a factor of e, less after each try


class Prior:
    """What near spaces say of a file's configurations, which are named by their places.

    ops, dtype, sizes, chip: of the task.  features: of each configuration, as :mod:`knowledge_base.rules` has them.
    """

    def __init__(
        self, spaces: Iterable[Space], ops: Collection[str], dtype: str, sizes: Mapping[str, int], chip: str,
        features: Sequence[Mapping[str, Any]],
    ) -> None:  # fmt: skip
        axes = {name for one in features for name in one}
        near = [(_nearness(space, ops, dtype, sizes, chip, axes), space) for space in spaces]
        near = sorted((one for one in near if one[0] > 0), key=lambda one: -one[0])[:NEAREST]
        alike: dict[Any, list[float]] = {}  # several looks at one thing share its weight
        for weight, space in near:
            alike.setdefault(space.shape, []).append(weight)
        weights = [weight * max(of) / sum(of) for weight, space in near for of in [alike[space.shape]]]
        self.trusted = sum(weights) >= TRUSTED  # whether there is enough that is near
        self._near = np.array([*weights, NOTHING])
        self._guesses = np.array([*(_guess(space, features) for _, space in near), np.zeros(len(features))])

    def first(self, open_: Iterable[int], took: Mapping[int, float], under_way: Iterable[int]) -> int | None:
        """The place to try before others; None where little would be missed, or the portfolio is done.

        took: µs of what was tried.
        """
        tried = [*took, *under_way]
        if len(tried) >= PORTFOLIO:
            return None
        places = np.fromiter(open_, dtype=int)
        weights = self._weights(took)
        found = self._guesses[:, tried].min(1) if tried else np.full(len(weights), AT_FIRST)
        left = self._guesses[:, places]
        gained = weights @ np.maximum(0.0, found[:, None] - left)
        best = int(np.argmax(gained - 1e-6 * (weights @ left)))  # of equal ones what is best on average
        return int(places[best]) if gained[best] > LEAST else None

    def slower(self, took: Mapping[int, float]) -> list[float]:
        """By place, in powers of e: how much less worth trying it is than the best, as far as near spaces know."""
        expected: np.ndarray = self._weights(took) @ self._guesses
        slower: list[float] = (expected / (STEP * (1 + FADES * len(took)))).tolist()
        return slower

    def _weights(self, took: Mapping[int, float]) -> np.ndarray:
        """Of the guesses, 1 together: how near each is, times how likely it makes what was measured."""
        weights: np.ndarray = self._near
        places = [place for place, us in took.items() if math.isfinite(us)]
        if len(places) > 1:
            log_us = np.log([took[place] for place in places])
            fastest = log_us.min()
            slower = np.minimum(log_us - fastest, WORST)
            off = slower - self._guesses[:, places]
            off -= np.median(off, axis=1, keepdims=True)  # nobody knows the time of the best one
            # What is near the best counts, and what the guess says is: that is what it would be wrong about.
            counts = np.exp(-np.minimum(slower, self._guesses[:, places]) / COUNTED)
            variance = (off**2 * counts).sum(1) / counts.sum(1) + WITHIN**2
            likely = -0.5 * min(counts.sum(1).max(), MEASUREMENTS) * np.log(variance)
            weights = weights * np.exp(likely - likely.max())
        return weights / weights.sum()


def _nearness(
    space: Space, ops: Collection[str], dtype: str, sizes: Mapping[str, int], chip: str, axes: Collection[str]
) -> float:
    """From 0 to 1."""
    mine = set(ops)
    common = len(mine & space.ops) / len(mine | space.ops)
    shared = len(set(axes) & set(space.names)) / len(set(axes) | set(space.names))
    if not common or not shared:
        return 0.0
    away = SMALLER * abs(math.log2(_work(sizes) / _work(space.sizes)))
    for name in {*sizes, *space.sizes}:
        ratio = sizes[name] / space.sizes[name] if name in sizes and name in space.sizes else 2.0
        away += LONGER * abs(math.log2(ratio))
    weight = common**ALIKE * shared**2 * math.exp(-away)
    if space.dtype != dtype:
        weight *= OTHER_DTYPE
    if space.chip != chip:
        here, there = CHIPS.get(chip), CHIPS.get(space.chip)
        weight *= OTHER_CHIP if here and there and here.arch == there.arch else OTHER_ARCH
    return weight


def _work(sizes: Mapping[str, int]) -> int:
    """How much there is to share out among blocks: elements of the output, where K is what a product sums over."""
    return math.prod(n for name, n in sizes.items() if name != "K")


def _guess(space: Space, features: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """log(time ÷ the best one's) of each configuration, by a space in which the nearest ones count most.

    Of axes that the configurations do not have, the best value counts; the best of all is 0.
    """
    names = [name for name in space.names if any(name in one for one in features)]
    columns = [space.names.index(name) for name in names]
    numbers = [{value: code for code, value in enumerate(space.values[k])} for k in columns]
    theirs, which = np.unique(space.codes[:, columns], axis=0, return_inverse=True)
    best = np.full(len(theirs), WORST)
    np.minimum.at(best, which.reshape(-1), np.minimum(space.log_us - space.log_us.min(), WORST))
    differ = np.zeros((len(features), len(theirs)), dtype=np.int16)
    for k, (name, known) in enumerate(zip(names, numbers, strict=True)):
        own = np.array([known.get(one[name], -2) if name in one else -1 for one in features], dtype=np.int16)
        differ += own[:, None] != theirs[None, :, k]
    weights = FAR ** differ.astype(float)
    guess: np.ndarray = (weights @ best) / weights.sum(1)
    return guess - guess.min()


def prior_of(
    spaces: Iterable[Space], name: str, ops: Iterable[str], dtype: str, sizes: Mapping[str, int], chip: str,
    features: Sequence[Mapping[str, Any]],
) -> Prior | None:  # fmt: skip
    """The prior of a task called ``name``; None where nothing near enough is known."""
    prior = Prior(spaces, known_as(name, ops), dtype, sizes, chip, features)
    return prior if prior.trusted else None
