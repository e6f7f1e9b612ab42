"""A candidate's trials in the order in which they are worth judging."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evaluator.timing import MODEL
from evaluator.trace import read_axes
from knowledge_base.records import STANDINGS, UNSURE, Kind, Measurement, Trial

from .assay import Axes, too_slow

SPILLS = 1.04  # a modelled time of what spills counts so much more: so little is known of what spills cost
NOISE = 0.98  # a time of one process ÷ one of several: so much faster may be the process alone


def rank(trials: Iterable[Trial], kind: Kind) -> list[Trial]:
    """The trials of one candidate, at one shape on one chip, that have a time of this kind and were not rejected.

    Fastest first, by :func:`weighed`.  A verdict that the machine's load may explain is taken back: judge it again.
    What was measured in several processes and is correct stands first, unless another one is faster by more than times
    of one process vary.
    """
    found: list[tuple[float, Measurement, Trial]] = []
    for trial in trials:
        time = trial.timed(kind)
        if trial.verdict is not None and trial.verdict.status in UNSURE:
            trial = trial.fuller(verdict=None)
        if time is not None and (trial.verdict is None or trial.correct):
            found.append((weighed(trial, kind), time, trial))
    found.sort(key=lambda row: (row[0], in_file(row[2].configuration)))
    settled = next((row for row in found if row[1].processes > 1 and row[2].correct), None)
    if settled is not None and found[0][1].over(settled[1]) >= NOISE:
        found.remove(settled)
        found.insert(0, settled)
    return [trial for _, _, trial in found]


def least(trials: Sequence[Trial]) -> Trial | None:
    """The trial that came furthest, by standing: of equals the same one in whichever order they came."""
    return min(trials, key=lambda t: (STANDINGS.index(t.standing), in_file(t.configuration)), default=None)


def weighed(trial: Trial, kind: Kind) -> float:
    """µs that a trial's time of a kind counts for: infinity without one; more where it is modelled and spills."""
    time = trial.timed(kind)
    if time is None:
        return math.inf
    return time.us * (SPILLS if kind == MODEL.kind and trial.spills else 1)


def searched(trials: Sequence[Trial], kind: Kind, configurations: int) -> bool:
    """Whether nothing is left to search by times of this kind.  ``configurations``: how many the file has."""
    return len(looked_at(trials, kind)) >= configurations and any(trial.timed(kind) for trial in trials)


def looked_at(trials: Sequence[Trial], kind: Kind) -> dict[str, float]:
    """What a search by times of this kind need not look at again, by :func:`in_file`: the µs that it takes.

    Infinity for what was refused, fits no SM, has no time that is believed, or was pruned and would be again.
    """
    held_to = bar(leader(trials, kind), kind)
    found: dict[str, float] = {}
    for trial in trials:
        time = trial.timed(kind)
        if trial.verdict is not None and not trial.correct:
            found[in_file(trial.configuration)] = math.inf
        elif time is not None:
            found[in_file(trial.configuration)] = time.us
        elif trial.pruned:
            if trial.price_us is None or too_slow(trial.price_us, held_to):
                found[in_file(trial.configuration)] = math.inf
        elif trial.standing == "does-not-fit" or any(m.kind == kind for m in trial.measurements):
            found[in_file(trial.configuration)] = math.inf
    return found


def in_file(configuration: Axes) -> str:
    """What tells a configuration from the others of its file."""
    return repr(sorted(configuration.items()))


def leader(trials: Iterable[Trial], kind: Kind) -> Trial | None:
    """The first of what runs, by :func:`weighed`."""
    runs = [trial for trial in trials if trial.standing in ("ranked", "spills") and trial.timed(kind)]
    return min(runs, key=lambda trial: weighed(trial, kind), default=None)


def bar(first: Trial | None, kind: Kind) -> float:
    """µs that prices are held to: the time of the leader, ``first``; infinity where there is none.

    Where the model gives that one more than a clock does, prices are held to it: the model overrates others as well.
    """
    return math.inf if first is None else max(time.us for k in (kind, MODEL.kind) if (time := first.timed(k)))


def span(source: str) -> int:
    """How many configurations the file's AXES make."""
    axes = read_axes(source)
    return math.prod(len(values) for values in axes.values()) if isinstance(axes, dict) else 0
