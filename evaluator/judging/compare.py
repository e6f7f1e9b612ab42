"""Comparison of a kernel's outputs with the fp64 reference, against the error PyTorch itself makes (the yardstick).

An element's error counts as far as it exceeds one ulp of the reference value in the output's dtype; what is made of
many is in :mod:`.accuracy`.  NaN and Inf must stand where the reference or PyTorch has them, and nowhere else.

Pure functions of tensors; what went wrong is told by :mod:`.diagnose`.
"""

from __future__ import annotations

import math

import torch

from .accuracy import LARGEST_FACTOR, Binade, Case, Errors, Failure, Pool
from .inputs import torch_dtype

MANTISSA_BITS = {"bf16": 7, "f16": 10, "f32": 23, "f64": 52}
LEAST_EXPONENT = -300  # below it all values are one binade: squares of larger ones are no zeros in fp64
MIN_EXPONENT = {"bf16": -126, "f16": -14, "f32": -126, "f64": -1022}


def ulp(reference: torch.Tensor, dtype: str) -> torch.Tensor:
    """The distance between neighbouring numbers of ``dtype`` around ``reference`` (fp64), subnormals included."""
    _, exponent = torch.frexp(reference)  # reference = m * 2^exponent, 0.5 <= |m| < 1
    exponent = torch.clamp(exponent - 1, min=MIN_EXPONENT[dtype])
    exponent = torch.where(reference == 0, MIN_EXPONENT[dtype], exponent)
    return torch.ldexp(torch.ones_like(reference), exponent - MANTISSA_BITS[dtype])


def measure(case: Case) -> Errors | Failure:
    """The case's error sums, or the Failure of an element that is wrong whatever the pool says."""
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
        _binades(reference[finite], beyond[finite], yardstick[finite]),
    )


def _binades(reference: torch.Tensor, beyond: torch.Tensor, yardstick: torch.Tensor) -> dict[int, Binade]:
    """Sums of squares by the exponent of the reference, that of zero being the smallest."""
    exponents = _exponents(reference)
    least = int(exponents.min())
    places = (exponents - least).reshape(-1)
    counts = torch.bincount(places)
    sums = [torch.bincount(places, weights=v.square().reshape(-1)) for v in (beyond, yardstick, reference)]
    rows = zip(counts.tolist(), *(s.tolist() for s in sums), strict=True)
    return {least + i: row for i, row in enumerate(rows) if row[0]}


def _exponents(reference: torch.Tensor) -> torch.Tensor:
    exponents = torch.where(reference == 0, LEAST_EXPONENT, torch.frexp(reference).exponent)
    return exponents.clamp(min=LEAST_EXPONENT)


def _exact(case: Case) -> Errors | Failure:
    wrong = (case.got != case.reference.to(case.got.dtype)).reshape(-1)
    if not bool(wrong.any()):
        return Errors(case.got.numel())
    return _failure("exact", case, int(torch.nonzero(wrong)[0]), 0.0)


def _misplaced(case: Case, got: torch.Tensor, reference: torch.Tensor, eager: torch.Tensor) -> Failure | None:
    """A NaN or Inf that neither the reference (as stored) nor eager PyTorch has there, or that both have and we lack.

    Where the two disagree (an intermediate of eager overflowed) either answer is right.
    """
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


def worst(pool: Pool) -> Failure:
    """The element of ``pool`` that exceeds its bound most, for the message."""
    best: tuple[float, Case, int] | None = None
    lost = pool.errors.lost
    for case in pool.cases:
        if case.dtype not in MANTISSA_BITS:
            continue
        beyond = torch.nan_to_num((case.got.to(torch.float64) - case.reference).abs(), 0.0, 0.0, 0.0)
        beyond = (beyond - torch.nan_to_num(ulp(case.reference, case.dtype), 0.0, 0.0, 0.0)).reshape(-1)
        if lost is not None:
            exponents = _exponents(case.reference).reshape(-1)
            beyond = torch.where((exponents >= lost[0]) & (exponents <= lost[1]), beyond, -1.0)
        if not beyond.numel():
            continue
        position = int(beyond.argmax())
        if best is None or float(beyond[position]) > best[0]:
            best = (float(beyond[position]), case, position)
    assert best is not None
    _, case, position = best
    size = float(ulp(case.reference.reshape(-1)[position], case.dtype))
    return _failure("value", case, position, LARGEST_FACTOR * pool.errors.yardstick_largest + size)
