"""A specialised plan is judged inside its guards: sizes are moved to where it holds."""

from __future__ import annotations

import pytest

from agent.proposers.synthesizer import synthesize
from evaluator.judging.cover import dims
from evaluator.judging.sizes import fit, inside, judged_sizes, output_elements, work
from evaluator.trace import Request, Traced, trace
from kernels_generated.runtime.plan import Guard
from knowledge_base.chips import chip
from knowledge_base.snf import parse
from knowledge_base.snf.canonical import canonical
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


@pytest.mark.parametrize("rest", [("N",), ("N", "K")])
def test_a_table_as_long_as_the_positions_in_it_is_left_so(rest: tuple[str, ...]) -> None:
    """Where it is cut, it has to be made longer again: what is cut then is another dimension."""
    wide = ", ".join(rest)
    task = canonical(parse(f"T, {wide} = 19{', 24' * len(rest)}\np: f32[T + 1, {wide}]\ny = Gather(p, Range(T) + 1)"))
    table = task.inputs[0].shape[0]
    assert isinstance(table, str)
    for most in (10_000, 100):
        cut = fit(
            task, dict.fromkeys(task.sizes, 5_000) | {table: 5_001}, frozenset(), work(task.graph, task.sizes), most
        )
        assert cut is not None
        assert output_elements(task, cut) <= most
        assert cut["T"] < cut[table]
    assert all(at["T"] < at[table] for seed in range(4) for at in judged_sizes(task, (), {}, seed))
