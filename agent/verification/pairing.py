"""Which configurations are compared: such as differ in what a rule speaks of, and in nothing else.

Best in one file, whose AXES have both sides; else in two files that differ in how they are made.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.loop import POOL, configurations, in_file
from evaluator.trace import read_axes
from knowledge_base.records import Candidate, Verdict
from knowledge_base.rules import FEW_PAIRS, Condition, features

OTHERS = 2  # configurations, at least, that one with the rule's values is compared with, where there are as many
PAIRS = 2 * FEW_PAIRS  # that there should be, so that some may not run
MOST_PAIRS = 8 * FEW_PAIRS

Expected = Callable[[Sequence[Mapping[str, Any]]], Sequence[float]]  # of a file's configurations, by their features


@dataclass(frozen=True, eq=False)
class Setting:
    """A configuration of a file.  having: it has the rule's values."""

    candidate: Candidate
    axes: Mapping[str, Any]
    having: bool
    expected: float  # of configurations of a file, the less the sooner it is tried


@dataclass(frozen=True, eq=False)
class Pairing:
    """Groups of configurations that differ in the rule's conditions alone: one that has its values, then others.

    The most promising groups come first: what a rule says of the fastest configurations is what it is believed for.
    """

    groups: tuple[tuple[Setting, ...], ...]

    @property
    def pairs(self) -> int:
        return sum(len(group) - 1 for group in self.groups)

    @property
    def batches(self) -> Iterator[tuple[tuple[Setting, ...], ...]]:
        """The groups, so many at a time that they have PAIRS."""
        batch: list[tuple[Setting, ...]] = []
        for group in self.groups:
            batch.append(group)
            if sum(map(len, batch)) - len(batch) >= PAIRS:
                yield tuple(batch)
                batch = []
        if batch:
            yield tuple(batch)

    @property
    def configurations(self) -> int:
        return sum(map(len, self.groups))

    @property
    def files(self) -> tuple[Candidate, ...]:
        found = {one.candidate.digest: one.candidate for group in self.groups for one in group}
        return tuple(found.values())


def pairing(
    files: Sequence[Candidate],
    conditions: Sequence[Condition],
    expected: Expected,
    known: Mapping[str, frozenset[str]],
    seed: int,
) -> Pairing | None:
    """The configurations of ``files`` to be compared; None where too few differ in the conditions alone.

    The first file is taken that has enough, else the one that has the most, else the first two.  expected: which of a
    file's configurations promise most.  known: by digest those not to be taken, as :func:`agent.loop.in_file` says
    them.  seed: of the order of what promises alike.
    """
    wanted = {condition.feature: condition.value for condition in conditions}
    made = [_settings(file, wanted, expected, known.get(file.digest, frozenset()), seed) for file in files]
    alone = [Pairing(_groups(rows)) for rows in made]
    found = next((one for one in alone if one.pairs >= PAIRS), max(alone, key=lambda one: one.pairs, default=None))
    if found is not None and found.pairs >= FEW_PAIRS:
        return found
    for two in itertools.combinations(made, 2):
        sides = [{one.having for _, one in rows} for rows in two]
        if sides in ([{True}, {False}], [{False}, {True}]):
            both = Pairing(_groups([*two[0], *two[1]]))
            if both.pairs >= FEW_PAIRS:
                return both
    return None


_Row = tuple[frozenset[tuple[str, Any]], Setting]  # what else is true of a configuration, and it


def _settings(
    file: Candidate, wanted: Mapping[str, Any], expected: Expected, known: frozenset[str], seed: int
) -> list[_Row]:
    """A file's configurations of which the conditions say something; none of a file that can't be read."""
    axes = read_axes(file.source)
    if isinstance(axes, Verdict):
        return []
    some = [one for one in configurations(axes, POOL, seed=seed) if in_file(one) not in known]
    random.Random(seed).shuffle(some)
    made = [features(one, file.source) for one in some]
    rows = []
    for one, found, promise in zip(some, made, expected(made), strict=True):
        if wanted.keys() <= found.keys():
            having = all(found[name] == value for name, value in wanted.items())
            rest = frozenset((name, value) for name, value in found.items() if name not in wanted)
            rows.append((rest, Setting(file, one, having, promise)))
    return rows


def _groups(rows: Sequence[_Row]) -> tuple[tuple[Setting, ...], ...]:
    """Of each group one that has the values, and the most promising of the others: all, if they are few altogether.

    Where all are timed the fastest of either side is known, and not only that of a part.
    """
    by_rest: dict[frozenset[tuple[str, Any]], list[Setting]] = {}
    for rest, one in rows:
        by_rest.setdefault(rest, []).append(one)
    found = []
    for group in by_rest.values():
        group.sort(key=lambda one: (not one.having, one.expected))
        having = sum(one.having for one in group)
        if having and having < len(group):
            found.append((group[0], *group[having:]))
    found.sort(key=lambda group: min(one.expected for one in group))
    if sum(map(len, found)) <= 2 * MOST_PAIRS:
        return tuple(found)
    others = max(OTHERS, -(-PAIRS // len(found)))
    pairs = itertools.accumulate(min(len(group) - 1, others) for group in found)
    return tuple(group[: 1 + others] for group, so_far in zip(found, pairs, strict=True) if so_far <= MOST_PAIRS)
