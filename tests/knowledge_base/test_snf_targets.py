"""Targets, files as tasks, and costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowledge_base.errors import UserError
from knowledge_base.snf import cost, decompose, everyday, load_target, parse, show, targets, task_named


def test_every_shipped_spec_parses_prints_and_decomposes() -> None:
    names = [name for name, _ in targets()]
    assert {"gpt2-block", "gpt2", "nanogpt-nano", "attention-qkv", "linear-residual", "embedding"} <= set(names)
    for name, description in targets():
        assert description
        assert len(description) < 110
        graph = load_target(name).graph
        if len(graph.nodes) < 300:
            assert parse(show(graph)) == graph
            assert decompose(graph, "v2").calls


def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        load_target("gpt2-blok")
    assert "gpt2-block" in caught.value.mend


def test_a_file_is_a_target_and_a_whole_file_may_be_a_task(tmp_path: Path) -> None:
    file = tmp_path / "mine.snf"
    file.write_text("T, C = 200, 80\nx: bf16[T, C]\ny = x + GELU(RMSNorm(x, θ.n))\n", encoding="utf-8")
    target = load_target(str(file), {"T": 7})
    assert (target.name, target.graph.sizes) == ("mine", {"T": 7, "C": 80})
    task = task_named(str(file), {"T": 7})
    assert task.name == f"rmsnorm_gelu_add_{task.identity[:6]}"
    assert task.sizes == {"M": 7, "N": 80}
    assert task_named("linear-gelu", {"M": 3}) == everyday("linear_gelu", M=3)
    assert task_named("rmsnorm").name.startswith("rmsnorm_")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda p: load_target(str(p / "none.snf")), "can't read"),
        (lambda p: load_target(str(p / "latin.snf")), "not UTF-8"),
        (lambda p: load_target(str(p)), "can't read"),
        (lambda p: task_named("gellu"), "no task 'gellu'"),
        (lambda p: task_named("gelu", {"Q": 2}), "no dimension 'Q'"),
        (lambda p: task_named("gelu", {"M": 0}), "at least 1"),
        (lambda p: task_named("gpt2"), "too much for one task"),
        (lambda p: load_target("embedding", {"T": 4096}), "T <= P does not hold"),
    ],
)
def test_what_can_not_be_loaded_is_the_users_to_mend(tmp_path: Path, call, reason: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "latin.snf").write_bytes(b"x: f32[\xff]")
    with pytest.raises(UserError, match=reason):
        call(tmp_path)


def test_costs_are_those_of_the_definitions() -> None:
    linear = cost(everyday("linear_gelu", M=10, N=20, K=30).graph)
    assert linear.flops["matmul"] == 2 * 10 * 20 * 30
    assert linear.flops["elementwise"] == 10 * 20 * (1 + 8)  # bias, GELU's polynomial
    assert linear.flops["special"] == 10 * 20  # its tanh
    assert linear.read_bytes == 2 * (10 * 30 + 20 * 30 + 20)
    assert linear.write_bytes == 2 * 10 * 20
    assert cost(everyday("gelu", M=3, N=5).graph, {"M": 6}).read_bytes == 2 * 6 * 5


def test_a_causal_mask_halves_the_products_and_scores() -> None:
    task = everyday("attention", B=2, T=5, H=3, D=16)
    visible = 5 * 6 // 2
    assert cost(task.graph).flops["matmul"] == 2 * (2 * 2 * 3 * visible * 16)
    text = "H, T, S, D = 2, 3, 7, 16\nq: f32[H, T, D]\nk: f32[H, S, D]\nv: f32[H, S, D]\ny = Softmax(q @ k.T{}) @ v"
    assert cost(parse(text.format(""))).flops["matmul"] == 2 * 2 * 2 * 3 * 7 * 16
    assert cost(parse(text.format(" + Mask_Causal"))).flops["matmul"] == 2 * 2 * 2 * (5 + 6 + 7) * 16


def test_of_a_gathered_table_only_the_rows_looked_up_are_read() -> None:
    task = everyday("embedding", B=2, T=3, V=1000, P=100, C=4)
    assert cost(task.graph).read_bytes == 8 * 6 + 2 * 6 * 4 + 2 * 3 * 4
    small = everyday("embedding", B=2, T=3, V=2, P=3, C=4)
    assert cost(small.graph).read_bytes == 8 * 6 + 2 * 2 * 4 + 2 * 3 * 4
