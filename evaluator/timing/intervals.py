"""Medians with intervals from samples of several processes, and the ratio of two such: the statistics of timing.

Samples of one process share its clocks, its memory's place and its neighbours; so the interval comes from a bootstrap
that draws processes first and samples of each then (Davison and Hinkley, Bootstrap Methods and their Application, 1997,
section 3.8).  Few processes make a bootstrap's interval too narrow: it is widened by Student's quantile over the
normal one and by sqrt(n / (n - 1)), as Hesterberg has it (What Teachers Should Know about the Bootstrap, 2015,
section 4.3).  Everything is deterministic: the resampling has a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 400
LEVEL = 0.95
NORMAL_QUANTILE = 1.959964
# Student's 0.975 quantile by degrees of freedom; beyond them the normal one.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

Samples = Sequence[Sequence[float]]  # by process, in order of time


@dataclass(frozen=True)
class Interval:
    """A figure and the interval that holds it with 95% confidence."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Of the interval, ÷ the figure."""
        return (self.high - self.low) / self.value if self.value else math.inf


def median(samples: Samples) -> Interval:
    """The median: of each process's samples, then of the processes.  Raises ValueError without samples."""
    return _exponential(_bootstrap([_logs(one) for one in samples]))


def ratio(slow: Samples, fast: Samples) -> Interval:
    """``slow`` ÷ ``fast``, above 1 where the second is faster: the median over pairs of neighbouring samples.

    The i-th samples of a process's two series were taken next to each other.  Raises ValueError where processes or
    samples are not the same in number.
    """
    pairs = [_logs(a) - _logs(b) for a, b in zip(slow, fast, strict=True) if _alike(a, b)]
    return _exponential(_bootstrap(pairs))


def _logs(samples: Sequence[float]) -> np.ndarray:
    return np.log(np.asarray(samples, dtype=float))


def _alike(a: Sequence[float], b: Sequence[float]) -> bool:
    if len(a) != len(b):
        raise ValueError(f"{len(a)} samples beside {len(b)}")
    return True


def _bootstrap(series: Sequence[np.ndarray]) -> tuple[float, float, float]:
    if not series or not all(len(one) for one in series):
        raise ValueError("no samples")
    rng = np.random.default_rng(0)
    value = float(np.median([np.median(one) for one in series]))
    # The median of each process's samples, drawn again: RESAMPLES rows, a column a process.
    drawn = np.stack([np.median(one[rng.integers(len(one), size=(RESAMPLES, len(one)))], axis=1) for one in series], 1)
    count = len(series)
    chosen = rng.integers(count, size=(RESAMPLES, count))
    figures = np.median(np.take_along_axis(drawn, chosen, axis=1), axis=1)
    low, high = np.quantile(figures, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    wider = _widening(count)
    return value, value - wider * (value - float(low)), value + wider * (float(high) - value)


def _widening(processes: int) -> float:
    if processes < 2:
        return 1.0  # nothing is known of other processes: the interval is of this one
    student = STUDENT[processes - 2] if processes - 2 < len(STUDENT) else NORMAL_QUANTILE
    return student / NORMAL_QUANTILE * math.sqrt(processes / (processes - 1))


def _exponential(logs: tuple[float, float, float]) -> Interval:
    return Interval(*(math.exp(value) for value in logs))
