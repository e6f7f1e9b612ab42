"""A specialised plan is judged inside its guards: sizes are moved to where it holds."""

from __future__ import annotations

import pytest

from agent.proposers.synthesizer import synthesize
from evaluator.judging.cover import dims
from evaluator.judging.sizes import inside, judged_sizes
from evaluator.trace import Request, Traced, trace
from kernels_generated.runtime.plan import Guard
from knowledge_base.chips import chip
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

CHIP = chip("rtx5070")
NONE: dict[str, tuple[int, ...]] = {}


def test_a_size_moves_to_where_every_guard_holds() -> None:
    guards = [Guard("==", ("mod", "M", 128), 0), Guard("==", "N", 768), Guard("<=", ("cdiv", "M", 128), 16777215)]
    assert inside({"M": 23, "N": 5}, guards, NONE) == {"M": 128, "N": 768}
    assert inside({"M": 256, "N": 768}, guards, NONE) == {"M": 256, "N": 768}


def test_a_product_moves_by_one_of_its_dimensions() -> None:
    (guard,) = guards = [Guard("==", ("mod", ("*", "M", "N"), 1024), 0)]
    found = inside({"M": 31, "N": 6}, guards, NONE)
    assert found is not None
    assert guard.holds(found)


@pytest.mark.parametrize("rest", range(8))
def test_a_size_may_have_to_leave_a_rest(rest: int) -> None:
    guards = [Guard("==", ("mod", "N", 8), rest), Guard("==", ("mod", ("+", "N", 16 - rest), 16), 0)]
    found = inside({"N": 100}, guards, NONE)
    assert found is not None
    assert found["N"] % 16 == rest


def test_a_listed_dimension_takes_listed_values_alone() -> None:
    guards = [Guard("==", ("mod", "D", 64), 0)]
    assert inside({"D": 80}, guards, {"D": (16, 80, 128)}) == {"D": 128}
    assert inside({"D": 80}, guards, {"D": (16, 80)}) is None
    assert inside({"D": 80}, guards, NONE) == {"D": 64}


def test_a_guard_about_the_chip_is_left_aside() -> None:
    assert inside({"M": 1}, [Guard("<", ("min", "num_sms", "M"), 0)], NONE) == {"M": 1}


@pytest.mark.parametrize(
    "task",
    [*map(everyday, ("layernorm", "linear_gelu", "attention", "gelu")), everyday("linear", M=8192, N=50257, K=768)],
    ids=str,
)
def test_a_specialised_kernel_is_judged_at_several_sizes_that_it_serves(task: Task) -> None:
    for candidate in synthesize(task, CHIP)[1:]:
        (traced,) = trace(candidate.source, task, [Request(task.sizes)], CHIP)
        assert isinstance(traced, Traced)
        for seed in range(4):
            sizes = judged_sizes(task, [traced.plan], traced.axes, seed)
            served = [at for at in sizes if traced.plan.applies(dims(at, CHIP))]
            refused = [at for at in sizes if not traced.plan.applies(dims(at, CHIP))]
            assert len(served) >= 3, (candidate.note, seed, sizes)
            assert refused  # and seen to refuse the others
