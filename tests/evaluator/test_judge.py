"""What is right is accepted, over many seeds; what is slightly wrong is not; a judgement says what it rests on."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evaluator.judging.judgement import _Judging, judge
from evaluator.judging.oracle import Oracle
from evaluator.judging.rejection import Rejected
from evaluator.judging.sizes import output_elements
from evaluator.plans import Plans
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.records import Candidate, Stage, Status, Trial, Verdict
from knowledge_base.snf import parse
from knowledge_base.snf.canonical import canonical
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

KERNELS = Path(__file__).parent / "kernels"
CANDIDATES = sorted((Path(__file__).parents[1] / "candidates").glob("*.py"))
CHIP = chip("rtx5070")


def source(name: str) -> str:
    return (KERNELS / f"{name}.py").read_text()


def trial(text: str, task: Task) -> Trial:
    return begin(Candidate(source=text, task=task.identity), task, CHIP)


def judged(text: str, task: Task, oracle: Oracle, seed: int | None = 5) -> tuple[Trial, Verdict]:
    """The trial after its judgement, and its verdict."""
    done = judge(trial(text, task), task, CHIP, oracle=oracle, seed=seed)
    assert done.verdict is not None
    return done, done.verdict


def f32(name: str, text: str) -> Task:
    return canonical(parse(text, name))


@pytest.mark.parametrize("path", CANDIDATES, ids=lambda p: p.stem)
def test_an_honest_candidate_is_correct(path: Path, oracle: Oracle) -> None:
    """With fewer rows than everyday, of which a sample is looked at all the same; ``make attack`` takes them all."""
    text = path.read_text()
    found = re.search(r"# task: (\w+)", text)
    assert found
    task = everyday(found[1])
    fewer = task.at(**{rows: count for rows, count in (("M", 2048), ("B", 2)) if rows in task.sizes})
    done, verdict = judged(text, fewer, oracle, seed=None)
    assert verdict.correct, verdict
    # A row that is one tile ends at what a tile holds, or where launch says so; a few seeds follow rows to there.
    assert all(at["N"] > 8192 for at in done.infeasible), done.infeasible
    assert {"normal", "offset", "onehot", "zeros", "ones", "extreme"} <= set(verdict.numbers)
    assert bool(verdict.message) == bool(done.infeasible), verdict.message  # that is what it says
    (own,) = verdict.numbers["own size"].values()
    # Twelve blocks may be half of a small output, and half of what they write may have no number in the reference: one
    # query of two sees no key.
    assert own["elements"] >= min(4096, output_elements(fewer, fewer.sizes) // 4)
    assert own["rms_ratio"] <= 1.1


def test_a_correct_verdict_says_what_it_rests_on(oracle: Oracle) -> None:
    stages: list[tuple[str, float]] = []
    task = everyday("gelu", M=100, N=70)
    plans = Plans()
    done = judge(
        trial(source("gelu"), task), task, CHIP, plans=plans, oracle=oracle, seed=3,
        progress=lambda stage, share: stages.append((stage, share)),
    )  # fmt: skip
    verdict = done.verdict
    assert verdict is not None
    assert verdict.correct
    assert verdict.hint == verdict.error_class == ""
    normal = verdict.numbers["normal"]["y"]
    assert normal["elements"] >= 16_384
    assert 0.9 < normal["rms_ratio"] < 1.1
    assert "special" in verdict.numbers  # NaN and Inf: the task is elementwise
    assert [e.arch for e in done.evidence] == ["sm_120"]
    assert done.evidence[0].registers > 0
    assert [(plan.digest,) for plan in plans] == [done.plans]
    assert plans.traced(done) is plans.of(done)[0]
    assert len(done.judged) >= 5
    assert done.seed == 3
    assert done.key == trial(source("gelu"), task).key  # fuller, but the same trial
    assert stages[0] == ("trace", 0.0)
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


@pytest.mark.parametrize("name", ["forges_success", "forges_nonsense", "forges_an_answer"])
def test_a_child_that_claims_success_is_not_believed(name: str, oracle: Oracle) -> None:
    text = (CANDIDATES[0].parent / "hostile" / f"{name}.py").read_text()
    done, verdict = judged(text, everyday("gelu", M=100, N=192), oracle)
    assert (verdict.status, verdict.error_class, done.correct, done.judged) == ("invalid", "bad-answer", False, ())


def test_no_rejection_is_a_correct_verdict() -> None:
    with pytest.raises(ValueError, match="correct"):
        Rejected(Verdict(status=Status.CORRECT, stage=Stage.DONE))


def test_launches_that_no_judged_size_makes_are_not_called_correct(oracle: Oracle) -> None:
    # At the task's own sizes it launches with another grid, which is wrong, behind a threshold that no size reaches.
    text = source("gelu").replace(
        "def launch(stream, x, y, *, TM=32, TN=64):\n",
        """def launch(stream, x, y, *, TM=32, TN=64):
    if x.shape[0] > 4_000_000 and x.shape[1] > 3:
        ct.launch(stream, (1,), tile, (x, y, TM, TN))
        return
""",
    )
    _, verdict = judged(text, everyday("gelu", M=5_000_000, N=70), oracle)
    assert (verdict.status, verdict.error_class) == ("unsupported", "own-size-not-judged"), verdict
    assert "M=5000000" in verdict.message
    assert verdict.hint


def test_a_defect_of_the_evaluator_is_the_candidates_verdict_and_says_so(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evaluator.judging import emulation

    def fails(*_: object, **__: object) -> None:
        raise KeyError("a defect\033[2J")

    monkeypatch.setattr(emulation, "emulate", fails)
    _, verdict = judged(source("gelu"), everyday("gelu", M=100, N=70), oracle)
    assert (verdict.status, verdict.error_class) == ("crash", "evaluator-defect")
    assert verdict.message.startswith("the evaluator failed, which says nothing about the kernel: KeyError: 'a defect")
    assert "\033" not in verdict.message
    monkeypatch.undo()
    monkeypatch.setattr(emulation, "emulate", lambda *_, **__: (_ for _ in ()).throw(EnvironmentLacks("no tool")))
    with pytest.raises(EnvironmentLacks):
        judged(source("gelu"), everyday("gelu", M=100, N=70), oracle)


OURS = "{m for m in sys.modules if m.split('.')[0] in ('evaluator', 'knowledge_base', 'kernels_generated')}"
JUDGES = f"""
import sys
import evaluator.trace
from evaluator.judging import judge
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Candidate
from knowledge_base.snf.everyday import everyday
task, gpu, started, child = everyday("gelu", M=100, N=70), chip("rtx5070"), [], evaluator.trace.python_child
def watched(module, *arguments, **more):
    if module == "evaluator.trace.child":
        started.append({OURS})
    return child(module, *arguments, **more)
evaluator.trace.python_child = watched
done = judge(begin(Candidate(source=sys.stdin.read(), task=task.identity), task, gpu), task, gpu)
assert done.correct, done.verdict
print(sorted({OURS} - started[0]))
"""
ANSWERS = f"""
import sys, threading
from multiprocessing import Pipe
from evaluator.judging import oracle_worker
from evaluator.judging.oracle import question
from knowledge_base.snf.everyday import everyday
ours, theirs = Pipe()
threading.Thread(target=oracle_worker.main, args=(theirs,), daemon=True).start()
assert ours.recv() == ("settled", None)
before = {OURS}
task = everyday("attention", B=1, T=5)
ours.send(question(task, task.sizes, "normal", 1))
assert ours.recv()[0] == "answer"
print(sorted({OURS} - before))
"""


@pytest.mark.parametrize("code", [JUDGES, ANSWERS], ids=["judge", "oracle"])
def test_nothing_of_the_judge_is_imported_once_a_candidate_has_run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], input=source("gelu"), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_same_seed_judges_the_same_sizes_and_numbers(oracle: Oracle) -> None:
    task = everyday("gelu", M=100, N=70)
    first, again, other = (judged(source("gelu"), task, oracle, s) for s in (3, 3, 4))
    assert first[0].judged == again[0].judged
    assert first[1].numbers == again[1].numbers
    assert other[0].judged != first[0].judged


def test_without_a_seed_every_judgement_is_another(oracle: Oracle) -> None:
    task = everyday("gelu", M=100, N=70)
    seeds = {judged(source("gelu"), task, oracle, seed=None)[0].seed for _ in range(2)}
    assert len(seeds) == 2


def test_a_plan_that_was_traced_for_its_time_is_the_one_that_is_judged(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evaluator.judging import cover as module
    from evaluator.trace import Request, Traced

    task = everyday("gelu", M=100, N=70)
    begun = trial(source("gelu"), task)
    (traced,) = module.trace(source("gelu"), task, [Request(task.sizes, begun.configuration)], CHIP)
    assert isinstance(traced, Traced)
    asked: list[str] = []
    traces = module.trace

    def counted(*arguments):  # type: ignore[no-untyped-def]
        asked.extend(request.policy for request in arguments[2])
        return traces(*arguments)

    monkeypatch.setattr(module, "trace", counted)
    plans = Plans()
    plans.put(traced)
    done = judge(begun.fuller(plans=(traced.digest,)), task, CHIP, plans=plans, oracle=oracle, seed=5)
    assert done.correct
    assert plans.of(done) == (traced,)
    assert set(asked) == {"concrete"}  # the sizes with plain integers, and nothing else


def test_a_file_that_launches_something_else_than_what_was_timed_is_invalid(oracle: Oracle) -> None:
    task = everyday("gelu", M=100, N=70)
    timed = trial(source("gelu"), task).fuller(plans=("0" * 64,))
    done = judge(timed, task, CHIP, oracle=oracle, seed=5)
    assert done.verdict is not None
    assert (done.verdict.status, done.verdict.error_class) == ("invalid", "launch-changes")
    assert done.verdict.hint
    assert done.plans == timed.plans


def test_a_kernel_that_pins_a_size_gets_a_plan_for_each(oracle: Oracle) -> None:
    task, plans = everyday("attention_qkv", B=1, H=2, T=70), Plans()
    done = judge(trial(source("attention"), task), task, CHIP, plans=plans, oracle=oracle, seed=1)
    assert done.correct, done.verdict
    # What is timed, and so ranked, is the first plan: kernels of other sizes do not count as its own.
    first, *others = plans.of(done)
    assert [e.kernel for e in done.evidence] == list(first.plan.kernels)
    elsewhere = {kernel for plan in others for kernel in plan.plan.kernels} - set(first.plan.kernels)
    assert {e.kernel for e in done.evidence_elsewhere} == elsewhere
    assert {at["D"] for at in done.judged} == {16, 32, 64, 80, 128}
    assert len(done.plans) == 5


def test_a_specialised_kernel_is_correct_but_not_general(oracle: Oracle) -> None:
    text = source("gelu").replace(
        "    ct.launch(",
        "    if x.shape[1] % 64:\n        raise ValueError('N must be a multiple of 64')\n    ct.launch(",
    )
    done, verdict = judged(text, everyday("gelu", M=100, N=128), oracle)
    assert verdict.correct, verdict
    assert not done.general
    assert done.infeasible
    assert all(at["N"] % 64 == 0 for at in done.judged)
    assert "multiple" not in verdict.error_class


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
    _, verdict = judged(text, everyday("gelu", M=16, N=16), oracle)
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

    monkeypatch.setattr("evaluator.kernel.compile_kernels", hurried)
    _, verdict = judged(source("gelu"), everyday("gelu", M=16, N=16), oracle)
    assert (verdict.status, verdict.stage) == ("timeout", "compile"), verdict
    assert verdict.hint


# ---------------------------------------------------------------------------------------------------- statistics


class Bench:
    """Judges one traced candidate again and again on other inputs, without tracing it again."""

    def __init__(self, text: str, task: Task, oracle: Oracle) -> None:
        judging = _Judging(trial(text, task), task, CHIP, 1, lambda stage, share: None)
        judging.trace(None, 1)
        self.examination = judging.examination(1, oracle)
        self.examination.executable.deadline = time.monotonic() + 600

    def accepted(self, seed: int, names: tuple[str, ...]) -> bool:
        self.examination.seed = seed
        self.examination.normal.clear()
        try:
            for number, name in enumerate(names):
                self.examination.distribution(name, number)
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
    seeds = range(1 if kernel == "attention" else 2)  # attention is judged at five head widths each
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
    "an eps of 1e-3": ("layernorm", everyday("layernorm", M=64, N=300), (("1e-5", "1e-3"),), ""),
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
    assert [seed for seed in range(3) if bench.accepted(seed, names)] == []


DOUBLES = "M, N, K = 64, 48, 96\nx: f64[M, K]\ny = Linear(x, N, θ.p)"
IN_DOUBLES = (("0.0, ct.float32", "0.0, ct.float64"), ("bias.astype(ct.float32)", "bias"))


def test_float64_sums_are_right_and_what_float32_rounds_on_the_way_is_not(oracle: Oracle) -> None:
    """The reference is float64 too; PyTorch's results can be its own, bit by bit."""
    text, task = source("linear"), f32("doubles", DOUBLES)
    for old, new in IN_DOUBLES:
        text = text.replace(old, new)
    _, right = judged(text, task, oracle)
    assert right.correct, right.message
    assert 0 < right.numbers["normal"]["y"]["rms"] < 1e-14
    in_float32 = text.replace("ct.float64)", "ct.float32)").replace(
        "acc)", "acc.astype(ct.float64)).astype(ct.float32)"
    )
    _, wrong = judged(in_float32.replace("acc + bias", "acc + bias.astype(ct.float32)"), task, oracle)
    assert (wrong.status, wrong.error_class) == (Status.WRONG, "narrow-accumulator"), wrong.message
    _, rounded = judged(text.replace("acc = acc + ", "acc = acc * 1.1 / 11.0 * 10.0 + "), task, oracle)
    assert rounded.status is Status.WRONG, rounded.message  # cuTile has made a float32 of 1.1


QUANTISED = "M, N = 48, 96\nx: f32[M, N]\ns: f32[N]\ny = Cast(Minimum(Maximum(x / s + 0.5, -128), 127), i32)"
TO_WHOLE = """
import cuda.tile as ct

AXES = {"TM": [16]}

@ct.kernel
def whole(x, s, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    scale = ct.load(s, (j,), (TN,), padding_mode=ct.PaddingMode.ZERO)
    value = ct.load(x, (i, j), (TM, TN), padding_mode=ct.PaddingMode.ZERO) DIVIDED + 0.5
    held = ct.minimum(ct.maximum(value, -128.0), 127.0)
    ct.store(y, (i, j), held.astype(ct.int32))

def launch(stream, x, s, y, *, TM=16):
    ct.launch(stream, (ct.cdiv(x.shape[0], TM), ct.cdiv(x.shape[1], 32)), whole, (x, s, y, TM, 32))
"""


@pytest.mark.parametrize(
    ("divided", "correct"),
    [("/ scale", True), ("* (1.0 / scale)", True), ("/ scale + 0.01", False), ("/ scale * 1.001", False)],
)
def test_what_becomes_an_integer_may_be_rounded_before_and_no_more(divided: str, correct: bool, oracle: Oracle) -> None:
    """NaN has no integer: what comes of the inputs that hold some is not looked at."""
    _, verdict = judged(TO_WHOLE.replace("DIVIDED", divided), f32("quantised", QUANTISED), oracle)
    assert verdict.correct is correct, verdict.message
    assert not correct or not verdict.numbers["special"]


def test_a_cast_that_nothing_bounds_is_refused_where_a_value_has_no_integer(oracle: Oracle) -> None:
    text = TO_WHOLE.replace("DIVIDED", "/ scale").replace("ct.minimum(ct.maximum(value, -128.0), 127.0)", "value * 1e9")
    unbounded = f32("unbounded", "M, N = 48, 96\nx: f32[M, N]\ns: f32[N]\ny = Cast((x / s + 0.5) * 1e9, i32)")
    _, verdict = judged(text, unbounded, oracle)
    assert (verdict.status, verdict.error_class) == (Status.UNSAFE, "undefined-value"), verdict.message


def test_tf32_is_right_where_the_task_allows_it(oracle: Oracle) -> None:
    task = f32("tf", "precision: tf32\nM, N, K = 64, 48, 512\nx: f32[M, K]\ny = Linear(x, N, θ.p)")
    text = source("linear").replace(*MMA)
    assert judged(text, task, oracle)[1].correct


def test_a_quotient_that_is_nan_by_itself_is_no_nan_of_the_input(oracle: Oracle) -> None:
    task = f32("quotient", "M, N = 64, 64\na: f32[M, N]\nb: f32[M, N]\ny = a / b")
    text = source("add").replace("(left + right)", "(left / ct.where(right == 0.0, 1e-20, right))")
    _, verdict = judged(text, task, oracle)
    assert (verdict.status, verdict.error_class) == (Status.WRONG, "nan-missing"), verdict
    assert "the reference is NaN there, though every input is finite" in verdict.message
    right = judged(source("add").replace("(left + right)", "(left / right)"), task, oracle)[1]
    assert right.correct, right
