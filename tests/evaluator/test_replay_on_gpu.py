"""Replay on a card: honest kernels are confirmed, faults and hangs end one runner, a faulty compiler is found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.judging import JudgeProcess, Rejected
from evaluator.plans import Plans
from evaluator.replay import Runner, confirmed
from evaluator.replay.confirm import cubins_of
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from knowledge_base.chips import from_driver
from knowledge_base.records import Candidate, Trial, Verdict
from knowledge_base.snf import decompose, parse
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

pytestmark = pytest.mark.gpu

CANDIDATES = Path(__file__).parent.parent / "candidates"
KERNELS = Path(__file__).parent / "kernels"
SIZES = {"M": 1000, "N": 768, "K": 512, "B": 2, "T": 200, "H": 3, "D": 64, "V": 300, "P": 200, "C": 192, "S": 300}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as one:
        yield one


@pytest.fixture(scope="module")
def judges() -> Iterator[JudgeProcess]:
    with JudgeProcess() as one:
        yield one


def looked_at(
    text: str, task: Task, runner: Runner, judges: JudgeProcess, axes: dict[str, int] | None = None
) -> tuple[Trial, Trial]:
    """The trial as the judge gives it, and as the card leaves it."""
    chip, plans = from_driver(), Plans()
    begun = begin(Candidate(source=text, task=task.identity), task, chip, axes)
    trial = judges.judge(begun, task, chip, plans=plans)
    assert trial.correct, trial.verdict
    return trial, confirmed(trial, task, chip, plans, runner, judges)


@pytest.mark.parametrize("file", sorted(CANDIDATES.glob("*.py")), ids=lambda file: file.stem)
def test_an_honest_candidate_is_confirmed(file: Path, runner: Runner, judges: JudgeProcess) -> None:
    text = file.read_text()
    task = everyday(re.match(r"# task: (\w+)", text)[1])  # type: ignore[index]
    _, after = looked_at(text, task.at(**{d: SIZES[d] for d in task.sizes}), runner, judges)
    assert after.correct, after.verdict
    assert after.verdict is not None
    assert {"normal, on the GPU", "on the GPU, full size", "GPU − emulator"} <= set(after.verdict.numbers)
    print(file.stem, {name: f["rms_ratio"] for name, f in after.verdict.numbers["GPU − emulator"].items()})


def test_what_the_compiler_makes_wrong_is_found_and_named(runner: Runner, judges: JudgeProcess) -> None:
    text, task = (KERNELS / "layernorm_prefetch.py").read_text(), everyday("layernorm", M=8192, N=768)
    if from_driver().arch != "sm_90":
        pytest.skip("the fault is sm_90's")
    before, after = looked_at(text, task, runner, judges, {"TM": 8})
    assert before.verdict is not None
    said = [finding.message for finding in before.verdict.findings if finding.kind == "compiler-fault"]
    assert len(said) == len(before.verdict.findings) == 2, said  # its carried loads, and its store where N is 1
    assert after.verdict is not None
    assert (after.verdict.status, after.verdict.error_class) == ("disagrees", "compiler-fault"), after.verdict
    print(after.verdict.message)
    around = text.replace("latency=LAT)", "latency=LAT, allow_tma=False)").replace(
        "y.dtype))", "y.dtype), allow_tma=False)"
    )
    _, after = looked_at(around, task, runner, judges, {"TM": 8})
    assert after.correct, after.verdict


def test_a_store_beyond_the_end_of_its_array_is_found_and_named(runner: Runner, judges: JudgeProcess) -> None:
    text = (KERNELS / "row_sums.py").read_text()
    if from_driver().arch != "sm_90":
        pytest.skip("the fault is sm_90's")
    (task,) = decompose(parse("M, N = 65, 64\nx: bf16[M, N]\ny = Sum(x)\n", "sums.snf"), "v2").tasks
    _, after = looked_at(text, task, runner, judges)
    assert after.verdict is not None
    assert (after.verdict.status, after.verdict.error_class) == ("disagrees", "compiler-fault"), after.verdict
    assert "behind the end of y" in after.verdict.message
    _, after = looked_at(text.replace("y.dtype))", "y.dtype), allow_tma=False)"), task, runner, judges)
    assert after.correct, after.verdict


HEAD = """
import cuda.tile as ct

@ct.kernel
def kernel(x, y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    v = ct.load(x, index=(i,), shape=(TILE,))
    {body}
    ct.store(y, index=(i,), tile=v)

def launch(stream, x, y):
    flat, out = x.view(-1), y.view(-1)
    ct.launch(stream, (ct.cdiv(x.numel(), 256),), kernel, (flat, out, 256))
"""
STRAYS = HEAD.format(
    body="v = ct.gather(x, ct.arange(256, dtype=ct.int32) * 8000000 + 2000000000, check_bounds=False) + v"
)
HANGS = HEAD.format(body="while ct.max(v) < 3.0e38:\n        v = ct.minimum(v * 0.5, v)")


@pytest.mark.parametrize(
    ("text", "seconds", "status", "error_class"),
    [(STRAYS, 60, "crash", "gpu-fault"), (HANGS, 8, "timeout", "gpu-hang")],
)
def test_a_kernel_that_faults_or_hangs_ends_its_runner_and_the_next_is_right(
    text: str, seconds: float, status: str, error_class: str
) -> None:
    """Neither would come past the judge: this is what the runner does with one that did."""
    task, chip = everyday("gelu", M=1000, N=768), from_driver()
    right = (CANDIDATES / "gelu_tiles.py").read_text()
    with Runner() as runner:
        for source in (right, text, right):
            (traced,) = trace(source, task, [Request(task.sizes)], chip)
            assert isinstance(traced, Traced), traced
            cubins = cubins_of([traced], chip)
            assert not isinstance(cubins, Verdict)
            asked = (task, (traced,), cubins, chip, [task.sizes], 1, ("normal",), 60.0)
            if source is right:
                assert runner.call("examined", *asked, seconds=60)["normal"]["y"]["elements"] == 768000
                continue
            with pytest.raises(Rejected) as raised:
                runner.call("examined", *asked, seconds=seconds)
            verdict = raised.value.verdict
            assert (verdict.status, verdict.error_class) == (status, error_class), verdict
