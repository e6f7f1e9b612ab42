"""A candidate's trials in the order in which they are worth judging."""

from __future__ import annotations

import math
from collections.abc import Iterable

from knowledge_base.records import UNSURE, Trial


def rank(trials: Iterable[Trial]) -> list[Trial]:
    """The trials of one candidate, at one shape on one chip, that have a time and were not rejected.

    Fastest first, spilling ones last.  A verdict that the machine's load may explain is taken back: judge it again.
    """
    timed = [t.fuller(verdict=None) if t.verdict and t.verdict.status in UNSURE else t for t in trials if t.time]
    return sorted((t for t in timed if t.verdict is None or t.correct), key=lambda t: (t.spills, t.us))


def recorded(trials: Iterable[Trial]) -> list[Trial]:
    """The trials of a search that say something: timed, or refused.  What was pruned was not looked at."""
    return [t for t in trials if t.time is not None or t.verdict is not None]


def span(source: str) -> int:
    """How many configurations the file's AXES make."""
    from evaluator.trace import read_axes

    axes = read_axes(source)
    return math.prod(len(values) for values in axes.values()) if isinstance(axes, dict) else 0
