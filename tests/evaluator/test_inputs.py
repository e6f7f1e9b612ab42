"""Hidden inputs and judged sizes: reproducible from a seed, varied without one, legal for every task."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.judging import inputs
from evaluator.judging.inputs import OFFSET_SIGMAS, distributions, draw
from evaluator.judging.sizes import ELEMENTS, MAX_WORK, judged_sizes, output_elements, tiles, work
from kernels_generated.runtime.expr import evaluate, holds
from kernels_generated.runtime.plan import Guard, Launch, LaunchPlan
from knowledge_base.snf import parse
from knowledge_base.snf.everyday import NAMES, everyday

SMALL = {
    "linear": {"M": 17, "N": 33, "K": 65},
    "embedding": {"B": 2, "T": 9, "V": 31, "P": 11, "C": 5},
    "gelu": {"M": 64, "N": 65},
    "layernorm": {"M": 7, "N": 100},
}


def test_a_large_tensor_is_drawn_in_blocks_none_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "BLOCK", 4096)
    graph, sizes = everyday("gelu").graph, {"M": 5, "N": 4000}
    x, again, other = (draw(graph, sizes, "normal", seed)["x"].float().reshape(-1) for seed in (5, 5, 6))
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    blocks = x.split(4096)
    assert [len(block) for block in blocks] == [4096] * 4 + [20000 - 4 * 4096]
    assert all(abs(block.mean()) < 0.1 and abs(block.std() - 1) < 0.1 for block in blocks)
    assert all(not torch.equal(a[:3000], b[:3000]) for i, a in enumerate(blocks) for b in blocks[:i])


def test_the_same_seed_gives_the_same_values_and_another_seed_others() -> None:
    graph = everyday("linear").graph
    for name in distributions(graph):
        first, again = (draw(graph, SMALL["linear"], name, 5) for _ in range(2))
        assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(
        draw(graph, SMALL["linear"], "normal", 5)["x"], draw(graph, SMALL["linear"], "normal", 6)["x"]
    )


def test_inputs_have_the_shapes_and_dtypes_that_the_task_declares() -> None:
    for task, sizes in ((everyday(n), SMALL[n]) for n in SMALL):
        for name in distributions(task.graph):
            values = draw(task.graph, sizes, name, 1)
            assert list(values) == [t.name for t in task.inputs]
            for t in task.inputs:
                assert tuple(values[t.name].shape) == tuple(evaluate(s, sizes) for s in t.shape)
                assert values[t.name].is_contiguous()


def test_weights_are_scaled_by_their_fan_in_so_that_outputs_stay_of_order_one() -> None:
    sizes = {"M": 4, "N": 256, "K": 1024}
    values = draw(everyday("linear").graph, sizes, "normal", 3)
    assert values["w"].float().std() == pytest.approx(1 / 32, rel=0.05)
    assert values["b"].float().std() == pytest.approx(1, rel=0.3)


def test_the_offset_is_sixteen_sigmas_in_sixteen_bits() -> None:
    x = draw(everyday("layernorm").graph, SMALL["layernorm"], "offset", 3)["x"].float()
    assert x.mean() == pytest.approx(OFFSET_SIGMAS["bf16"], abs=0.3)
    assert x.std() == pytest.approx(1, abs=0.15)


def test_one_hot_rows_have_one_one_and_constant_inputs_are_constant() -> None:
    graph, sizes = everyday("linear").graph, SMALL["linear"]
    assert torch.equal(draw(graph, sizes, "onehot", 1)["x"].float().sum(1), torch.ones(17))
    assert not draw(graph, sizes, "zeros", 1)["x"].any()
    assert (draw(graph, sizes, "ones", 1)["x"] == 1).all()
    assert draw(graph, sizes, "zeros", 1)["w"].float().std() > 0  # weights stay normal: zeros show the bias


def test_nan_and_inf_are_given_to_elementwise_tasks_only() -> None:
    assert "special" in distributions(everyday("gelu").graph)
    assert "special" not in distributions(everyday("softmax").graph)
    x = draw(everyday("gelu").graph, SMALL["gelu"], "special", 2)["x"].float()
    assert x.isnan().any()
    assert (x == math.inf).any()
    assert (x == -math.inf).any()
    assert x.isfinite().float().mean() > 0.8


def test_cancelling_sums_climb_far_above_their_result() -> None:
    values = draw(everyday("linear").graph, {"M": 64, "N": 64, "K": 512}, "cancelling", 4)
    terms = values["x"].double()[:, None, :] * values["w"].double()[None, :, :]
    climb = terms.cumsum(-1).abs().amax(-1)
    assert (climb.mean() / terms.sum(-1).abs().mean()) > 10


@given(st.integers(0, 2**48), st.sampled_from(["normal", "extreme", "zeros", "ones", "onehot"]))
@settings(max_examples=25, deadline=None)
def test_tokens_always_lie_inside_the_table(seed: int, name: str) -> None:
    sizes = SMALL["embedding"]
    tokens = draw(everyday("embedding").graph, sizes, name, seed)["tokens"]
    assert tokens.dtype == torch.int64
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < sizes["V"]


def test_half_of_the_rows_are_small_and_the_others_smaller() -> None:
    values = draw(everyday("linear").graph, {"M": 64, "N": 256, "K": 256}, "small", 3)
    x = values["x"].double()
    assert x[:32].std() == pytest.approx(2.0**-10, rel=0.1)
    assert x[32:].std() == pytest.approx(2.0**-20, rel=0.1)
    assert values["b"].double().std() == pytest.approx(2.0**-10, rel=0.2)
    assert values["w"].double().std() == pytest.approx(1 / 16, rel=0.05)  # what is summed is small enough


@pytest.mark.parametrize("text", ["x: f32[M, N]\ny = Softmax(x)", "x: f32[M, N]\ny = exp(square(x))",
                                  "x: bf16[M, N]\nk: bf16[M, N]\ny = Softmax(x @ k.T / sqrt(N))"])  # fmt: skip
def test_what_is_exponentiated_has_maxima_from_ten_to_a_thousand(text: str) -> None:
    graph = parse(f"M, N = 400, 64\n{text}")
    x, k = (draw(graph, graph.sizes, "large", 3).get(name, torch.zeros(1, 1)).double() for name in ("x", "k"))
    top = (x @ k.T / 8 if "k.T" in text else x.square() if "square" in text else x).amax(1)
    assert top.quantile(0.05) < 90
    assert top.quantile(0.9) > 250
    assert top.max() < 5000


def integers(text: str) -> dict[str, list[int]]:
    graph = parse(text)
    drawn = [draw(graph, graph.sizes, "normal", seed) for seed in range(20)]
    return {t.name: sorted({int(v) for d in drawn for v in d[t.name].reshape(-1)}) for t in graph.inputs}


def test_integers_lie_around_all_that_they_are_compared_with_and_below_zero() -> None:
    text = "T, V = 50, 1000\nt: i64[T]\nx: f32[T]\ny = Where(t == -100, 0, Where(2*t < V, x, 1))"
    found = integers(text)["t"]
    assert {-101, -100, -99, -1, 0, 1, 499, 500, 501} <= set(found)
    assert found[0] < -100
    assert found[-1] > 501
    assert len([t for t in found if 1 < t < 498]) > 100
    alone = integers("T = 50\nt: i32[T]\nx: f32[T]\ny = x * t")["t"]
    assert (alone[0], alone[-1]) == (-8, 7)


def test_an_index_takes_its_ends_and_the_labels_beyond_them_that_are_legal() -> None:
    text = "T, V, C = 50, 90, 4\nt: i64[T]\nw: bf16[V, C]\ny = Gather(w, Where(t == -100, 0, t))"
    found = integers(text.replace("bf16", "f32"))["t"]
    assert found[:2] == [-100, 0]
    assert found[-1] == 89
    assert integers("T, V, C = 50, 90, 4\nt: i64[T]\nw: f32[V, C]\ny = Gather(w, t)")["t"][0] == 0


def test_integers_are_sorted_in_one_distribution_and_repeated_in_another() -> None:
    graph = parse("T, C = 64, 4\nt: i64[T]\nw: f32[T, C]\ny = Gather(w, t)")
    t = draw(graph, graph.sizes, "offset", 1)["t"]
    assert torch.equal(t, t.sort().values)
    runs = draw(graph, graph.sizes, "onehot", 1)["t"].reshape(-1, 4)
    assert torch.equal(runs, runs[:, :1].expand(-1, 4))
    assert len(runs[:, 0].unique()) > 4


# ---------------------------------------------------------------------------------------------------- sizes


def plan(guards: tuple[Guard, ...] = (), grid: object = ("cdiv", "M", 64)) -> LaunchPlan:
    launch = Launch("0" * 64, "k", (grid, 1, 1), ())  # type: ignore[arg-type]
    return LaunchPlan("t", "general", ("M", "N", "num_sms"), (), (), (launch,), guards)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_judged_sizes_keep_the_tasks_constraints_and_can_be_emulated_quickly(name: str, seed: int) -> None:
    task = everyday(name)
    rows = judged_sizes(task, [], {"TM": 64, "TN": 128, "TK": 32}, seed)
    assert len(rows) >= 5
    assert dict.fromkeys(task.sizes, 1) in rows
    for row in rows:
        assert all(holds(c, evaluate(left, row), evaluate(right, row)) for c, left, right in task.constraints)
        assert work(task.graph, row) <= MAX_WORK
    assert output_elements(task, rows[0]) >= ELEMENTS


def test_sizes_stand_on_both_sides_of_the_tiles_that_the_grid_names() -> None:
    task = everyday("gelu")
    rows = judged_sizes(task, [plan()], {}, 5)
    assert {63, 65} <= {row["M"] for row in rows}
    assert tiles([plan()], {}, ("M", "N")) == {"M": (64,), "N": ()}


def test_every_dimension_is_judged_past_the_samples_own_size() -> None:
    task = everyday("gelu", M=3000, N=700)
    rows = judged_sizes(task, [plan()], {}, 5)
    assert any(row["M"] > 3000 for row in rows)
    assert any(row["N"] > 700 for row in rows)


def test_sizes_stand_on_both_sides_of_a_guard() -> None:
    task = everyday("gelu")
    guarded = plan((Guard(">=", "M", 500),))
    seen = {row["M"] for seed in range(30) for row in judged_sizes(task, [guarded], {}, seed)}
    assert {499, 500, 501} <= seen


def test_a_dimension_that_a_plan_pins_takes_all_the_listed_values_and_no_others() -> None:
    task = everyday("attention_qkv")
    pinned = plan((Guard("==", "D", 64),))
    rows = judged_sizes(task, [pinned], {}, 5)
    assert {row["D"] for row in rows} == {16, 32, 64, 80, 128}


def test_another_seed_judges_at_other_sizes() -> None:
    task = everyday("linear")
    assert judged_sizes(task, [plan()], {}, 5) == judged_sizes(task, [plan()], {}, 5)
    assert judged_sizes(task, [plan()], {}, 5) != judged_sizes(task, [plan()], {}, 6)
