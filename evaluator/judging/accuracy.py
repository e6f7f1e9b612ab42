"""How far a kernel's outputs are from the fp64 reference, beside what PyTorch's own are (the yardstick): the records.

Errors are pooled per distribution over at least ``ELEMENTS`` elements: their RMS may be RMS_FACTOR times the
yardstick's, the largest LARGEST_FACTOR times the yardstick's largest.  How an element's error is found is
:mod:`.compare`'s.  Importing this does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .sizes import ELEMENTS, Sizes

if TYPE_CHECKING:
    import torch

RMS_FACTOR = 2.0  # the meaning of right: docs/judging.md
LARGEST_FACTOR = 4.0
DOUBT = 2.0  # a pool that exceeds its limits by less than this factor is enlarged before it is judged


@dataclass(frozen=True)
class Case:
    """One output of one run: ``got`` as stored by the kernel, ``reference`` in fp64, ``eager`` as stored by PyTorch."""

    output: str
    dtype: str
    distribution: str
    sizes: Sizes
    got: torch.Tensor
    reference: torch.Tensor
    eager: torch.Tensor


@dataclass(frozen=True)
class Errors:
    """Sums over the elements of a case (or several) where all three values are finite."""

    count: int = 0
    kernel_squares: float = 0.0
    kernel_largest: float = 0.0
    beyond_squares: float = 0.0  # of the kernel's errors as far as they exceed one ulp: these are judged
    beyond_largest: float = 0.0
    yardstick_squares: float = 0.0
    yardstick_largest: float = 0.0

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.count + other.count,
            self.kernel_squares + other.kernel_squares,
            max(self.kernel_largest, other.kernel_largest),
            self.beyond_squares + other.beyond_squares,
            max(self.beyond_largest, other.beyond_largest),
            self.yardstick_squares + other.yardstick_squares,
            max(self.yardstick_largest, other.yardstick_largest),
        )

    def rms(self, squares: float) -> float:
        return math.sqrt(squares / self.count) if self.count else 0.0

    @property
    def acceptable(self) -> bool:
        return self._within(1.0)

    @property
    def doubtful(self) -> bool:
        """Not acceptable, but so near that chance may have decided.

        Errors of one row share the rounding of its sum, so that 16,384 elements can be as few as a dozen samples.
        """
        return not self._within(1.0) and self._within(DOUBT)

    def _within(self, factor: float) -> bool:
        return (
            self.rms(self.beyond_squares) <= factor * RMS_FACTOR * self.rms(self.yardstick_squares)
            and self.beyond_largest <= factor * LARGEST_FACTOR * self.yardstick_largest
        )


@dataclass(frozen=True)
class Failure:
    """The element that shows best that a case is wrong.  ``kind``: value | nan | inf | finite | exact."""

    kind: str
    case: Case
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float  # the largest error this element might have had


Place = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Pool:
    """Cases of one output and distribution that are judged together."""

    cases: tuple[Case, ...]
    errors: Errors


def place(case: Case) -> Place:
    """What a case shares with those of other distributions: output and sizes."""
    return case.output, tuple(sorted(case.sizes.items()))


def pools(measured: Sequence[tuple[Case, Errors]], company: Mapping[Place, Errors] | None = None) -> list[Pool]:
    """Groups cases of one output and one distribution so that each pool has ELEMENTS elements, if all together have.

    Cases of one size that have as many are a pool by themselves, so that a large size does not dilute what goes wrong
    at another; the rest is one pool.

    ``company`` are errors on normal inputs that are counted in, by place.  On zeros, ones and one-hot rows an output
    repeats a handful of values, and how well PyTorch happens to round those says nothing.
    """
    sizes: dict[Place, tuple[list[Case], Errors]] = {}
    for case, errors in measured:
        cases, total = sizes.get(place(case), ([], (company or {}).get(place(case), Errors())))
        sizes[place(case)] = ([*cases, case], total + errors)
    large = [group for group in sizes.values() if group[1].count >= ELEMENTS]
    small = [group for group in sizes.values() if group[1].count < ELEMENTS]
    if small:
        rest: tuple[list[Case], Errors] = ([], Errors())
        for cases, errors in small:
            rest = (rest[0] + cases, rest[1] + errors)
        total = rest[1]
        if total.count < ELEMENTS and large:
            host = min(range(len(large)), key=lambda i: large[i][1].count)
            large[host] = (large[host][0] + rest[0], large[host][1] + total)
        else:
            large.append(rest)
    return [Pool(tuple(cases), errors) for cases, errors in large]


def summary(errors: Errors) -> dict[str, Any]:
    """A pool's figures for the verdict: absolute errors and their ratios (None where only the yardstick is exact)."""

    def ratio(a: float, b: float) -> float | None:
        return round(a / b, 4) if b else (1.0 if a == 0 else None)

    rms, yardstick = errors.rms(errors.kernel_squares), errors.rms(errors.yardstick_squares)
    return {
        "elements": errors.count,
        "rms": rms,
        "yardstick_rms": yardstick,
        "rms_ratio": ratio(rms, yardstick),
        "largest": errors.kernel_largest,
        "yardstick_largest": errors.yardstick_largest,
        "largest_ratio": ratio(errors.kernel_largest, errors.yardstick_largest),
    }
