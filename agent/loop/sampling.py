"""Which configurations of a large space are tried, where trying one takes a compilation and a GPU.

A tree-structured Parzen estimator (Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011) over
a finite list: what is tried next has most in common with the best GOOD tried so far, and least with the others.  Two
configurations have in common what the axes say: each on which they agree counts.  As the list is finite, the best
of it is taken, and not the best of a few draws; as it is a list, it may have holes.

Where near work was measured, what that says (:mod:`.prior`) comes in place of every other one of the first draws, and
counts after them.  The others are drawn all the same: beside them it is seen whether what near work says is so here.

How soon it finds what is near the best, on measured spaces: docs/measuring.md, "A search".
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .prior import Prior

START = 10  # tries before the first estimate: what is given, then drawn ones
GOOD = 2  # tries that others are to be like
SAME = 0.6  # weight of an axis on which two agree; those on which they do not share the rest among its other values


class Sampler:
    """Asks for configurations of a list to be tried, and is told what they took.

    given: how many at its head are tried first, in order.  known: what some took, by place: they are not tried again.
    prior: what is known of near work.
    """

    def __init__(
        self,
        configurations: Sequence[Mapping[str, Any]],
        given: int,
        seed: int,
        known: Mapping[int, float] | None = None,
        prior: Prior | None = None,
    ) -> None:
        self._prior = prior
        self._all = list(configurations)
        self._values = {
            name: len({repr(one.get(name)) for one in self._all})
            for name in sorted({n for one in self._all for n in one})
        }
        self._us = dict(known or {})
        rest = list(range(given, len(self._all)))
        random.Random(seed).shuffle(rest)
        order = [place for place in (*range(min(given, len(self._all))), *rest) if place not in self._us]
        first = sum(place < given for place in order)
        self._start = frozenset(order[: first if prior is not None else max(START - len(self._us), first)])
        self._open = dict.fromkeys(order)  # neither tried nor under way, the first to be tried first
        self._under_way: dict[int, None] = {}
        self._likeness: dict[int, np.ndarray] = {}  # of a tried one to all
        self._codes = [(_numbered(self._all, name), count) for name, count in self._values.items() if count > 1]

    @property
    def left(self) -> int:
        """How many were not asked for."""
        return len(self._open)

    @property
    def told(self) -> int:
        """Of how many is known what they took."""
        return len(self._us)

    def ask(self, count: int) -> list[int]:
        """Places in the list of at most ``count`` configurations to be tried next; empty once all were."""
        asked: list[int] = []
        while self._open and len(asked) < count:
            place = next(iter(self._open))
            if place not in self._start and self._chooses():
                place = self._most_promising()
            del self._open[place]
            self._under_way[place] = None
            asked.append(place)
        return asked

    def _chooses(self) -> bool:
        """Whether the next one is chosen, and not drawn."""
        if self._prior is None:
            return len(self._us) > GOOD
        tried = len(self._us) + len(self._under_way)
        return tried >= START or tried % 2 == 1

    def tell(self, place: int, us: float) -> None:
        """What the configuration took; infinity for one that does not run."""
        self._us[place] = us
        self._under_way.pop(place, None)

    def _most_promising(self) -> int:
        """What is under way counts as tried and no good, so that a batch holds different ones."""
        slower: Sequence[float] | None = None
        if self._prior is not None:
            first = self._prior.first(self._open, self._us, self._under_way)
            if first is not None:
                return first
            slower = self._prior.slower(self._us)
        ranked = sorted(self._us, key=lambda place: (self._us[place], place))
        score = self._density(ranked[:GOOD]) / self._density([*ranked[GOOD:], *self._under_way])
        if slower is not None:
            score = score * np.exp(-np.array(slower))
        places = np.fromiter(self._open, dtype=int)
        return int(places[np.argmax(score[places])])

    def _density(self, tried: Sequence[int]) -> np.ndarray:
        """How likely each configuration is, if these were drawn, and one of which nothing is known."""
        total = np.full(len(self._all), 1 / math.prod(self._values.values()))
        for place in tried:
            total += self._likenesses(place)
        return total / (1 + len(tried))

    def _likenesses(self, tried: int) -> np.ndarray:
        """The probability of each under a kernel around the tried one: a product over the axes."""
        if tried not in self._likeness:
            weights = np.ones(len(self._all))
            for codes, count in self._codes:
                weights *= np.where(codes == codes[tried], SAME, (1 - SAME) / (count - 1))
            self._likeness[tried] = weights
        return self._likeness[tried]


def _numbered(configurations: Sequence[Mapping[str, Any]], axis: str) -> np.ndarray:
    """A number for each configuration's value of the axis."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(repr(one.get(axis)), len(known)) for one in configurations])
