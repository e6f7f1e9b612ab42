"""A search where it is known what every configuration takes: what a sampler tries, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .assay import BATCH
from .prior import Prior
from .sampling import Sampler
from .searching import FEW


def looked_up(
    configurations: Sequence[Mapping[str, Any]], took: Sequence[float], given: int, seed: int,
    prior: Prior | None = None,
) -> Iterator[int]:  # fmt: skip
    """The configurations' places, in the order in which a search by the clock is told their times.

    took: µs by place; infinity for what does not run.  given: how many at the head come first.  As in a search, FEW
    are under way while the next ones are chosen.
    """
    sampler = Sampler(configurations, given, seed, prior=prior)
    under_way: deque[list[int]] = deque()
    while True:
        while len(under_way) < FEW // BATCH and (places := sampler.ask(BATCH)):
            under_way.append(places)
        if not under_way:
            return
        done = under_way.popleft()
        for place in done:
            sampler.tell(place, took[place])
        yield from done
