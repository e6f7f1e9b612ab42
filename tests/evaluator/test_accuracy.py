"""Pools of errors: what is lost of small values shows beside large ones, and honest noise does not."""

from __future__ import annotations

import pytest
import torch

from evaluator.judging.accuracy import Case, Errors, Failure, Pool
from evaluator.judging.compare import measure, worst
from evaluator.judging.diagnose import diagnose


def case(got: torch.Tensor, reference: torch.Tensor, dtype: str = "bf16") -> Case:
    """A case whose yardstick is the reference, rounded once."""
    stored = {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    sizes = {"M": reference.numel()}
    return Case("y", dtype, "normal", sizes, got.to(stored), reference, reference.to(stored))


def errors(*arguments: object) -> Errors:
    found = measure(case(*arguments))  # type: ignore[arg-type]
    assert not isinstance(found, Failure)
    return found


@pytest.fixture
def values() -> torch.Tensor:
    return torch.randn(32_768, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("limit", [0.01, 0.03, 0.1])
def test_small_values_that_are_left_out_are_lost_and_the_worst_of_them_is_shown(
    values: torch.Tensor, limit: float
) -> None:
    got = torch.where(values.abs() < limit, 0.0, values)
    found = errors(got, values)
    failure = worst(Pool((case(got, values),), found))
    assert failure.got == 0
    assert limit / 2 < abs(failure.expected) < limit
    assert not found.acceptable


def test_noise_of_the_size_of_a_rounding_is_not_a_loss_however_small_the_values_beside_it(values: torch.Tensor) -> None:
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rounding = errors(values, values).rms(errors(values, values).yardstick_squares)
    assert errors(values + rounding * noise, values).acceptable
    tiny = values * 2.0**-40
    spread = torch.cat([values, tiny])  # what cancels in the large ones is left in the tiny ones
    assert errors(spread + rounding / 2 * torch.cat([noise, noise]), spread).acceptable


def test_errors_of_two_cases_are_those_of_one_that_holds_both(values: torch.Tensor) -> None:
    got = values * (1 + 2.0**-7)
    halves = [errors(*pair) for pair in zip(got.chunk(2), values.chunk(2), strict=True)]
    whole = errors(got, values)
    both = halves[0] + halves[1]
    assert (both.count, both.kernel_largest) == (whole.count, whole.kernel_largest)
    assert both.binades.keys() == whole.binades.keys()
    for exponent, sums in whole.binades.items():
        assert both.binades[exponent] == pytest.approx(sums)
    assert sum(count for count, *_ in whole.binades.values()) == whole.count


def test_a_yardstick_is_eased_to_what_it_is_on_normal_inputs_relative_to_the_values(values: torch.Tensor) -> None:
    normal = errors(values, values)
    small = values * 2.0**-10
    exact = measure(Case("y", "f32", "small", {}, small.float(), small, small.float()))
    assert isinstance(exact, Errors)
    eased = exact.eased(normal)
    relative = normal.rms(normal.yardstick_squares) / float(values.square().mean().sqrt())
    assert eased.rms(eased.yardstick_squares) == pytest.approx(relative * float(small.square().mean().sqrt()), rel=0.01)
    assert eased.yardstick_largest == pytest.approx(normal.yardstick_largest * 2.0**-10, rel=0.01)
    assert exact.eased(Errors()) == exact


@pytest.mark.parametrize(("part", "error_class"), [(1e-3, "imprecise"), (-1.0, "tail")])
def test_a_tail_that_is_computed_badly_is_not_called_left_out(
    values: torch.Tensor, part: float, error_class: str
) -> None:
    should = values[:8192].reshape(64, 128)
    noise = torch.randn(64, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    got = should.clone()
    got[:, 96:] *= 1 + part * (1 if part < 0 else noise)
    found = case(got, should, "f32")
    failure = worst(Pool((found,), errors(got, should, "f32")))
    assert diagnose(failure)[0] == error_class
