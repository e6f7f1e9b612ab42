"""How far a kernel's outputs are from the fp64 reference, beside what PyTorch's own are (the yardstick): the records.

Errors are pooled per distribution over at least ``ELEMENTS`` elements: their RMS may be RMS_FACTOR times the
yardstick's, the largest LARGEST_FACTOR times the yardstick's largest.  Nor may large values hide what is lost of small
ones: see :attr:`Errors.lost`.  How an element's error is found is
:mod:`.compare`'s.  Importing this does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .sizes import ELEMENTS, Sizes

if TYPE_CHECKING:
    import torch

RMS_FACTOR = 2.0  # the meaning of right: docs/judging.md
LARGEST_FACTOR = 4.0
SMALL_SHARE = 1 / 128  # of a pool's elements that a group of small ones has, and SMALL_COUNT, if there are as many
SMALL_COUNT = 256
SMALL_FACTOR = 4.0  # of the yardstick's RMS in the group, …
SMALL_LOSS = 0.25  # … or of the RMS of its values, may be the RMS error
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


# Of a binade's elements: how many, and sums of squares: of errors beyond one ulp, of the yardstick's, of the values.
Binade = tuple[int, float, float, float]


@dataclass(frozen=True)
class Errors:
    """Sums over the elements of a case (or several) where all three values are finite.

    binades: by the exponent of the reference, ``2^(e-1) <= |reference| < 2^e``.
    """

    count: int = 0
    kernel_squares: float = 0.0
    kernel_largest: float = 0.0
    beyond_squares: float = 0.0  # of the kernel's errors as far as they exceed one ulp: these are judged
    beyond_largest: float = 0.0
    yardstick_squares: float = 0.0
    yardstick_largest: float = 0.0
    binades: Mapping[int, Binade] = field(default_factory=dict)

    def __add__(self, other: Errors) -> Errors:
        binades = dict(self.binades)
        for exponent, (n, a, b, c) in other.binades.items():
            count, beyond, yardstick, values = binades.get(exponent, (0, 0.0, 0.0, 0.0))
            binades[exponent] = (count + n, beyond + a, yardstick + b, values + c)
        return Errors(
            self.count + other.count,
            self.kernel_squares + other.kernel_squares,
            max(self.kernel_largest, other.kernel_largest),
            self.beyond_squares + other.beyond_squares,
            max(self.beyond_largest, other.beyond_largest),
            self.yardstick_squares + other.yardstick_squares,
            max(self.yardstick_largest, other.yardstick_largest),
            binades,
        )

    def rms(self, squares: float) -> float:
        return math.sqrt(squares / self.count) if self.count else 0.0

    def eased(self, normal: Errors) -> Errors:
        """The same beside a yardstick that is besides as far off, for the values' size, as it is on normal inputs.

        Of small inputs PyTorch's steps in 16 bits round next to nothing (the scores of attention), and the yardstick
        is finer than the precision that was asked for.
        """
        values, of_normal = (sum(values for *_, values in e.binades.values()) for e in (self, normal))
        if not of_normal or not self.count:
            return self
        share = normal.yardstick_squares / of_normal
        scale = math.sqrt(values / self.count / (of_normal / normal.count))
        return replace(
            self,
            yardstick_squares=self.yardstick_squares + share * values,
            yardstick_largest=max(self.yardstick_largest, normal.yardstick_largest * scale),
            binades={e: (n, beyond, y + share * v, v) for e, (n, beyond, y, v) in self.binades.items()},
        )

    @property
    def acceptable(self) -> bool:
        return self._within(1.0)

    @property
    def doubtful(self) -> bool:
        """Not acceptable, but so near that chance may have decided.

        Errors of one row share the rounding of its sum, so that 16,384 elements can be as few as a dozen samples.
        """
        return not self._within(1.0) and self._within(DOUBT)

    @property
    def lost(self) -> tuple[int, int] | None:
        """Exponents between which values are small, and wrong by more than their size allows; None if none are.

        Neighbouring binades make a group, from the smallest on, that has a share of the pool's elements.  Its RMS error
        may be SMALL_FACTOR times the yardstick's there, SMALL_LOSS of its values' RMS, or what it may be over all
        elements, whichever is most: what large terms leave of each other (GELU far below zero) may be coarse beside the
        little that it should be, and so may an approximation, but what is left out is not.
        """
        return self._lost(1.0) if self._close(1.0) else None

    def _lost(self, factor: float) -> tuple[int, int] | None:
        enough = max(SMALL_COUNT, SMALL_SHARE * self.count)
        group, first = (0, 0.0, 0.0, 0.0), None
        for exponent in sorted(self.binades):
            count, beyond, yardstick, values = (a + b for a, b in zip(group, self.binades[exponent], strict=True))
            first = exponent if first is None else first
            if count < enough:
                group = (int(count), beyond, yardstick, values)
                continue
            of_all = RMS_FACTOR**2 * self.yardstick_squares * count / self.count
            if beyond > factor**2 * max(SMALL_FACTOR**2 * yardstick, SMALL_LOSS**2 * values, of_all):
                return first, exponent
            group, first = (0, 0.0, 0.0, 0.0), None
        return None  # what is left is among the largest: it has its part in the sums of all

    def _within(self, factor: float) -> bool:
        return self._close(factor) and self._lost(factor) is None

    def _close(self, factor: float) -> bool:
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
