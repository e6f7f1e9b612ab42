"""Comparison of a kernel's outputs with the fp64 reference, against the error PyTorch itself makes (the yardstick).

An element's error counts as far as it exceeds one ulp of the reference value in the output's dtype.  Errors are pooled
per distribution over at least ``ELEMENTS`` elements: their RMS may be RMS_FACTOR times the yardstick's, the largest
LARGEST_FACTOR times the yardstick's largest.  NaN and Inf must stand where the reference or PyTorch has them, and
nowhere else.

Pure functions of tensors; what went wrong is told by :mod:`.diagnose`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluator.inputs import torch_dtype
from evaluator.sizes import ELEMENTS, Sizes

if TYPE_CHECKING:
    import torch

RMS_FACTOR = 2.0  # the meaning of right: docs/judging.md
LARGEST_FACTOR = 4.0
DOUBT = 2.0  # a pool that exceeds its limits by less than this factor is enlarged before it is judged
MANTISSA_BITS = {"bf16": 7, "f16": 10, "f32": 23, "f64": 52}
MIN_EXPONENT = {"bf16": -126, "f16": -14, "f32": -126, "f64": -1022}


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


def ulp(reference: torch.Tensor, dtype: str) -> torch.Tensor:
    """The distance between neighbouring numbers of ``dtype`` around ``reference`` (fp64), subnormals included."""
    import torch

    _, exponent = torch.frexp(reference)  # reference = m * 2^exponent, 0.5 <= |m| < 1
    exponent = torch.clamp(exponent - 1, min=MIN_EXPONENT[dtype])
    exponent = torch.where(reference == 0, MIN_EXPONENT[dtype], exponent)
    return torch.ldexp(torch.ones_like(reference), exponent - MANTISSA_BITS[dtype])


def measure(case: Case) -> Errors | Failure:
    """The case's error sums, or the Failure of an element that is wrong whatever the pool says."""
    import torch

    if case.dtype not in MANTISSA_BITS:
        return _exact(case)
    got, reference, eager = case.got.to(torch.float64), case.reference, case.eager.to(torch.float64)
    finite = torch.isfinite(got) & torch.isfinite(reference) & torch.isfinite(eager)
    if not bool(finite.all()):
        failure = _misplaced(case, got, reference, eager)
        if failure is not None:
            return failure
    zero = torch.zeros((), dtype=torch.float64)
    error = torch.where(finite, (got - reference).abs(), zero)
    beyond = torch.where(finite, (error - ulp(reference, case.dtype)).clamp(min=0), zero)
    yardstick = torch.where(finite, (eager - reference).abs(), zero)
    count = int(finite.sum())
    if not count:
        return Errors()
    return Errors(
        count,
        float(error.square().sum()),
        float(error.max()),
        float(beyond.square().sum()),
        float(beyond.max()),
        float(yardstick.square().sum()),
        float(yardstick.max()),
    )


def _exact(case: Case) -> Errors | Failure:
    import torch

    wrong = (case.got != case.reference.to(case.got.dtype)).reshape(-1)
    if not bool(wrong.any()):
        return Errors(case.got.numel())
    return _failure("exact", case, int(torch.nonzero(wrong)[0]), 0.0)


def _misplaced(case: Case, got: torch.Tensor, reference: torch.Tensor, eager: torch.Tensor) -> Failure | None:
    """A NaN or Inf that neither the reference (as stored) nor eager PyTorch has there, or that both have and we lack.

    Where the two disagree (an intermediate of eager overflowed) either answer is right.
    """
    import torch

    stored = reference.to(torch_dtype(case.dtype)).to(torch.float64)

    def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (torch.isnan(a) & torch.isnan(b)) | (a == b)

    odd = ~(torch.isfinite(got) & torch.isfinite(stored) & torch.isfinite(eager))
    # a finite value where the reference is just above the largest finite one: one ulp decides, both are right
    edge = torch.isfinite(got) & torch.isfinite(reference) & ((got - reference).abs() <= 2 * ulp(got, case.dtype))
    near = torch.isfinite(got) & torch.isfinite(stored)  # eager alone overflowed: the sums cannot judge it, do it here
    near &= (got - stored).abs() <= 4 * ulp(stored, case.dtype) + stored.abs() * 2.0 ** -MANTISSA_BITS[case.dtype] * 4
    loose = torch.isfinite(stored) & ~torch.isfinite(eager) & ~torch.isfinite(got)  # both overflowed on the way
    wrong = odd & ~(same(got, stored) | same(got, eager) | edge | near | loose)
    if not bool(wrong.any()):
        return None
    position = int(torch.nonzero(wrong.reshape(-1))[0])
    value = float(got.reshape(-1)[position])
    kind = "nan" if math.isnan(value) else "inf" if math.isinf(value) else "finite"
    return _failure(kind, case, position, 0.0)


def _failure(kind: str, case: Case, position: int, allowed: float) -> Failure:
    index: list[int] = []
    rest = position
    for extent in reversed(case.got.shape):
        index.append(rest % extent)
        rest //= extent
    return Failure(
        kind,
        case,
        tuple(reversed(index)),
        float(case.got.reshape(-1)[position]),
        float(case.reference.reshape(-1)[position]),
        allowed,
    )


# ---------------------------------------------------------------------------------------------------- pools


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


def worst(pool: Pool) -> Failure:
    """The element of ``pool`` that exceeds its bound most, for the message."""
    import torch

    best: tuple[float, Case, int] | None = None
    for case in pool.cases:
        if case.dtype not in MANTISSA_BITS:
            continue
        beyond = torch.nan_to_num((case.got.to(torch.float64) - case.reference).abs(), 0.0, 0.0, 0.0)
        beyond = (beyond - torch.nan_to_num(ulp(case.reference, case.dtype), 0.0, 0.0, 0.0)).reshape(-1)
        if not beyond.numel():
            continue
        position = int(beyond.argmax())
        if best is None or float(beyond[position]) > best[0]:
            best = (float(beyond[position]), case, position)
    assert best is not None
    _, case, position = best
    size = float(ulp(case.reference.reshape(-1)[position], case.dtype))
    return _failure("value", case, position, LARGEST_FACTOR * pool.errors.yardstick_largest + size)


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
