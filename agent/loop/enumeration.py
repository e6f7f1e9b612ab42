"""Which configurations of a file's axes are looked at, and in what order: an enumeration, no judgement.

A small space is taken whole.  Of a large one: what is given, the default, its neighbours along one axis, then Halton
points (a quasi-random sequence: even coverage, the same for the same seed).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def configurations(
    axes: Mapping[str, Sequence[Any]], limit: int, first: Sequence[Mapping[str, Any]] = (), seed: int = 0
) -> Iterator[dict[str, Any]]:
    """At most ``limit`` distinct configurations: ``first``, the default, then all (in order) or a quasi-random part."""
    names = list(axes)
    total = math.prod(len(axes[n]) for n in names)
    seen: set[tuple[int, ...]] = set()

    def candidates() -> Iterator[tuple[int, ...]]:
        for given in listed(first, axes):
            yield tuple(list(axes[n]).index(given.get(n, axes[n][0])) for n in names)
        yield (0,) * len(names)
        if total <= limit:
            for k in range(total):
                yield tuple(_digits(k, [len(axes[n]) for n in names]))
            return
        for i, n in enumerate(names):
            for j in range(1, len(axes[n])):
                yield tuple(j if k == i else 0 for k in range(len(names)))
        for point in range(seed * 7919 + 1, seed * 7919 + 1 + 64 * limit):
            yield tuple(int(_halton(point, i) * len(axes[n])) for i, n in enumerate(names))

    for place in candidates():
        if place not in seen and len(seen) < limit:
            seen.add(place)
            yield {n: axes[n][j] for n, j in zip(names, place, strict=True)}


def listed(first: Sequence[Mapping[str, Any]], axes: Mapping[str, Sequence[Any]]) -> list[Mapping[str, Any]]:
    """The configurations of ``first`` whose axes and values the file has."""
    return [f for f in first if all(n in axes and v in axes[n] for n, v in f.items())]


def _digits(k: int, sizes: Sequence[int]) -> list[int]:
    """``k`` in mixed radix, the last digit fastest."""
    out = []
    for size in reversed(sizes):
        k, digit = divmod(k, size)
        out.append(digit)
    return out[::-1]


_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def _halton(n: int, axis: int) -> float:
    """The n-th element of the van der Corput sequence in the axis' prime base, in [0, 1)."""
    base, share, out = _PRIMES[axis % len(_PRIMES)], 1.0, 0.0
    while n:
        n, digit = divmod(n, base)
        share /= base
        out += digit * share
    return out
