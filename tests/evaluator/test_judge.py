"""What is right is accepted, over many seeds; what is slightly wrong is not; a judgement says what it rests on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.cases import Runner
from evaluator.judge import Rejected, _Judging, judge
from evaluator.oracle import Oracle
from knowledge_base.chips import chip
from knowledge_base.records import Verdict
from knowledge_base.snf import parse
from knowledge_base.snf.canonical import canonical
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

KERNELS = Path(__file__).parent / "kernels"
CANDIDATES = sorted((Path(__file__).parents[1] / "candidates").glob("*.py"))
CHIP = chip("rtx5070")


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as started:
        yield started


def source(name: str) -> str:
    return (KERNELS / f"{name}.py").read_text()


def f32(name: str, text: str) -> Task:
    return canonical(parse(text, name))


@pytest.mark.parametrize("path", CANDIDATES, ids=lambda p: p.stem)
def test_an_honest_candidate_is_correct(path: Path, oracle: Oracle) -> None:
    text = path.read_text()
    found = re.search(r"# task: (\w+)", text)
    assert found
    judgement = judge(text, everyday(found[1]), CHIP, oracle=oracle)
    assert judgement.verdict.correct, judgement.verdict
    assert judgement.general
    assert {"normal", "offset", "onehot", "zeros", "ones", "extreme"} <= set(judgement.verdict.numbers)


def test_a_correct_verdict_says_what_it_rests_on(oracle: Oracle) -> None:
    stages: list[tuple[str, float]] = []
    judgement = judge(
        source("gelu"), everyday("gelu", M=100, N=70), CHIP, oracle=oracle, seed=3,
        progress=lambda stage, share: stages.append((stage, share)),
    )  # fmt: skip
    verdict = judgement.verdict
    assert verdict.correct
    assert verdict.hint == verdict.error_class == ""
    normal = verdict.numbers["normal"]["y"]
    assert normal["elements"] >= 16_384
    assert 0.9 < normal["rms_ratio"] < 1.1
    assert "special" in verdict.numbers  # NaN and Inf: the task is elementwise
    assert [e.arch for e in verdict.evidence] == ["sm_120"]
    assert verdict.evidence[0].registers > 0
    assert len(judgement.plans) == 1
    assert len(judgement.sizes) >= 5
    assert judgement.seed == 3
    assert stages[0] == ("trace", 0.0)
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_the_same_seed_judges_the_same_sizes_and_numbers(oracle: Oracle) -> None:
    task = everyday("gelu", M=100, N=70)
    first, again, other = (judge(source("gelu"), task, CHIP, oracle=oracle, seed=s) for s in (3, 3, 4))
    assert first.sizes == again.sizes
    assert first.verdict.numbers == again.verdict.numbers
    assert other.sizes != first.sizes


def test_without_a_seed_every_judgement_is_another(oracle: Oracle) -> None:
    task = everyday("gelu", M=100, N=70)
    seeds = {judge(source("gelu"), task, CHIP, oracle=oracle, thorough=False).seed for _ in range(2)}
    assert len(seeds) == 2


def test_a_kernel_that_pins_a_size_gets_a_plan_for_each(oracle: Oracle) -> None:
    judgement = judge(source("attention"), everyday("attention_qkv", B=1, H=2, T=70), CHIP, oracle=oracle, seed=5)
    assert judgement.verdict.correct, judgement.verdict
    assert {at["D"] for at in judgement.sizes} == {16, 32, 64, 80, 128}
    assert len(judgement.plans) == 5


def test_a_specialised_kernel_is_correct_but_not_general(oracle: Oracle) -> None:
    text = source("gelu").replace(
        "    ct.launch(",
        "    if x.shape[1] % 64:\n        raise ValueError('N must be a multiple of 64')\n    ct.launch(",
    )
    judgement = judge(text, everyday("gelu", M=100, N=128), CHIP, oracle=oracle, seed=5)
    assert judgement.verdict.correct, judgement.verdict
    assert not judgement.general
    assert judgement.infeasible
    assert all(at["N"] % 64 == 0 for at in judgement.sizes)
    assert "multiple" not in judgement.verdict.error_class


UNSIGNED = "u = ct.arange(TN, dtype=ct.uint32) // 3"
REFUSED = {
    "ir-verification": (
        ("    ct.store(y", f"    {UNSIGNED}\n    t = t + u.astype(ct.float32)[None, :]\n    ct.store(y"),
    ),
    "tile-too-large": (("[32]", "[8192]"), ("[64]", "[8192]"), ("TM=32, TN=64", "TM=8192, TN=8192")),
}  # fmt: skip


@pytest.mark.parametrize("error_class", REFUSED)
def test_tile_ir_that_the_toolchain_refuses_is_a_compile_error_with_a_hint(error_class: str, oracle: Oracle) -> None:
    text = source("gelu")
    for old, new in REFUSED[error_class]:
        text = text.replace(old, new)
    verdict = judge(text, everyday("gelu", M=16, N=16), CHIP, oracle=oracle, seed=5).verdict
    assert (verdict.status, verdict.error_class) == ("compile-error", error_class), verdict
    assert verdict.hint
    if error_class == "ir-verification":
        assert verdict.source == UNSIGNED


def test_what_the_assembler_refuses_is_rejected_even_if_the_numbers_are_right(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The real assembler under a limit that it cannot keep: its answer is a verdict in a cubin's place.
    from evaluator.compile import Cache, compile_kernels

    def hurried(kernels, archs, **options):  # type: ignore[no-untyped-def]
        return compile_kernels(kernels, archs, cache=Cache(tmp_path), seconds=0.01)

    monkeypatch.setattr("evaluator.compile.compile_kernels", hurried)
    verdict = judge(source("gelu"), everyday("gelu", M=16, N=16), CHIP, oracle=oracle, seed=5).verdict
    assert (verdict.status, verdict.stage) == ("timeout", "compile"), verdict
    assert verdict.hint


# ---------------------------------------------------------------------------------------------------- statistics


class Bench:
    """Judges one traced candidate again and again on other inputs, without tracing it again."""

    def __init__(self, text: str, task: Task, oracle: Oracle) -> None:
        self.judging = _Judging(text, task, CHIP, {}, 1, oracle, True, 1, None)
        self.judging.trace()
        covered = self.judging.covered
        assert covered is not None
        self.runner = Runner(task, covered.plans, text, time.monotonic() + 600)
        self.plan_of = {tuple(sorted(at.items())): index for at, index in covered.chosen}

    def accepted(self, seed: int, names: tuple[str, ...]) -> bool:
        self.judging.seed = seed
        self.judging.normal.clear()
        try:
            for number, name in enumerate(names):
                self.judging.distribution(name, number, self.runner, self.plan_of)
        except Rejected:
            return False
        return True


HONEST = {
    "linear bf16": ("linear", everyday("linear", M=64, N=48, K=512)),
    "layernorm bf16": ("layernorm", everyday("layernorm", M=64, N=300)),
    "attention bf16": ("attention", everyday("attention_qkv", B=1, H=2, T=70)),
    "layernorm f32": ("layernorm", f32("ln", "M, N = 64, 300\nx: f32[M, N]\ny = LayerNorm(x, θ.ln)")),
    "softmax f32": ("softmax", f32("sm", "M, N = 64, 300\nx: f32[M, N]\ny = Softmax(x)")),
    "linear f32": ("linear", f32("li", "M, N, K = 64, 48, 512\nx: f32[M, K]\ny = Linear(x, N, θ.p)")),
    "gelu f32": ("gelu", f32("ge", "M, N = 64, 300\nx: f32[M, N]\ny = GELU(x)")),
}


@pytest.mark.parametrize("name", HONEST)
def test_no_honest_kernel_is_rejected_by_chance(name: str, oracle: Oracle) -> None:
    kernel, task = HONEST[name]
    bench = Bench(source(kernel), task, oracle)
    names = ("normal", "offset", "onehot", "zeros", "ones", "extreme")
    seeds = range(3 if kernel == "attention" else 6)  # attention is judged at five head widths each
    assert [seed for seed in seeds if not bench.accepted(seed, names)] == []


NARROW = (
    ("ct.full((TM, TN), 0.0, ct.float32)", "ct.full((TM, TN), 0.0, ct.{0})"),
    ("ct.transpose(right), acc)", "ct.transpose(right), acc.astype(ct.float32)).astype(ct.{0})"),
    ("    acc = acc + bias", "    acc = acc.astype(ct.float32) + bias"),
)
TF32 = "ct.mma(left.astype(ct.tfloat32), ct.transpose(right).astype(ct.tfloat32)"
MMA = ("ct.mma(left, ct.transpose(right)", TF32)
SLIGHTLY_WRONG = {
    "bf16 sums over K = 512": ("linear", everyday("linear", M=64, N=48, K=512), NARROW, "bfloat16"),
    "f16 sums over K = 512": (
        "linear", f32("li", "M, N, K = 64, 48, 512\nx: f16[M, K]\ny = Linear(x, N, θ.p)"), NARROW, "float16"
    ),
    "tf32 where the task says ieee": (
        "linear",
        f32("li", "M, N, K = 64, 48, 512\nx: f32[M, K]\ny = Linear(x, N, θ.p)"),
        (MMA,),
        "",
    ),
    "an eps of 1e-6": ("layernorm", everyday("layernorm", M=64, N=300), (("1e-5", "1e-3"),), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SLIGHTLY_WRONG)
def test_a_slightly_wrong_kernel_is_rejected_whatever_the_seed(name: str, oracle: Oracle) -> None:
    kernel, task, changes, dtype = SLIGHTLY_WRONG[name]
    text = source(kernel)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new.format(dtype))
    bench = Bench(text, task, oracle)
    names = ("normal", "cancelling", "onehot")
    assert [seed for seed in range(10) if bench.accepted(seed, names)] == []


def test_tf32_is_right_where_the_task_allows_it(oracle: Oracle) -> None:
    task = f32("tf", "precision: tf32\nM, N, K = 64, 48, 512\nx: f32[M, K]\ny = Linear(x, N, θ.p)")
    text = source("linear").replace(*MMA)
    assert judge(text, task, CHIP, oracle=oracle, seed=5).verdict.correct
