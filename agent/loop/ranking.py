"""A candidate's trials in the order in which they are worth judging."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evaluator.trace import read_axes
from knowledge_base.records import UNSURE, Kind, Measurement, Trial

NOISE = 0.98  # a time of one process ÷ one of several: so much faster may be the process alone


def rank(trials: Iterable[Trial], kind: Kind) -> list[Trial]:
    """The trials of one candidate, at one shape on one chip, that have a time of this kind and were not rejected.

    Fastest first; where times are modelled, spilling ones last, as the model does not know what spills cost.  A verdict
    that the machine's load may explain is taken back: judge it again.  What was measured in several processes and is
    correct stands first, unless another one is faster by more than times of one process vary.
    """
    found: list[tuple[bool, Measurement, Trial]] = []
    for trial in trials:
        time = trial.timed(kind)
        if trial.verdict is not None and trial.verdict.status in UNSURE:
            trial = trial.fuller(verdict=None)
        if time is not None and (trial.verdict is None or trial.correct):
            found.append((kind == "modelled" and trial.spills, time, trial))
    found.sort(key=lambda row: row[:2])
    settled = next((row for row in found if row[1].processes > 1 and row[2].correct), None)
    if settled is not None and found[0][1].over(settled[1]) >= NOISE:
        found.remove(settled)
        found.insert(0, settled)
    return [trial for _, _, trial in found]


def recorded(trials: Iterable[Trial]) -> list[Trial]:
    """The trials of a search that say something: timed, or refused.  What was pruned was not looked at."""
    return [t for t in trials if t.time is not None or t.verdict is not None]


def searched(trials: Sequence[Trial], kind: Kind, configurations: int) -> bool:
    """Whether nothing is left to search by times of this kind.

    ``configurations``: how many the file has.  By measured times a search goes on until all were tried.  By modelled
    ones it is over once there was one, and not a check of some configuration: it leaves trials that nobody judged.
    """
    timed = [trial for trial in trials if trial.timed(kind)]
    if kind == "measured":
        tried = {repr(sorted(trial.configuration.items())) for trial in decided(trials, kind)}
        return bool(tried) and len(tried) >= configurations
    return bool(timed) and (len(trials) >= configurations or any(trial.verdict is None for trial in timed))


def decided(trials: Sequence[Trial], kind: Kind) -> list[Trial]:
    """Those that have a time of this kind, or were refused."""
    return [trial for trial in trials if trial.timed(kind) or (trial.verdict is not None and not trial.correct)]


def span(source: str) -> int:
    """How many configurations the file's AXES make."""
    axes = read_axes(source)
    return math.prod(len(values) for values in axes.values()) if isinstance(axes, dict) else 0
