"""The composed target: kernels that are right together, and one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator.composed import Winner, judge_composed
from evaluator.oracle import Oracle
from evaluator.trace import Request, Traced, trace
from knowledge_base.chips import chip
from knowledge_base.snf import parse
from knowledge_base.snf.decompose import decompose
from knowledge_base.snf.task import Decomposition

KERNELS = Path(__file__).parent / "kernels"
CHIP = chip("rtx5070")
TEXT = """
B, T, C, W = 2, 40, 48, 100
x: bf16[B, T, C]
n = LayerNorm(x, θ.ln)
h = Linear(n, W, θ.up)
y = Linear(h, C, θ.down)
"""


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as started:
        yield started


@pytest.fixture(scope="module")
def target() -> Decomposition:
    return decompose(parse(TEXT, "target"))


def winners(target: Decomposition) -> dict[str, Winner]:
    out: dict[str, Winner] = {}
    for task in target.tasks:
        source = (KERNELS / f"{task.name}.py").read_text()
        traced = trace(source, task, [Request(task.sizes)], CHIP)[0]
        assert isinstance(traced, Traced)
        out[task.identity] = Winner(source, {}, (traced,))
    return out


def test_right_kernels_are_right_together(target: Decomposition, oracle: Oracle) -> None:
    judgement = judge_composed(target, winners(target), CHIP, oracle=oracle, seed=1)
    assert judgement.verdict.correct, judgement.verdict
    assert {"normal", "offset", "zeros"} <= set(judgement.verdict.numbers)
    assert judgement.verdict.numbers["normal"]["y"]["elements"] >= 16_384
    assert judgement.plans == ()


@pytest.mark.parametrize("seed", range(4))
def test_composition_is_accepted_whatever_the_seed(target: Decomposition, oracle: Oracle, seed: int) -> None:
    assert judge_composed(target, winners(target), CHIP, oracle=oracle, seed=seed).verdict.correct


def test_one_wrong_kernel_makes_the_target_wrong(target: Decomposition, oracle: Oracle) -> None:
    chosen = winners(target)
    task = next(t for t in target.tasks if t.name == "layernorm")
    source = chosen[task.identity].source.replace("part * scale * w + b", "part * scale * w")
    chosen[task.identity] = Winner(source, {}, ())
    judgement = judge_composed(target, chosen, CHIP, oracle=oracle, seed=1)
    assert judgement.verdict.status == "wrong", judgement.verdict
    assert "PyTorch" in judgement.verdict.message
    assert len(judgement.plans) == 1  # no plan was given: one was traced


def test_a_kernel_that_leaves_a_buffer_unwritten_is_named_by_its_call(target: Decomposition, oracle: Oracle) -> None:
    chosen = winners(target)
    task = next(t for t in target.tasks if t.name == "layernorm")
    source = chosen[task.identity].source.replace("(x.shape[0],), rows", "(max(1, x.shape[0] - 1),), rows")
    chosen[task.identity] = replace(chosen[task.identity], source=source, plans=())
    verdict = judge_composed(target, chosen, CHIP, oracle=oracle, seed=1).verdict
    assert verdict.status == "unsafe", verdict
    assert verdict.hint


TF32 = {
    "one Linear": "precision: tf32\nx: f32[40, 72]\ny = Linear(x, 56, θ.p)\n",
    "two Linear": "precision: tf32\nx: f32[40, 72]\nh = Linear(x, 56, θ.p)\ny = Linear(h, 24, θ.q)\n",
}


@pytest.mark.parametrize("text", TF32.values(), ids=TF32.keys())
def test_a_tf32_target_is_measured_against_tf32_pytorch(text: str, oracle: Oracle) -> None:
    target = decompose(parse(text, "target"))
    chosen: dict[str, Winner] = {}
    for task in target.tasks:
        source = (KERNELS / "linear.py").read_text()
        source = source.replace("mma(left, ct.transpose(right)", "mma(rounded(left), ct.transpose(rounded(right))")
        source = source.replace(
            "@ct.kernel\n", "def rounded(t):\n    return t.astype(ct.tfloat32)\n\n\n@ct.kernel\n", 1
        )
        chosen[task.identity] = Winner(source, {}, ())
    verdict = judge_composed(target, chosen, CHIP, oracle=oracle, seed=1).verdict
    assert verdict.correct, verdict
    assert verdict.numbers["normal"]["y"]["yardstick_rms"] > 1e-5  # float32 sums would be off by 1e-7
