"""What a wrong output looks like: a class of the error table and a sentence, from simple patterns in the differences.

A table of patterns, tried in order, the most specific first.  A diagnosis is a help for whoever repairs the kernel,
never part of the decision that it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .accuracy import Case, Errors, Failure
from .compare import MANTISSA_BITS, ulp

SMALL = 0.08  # relative error up to which a result is "imprecise" rather than "different"
NOISE_PEAK = 16.0  # times its RMS that the largest of many rounding errors is; what is larger has another cause
ALONG = 0.5  # an error that follows the values as much is a factor, or a missing term: rounding does not
EXPLAINED = 0.02  # share of the error's RMS that a pattern may leave unexplained
TILES = (8, 16, 32, 64, 128, 256)  # lengths of a reduction's tile
RIGHT = 4.0  # errors up to this often PyTorch's are no missing part of a sum
CONTRACTIONS = frozenset({"linear", "matmul"})


@dataclass(frozen=True)
class Evidence:
    """What the patterns look at: fp64 tensors of one case, bad elements marked, and what the task contains."""

    failure: Failure
    got: torch.Tensor
    reference: torch.Tensor
    bad: torch.Tensor
    ops: frozenset[str]
    measured: Sequence[tuple[Case, Errors]] = ()  # the same output at all judged sizes


def diagnose(
    failure: Failure, ops: frozenset[str] = frozenset(), measured: Sequence[tuple[Case, Errors]] = ()
) -> tuple[str, str]:
    """(error class, sentence) for ``failure``; ("wrong-numbers", "") if no pattern fits.

    ``ops``: the task's ops; ``measured``: its output on the same distribution at all sizes that were judged.
    """
    case = failure.case
    if case.dtype not in MANTISSA_BITS:
        return "wrong-integers", ""
    got, reference = case.got.to(torch.float64), case.reference
    tolerance = torch.nan_to_num(ulp(reference, case.dtype), 1.0)
    tolerance = tolerance + 4 * (case.eager.to(torch.float64) - reference).abs().nan_to_num(0.0, 0.0, 0.0).max()
    bad = ((got - reference).abs() > tolerance) | (torch.isfinite(got) != torch.isfinite(reference))
    evidence = Evidence(failure, got, reference, bad, ops, measured)
    for pattern in PATTERNS:
        found = pattern(evidence)
        if found is not None:
            return found
    return "wrong-numbers", ""


def _not_a_number(e: Evidence) -> tuple[str, str] | None:
    is_one, should = (_kind(value) for value in (float(e.failure.got), float(e.failure.expected)))
    if e.failure.kind == "finite":
        if e.failure.case.distribution == "special":
            return "nan-swallowed", "a NaN or Inf of the input was swallowed"
        return "nan-missing", f"the reference is {should} there, though every input is finite"
    if e.failure.kind in ("nan", "inf"):
        many = int((~torch.isfinite(e.got)).sum())
        many_of = f"{many} of {e.got.numel()} elements are not finite"
        return "nan-made", f"{is_one} where the reference is {should} ({many_of})"
    return None


def _kind(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite" if math.isinf(value) else "finite"


def _constant(e: Evidence) -> tuple[str, str] | None:
    if e.got.numel() > 1 and bool((e.got == e.got.reshape(-1)[0]).all()) and bool(e.bad.any()):
        value = float(e.got.reshape(-1)[0])
        if value == 0 and float(e.reference.abs().max()) > 0:
            return "all-zero", "every element is 0"
    return None


def _tail(e: Evidence) -> tuple[str, str] | None:
    """Bad elements fill exactly the end of one axis."""
    axes = e.bad.dim()
    for axis in range(axes):
        extent = e.bad.shape[axis]
        others = tuple(a for a in range(axes) if a != axis)
        hit = e.bad.amax(others) if others else e.bad
        if not bool(hit.any()) or bool(hit[0]) or extent < 2:
            continue
        first = int(hit.nonzero()[0])
        bad, got, should = (t.narrow(axis, first, extent - first) for t in (e.bad, e.got, e.reference))
        near = _rms((got - should).nan_to_num()) < SMALL * _rms(should.nan_to_num())  # it is computed, if badly
        if float(bad.double().mean()) > 0.5 and not near:
            word = {axes - 1: "columns", axes - 2: "rows"}.get(axis, f"axis {axis}, index")
            return (
                "tail",
                f"{word} {first} and up (of {extent}) are wrong, all before are right: the tail is not computed",
            )
    return None


def _sum_tail(e: Evidence) -> tuple[str, str] | None:
    """A contraction that is wrong exactly where one size is no multiple of a tile: the rest of its sum is missing.

    What is missing must look so, too: an error that has nothing to do with what was summed, and whose share of the
    reference's square is about the share of the tail.
    """
    if not CONTRACTIONS & e.ops or e.failure.kind != "value":
        return None
    error, whole = e.got - e.reference, float(e.reference.square().sum())
    size, part = _rms(error), _rms(e.got)
    if not whole or not math.isfinite(size) or not size or abs(float((error * e.got).mean())) > 0.25 * size * part:
        return None
    sizes = e.failure.case.sizes
    # a size that the output has is hardly the one that was summed over
    for name in sorted(sizes, key=lambda name: sizes[name] in e.got.shape):
        share = float(error.square().sum()) / whole
        fits = [t for t in TILES if sizes[name] % t / sizes[name] / 2 < share < 2 * (sizes[name] % t) / sizes[name]]
        fits = [t for t in fits if _only_at_rests(e.measured, name, t)]
        if fits:  # the judged sizes may not tell 64 from 128
            return (
                "sum-tail",
                f"right where {name} is a multiple of {' or '.join(map(str, fits))}, wrong where it is not: the last "
                f"{sizes[name] % fits[0]} of {sizes[name]} products are not summed",
            )
    return None


def _only_at_rests(measured: Sequence[tuple[Case, Errors]], name: str, tile: int) -> bool:
    """Whether the cases that are wrong are just those where size ``name`` is no multiple of ``tile``, some being right.

    A shorter tile would call sizes right that are wrong; a longer one would call sizes wrong that are right.
    """
    rests = [case.sizes[name] % tile != 0 for case, _ in measured]
    bad = [errors.kernel_largest > RIGHT * errors.yardstick_largest for _, errors in measured]
    return rests == bad and True in bad and False in bad


def _mask(e: Evidence) -> tuple[str, str] | None:
    """Attention whose first or last query row alone is right, or wrong: the causal mask is shifted."""
    if "causal_mask" not in e.ops or e.bad.dim() < 2:
        return None
    axes = e.bad.dim()
    for axis in range(axes - 1):
        extent = e.bad.shape[axis]
        if extent < 4:
            continue
        hit = e.bad.amax(tuple(a for a in range(axes) if a != axis))
        wrong = int(hit.sum())
        if bool(hit[: extent // 2].any()) and not bool(hit[-1]) and wrong >= 1:
            return (
                "causal-mask",
                "the last query row is right and earlier ones are wrong: keys after the query are not masked",
            )
        if wrong == extent - 1 and not bool(hit[0]):
            return "causal-mask", "all query rows but the first are wrong"
    return None


def _transposed(e: Evidence) -> tuple[str, str] | None:
    if e.got.dim() >= 2 and e.got.shape[-1] == e.got.shape[-2] > 1:
        flipped = e.got.transpose(-1, -2)
        if _rms(flipped - e.reference) < EXPLAINED * max(_rms(e.got - e.reference), 1e-300):
            return "transposed", "the output is the reference's transpose"
    return None


def _scaled(e: Evidence) -> tuple[str, str] | None:
    keep = torch.isfinite(e.got) & torch.isfinite(e.reference)
    g, r = e.got[keep], e.reference[keep]
    if g.numel() < 8 or float(r.square().sum()) == 0:
        return None
    factor = float((g * r).sum() / r.square().sum())
    difference = _rms(g - r)
    explained = _rms(g - factor * r) < max(EXPLAINED * difference, 4e-3 * _rms(g))
    if abs(factor - 1) > SMALL and explained:
        return "scale", f"every element is {factor:.4g} times the reference"
    return None


def _per_column(e: Evidence) -> tuple[str, str] | None:
    """The same difference in every row: a term that depends on the column alone is missing or doubled."""
    if e.got.dim() < 2 or e.got.shape[-1] < 2:
        return None
    error = (e.got - e.reference).reshape(-1, e.got.shape[-1])
    if error.shape[0] < 4 or not bool(torch.isfinite(error).all()):
        return None
    column = error.mean(0)
    total = _rms(error)
    if total > 0 and _rms(error - column) < 0.1 * total:
        spread = float(column.std()) if column.numel() > 1 else 0.0
        if spread < 0.05 * total:
            return "constant-offset", f"every element is off by the same {float(column.mean()):.4g}"
        return (
            "bias-missing",
            "the error is the same in every row: a term per column (the bias) is missing or counted twice",
        )
    return None


def _per_row(e: Evidence) -> tuple[str, str] | None:
    if e.got.dim() < 2 or e.got.shape[-1] < 4:
        return None
    rows = e.bad.reshape(-1, e.got.shape[-1])
    share = float(rows.any(1).double().mean())
    if 0 < share < 0.5 and float(rows[rows.any(1)].double().mean()) > 0.8:
        first = int(torch.nonzero(rows.any(1))[0])
        return (
            "some-rows",
            f"{int(rows.any(1).sum())} of {rows.shape[0]} rows are wrong altogether, the first is row {first}",
        )
    return None


def _imprecise(e: Evidence) -> tuple[str, str] | None:
    keep = torch.isfinite(e.got) & torch.isfinite(e.reference)
    scale = _rms(e.reference[keep])
    difference = (e.got - e.reference)[keep]
    error = _rms(difference)
    if not scale or not math.isfinite(error):
        return None
    along = abs(float((difference * e.reference[keep]).mean())) / (error * scale) if error else 0.0
    noise = error < SMALL * scale and float(difference.abs().max()) <= NOISE_PEAK * error and along < ALONG
    if noise or e.failure.case.distribution in ("cancelling", "offset"):
        if {"linear", "matmul"} & e.ops:
            return "narrow-accumulator", (
                "right but imprecise: the error looks like sums kept in fewer bits than float32"
            )
        return "imprecise", "right but imprecise: an intermediate was rounded to fewer bits than float32"
    return None


def _rms(x: torch.Tensor) -> float:
    return math.sqrt(float(x.square().mean())) if x.numel() else 0.0


PATTERNS: tuple[Callable[[Evidence], tuple[str, str] | None], ...] = (
    _not_a_number,
    _constant,
    _tail,
    _sum_tail,
    _mask,
    _transposed,
    _scaled,
    _per_column,
    _per_row,
    _imprecise,
)
