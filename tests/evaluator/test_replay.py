"""Replay against a device that runs on the emulator: real results, scripted faults."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from device_double import CHIP, DOUBLE, DeviceDouble, source, traced
from runner_again import LentPython

from evaluator.judging import JudgeProcess, Rejected, question
from evaluator.plans import Plans
from evaluator.replay import Composition, Runner, Runners, bench, confirm, confirmed
from evaluator.replay.runner_server import answered
from evaluator.replay.wire import FULL, RESULT
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from knowledge_base.chips import Chip, chip, devices_of
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.hints import classify
from knowledge_base.records import Candidate, Status, Trial
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))


def asked(name: str, names: tuple[str, ...] | None = ("normal",)) -> tuple[object, ...]:
    """What :func:`evaluator.replay.bench.examined` takes; the bytecode itself is the double's cubin."""
    task, one = traced(name)
    return task, (one,), dict(one.kernels), CHIP, [task.sizes], 1, names, 60.0


def examined(script: Mapping[str, object], name: str, names: tuple[str, ...] | None = ("normal",)) -> Mapping:
    """In this process: most of what a runner does needs no process of its own."""
    return bench.examined(*asked(name, names), bench.Bench(DeviceDouble({}, script)))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("name", ["gelu_tiles", "linear_split_k", "layernorm_rows", "attention_online"])
def test_a_right_plan_is_right_on_the_device(name: str) -> None:
    numbers = examined({}, name, names=None)
    assert set(numbers) > {"normal", "offset", "ones"}
    assert all(figure["rms_ratio"] < 2 for of_outputs in numbers.values() for figure in of_outputs.values())


@pytest.mark.parametrize(
    ("script", "status", "error_class", "message"),
    [
        ({"off": 0}, "wrong", None, r"on the GPU: y\[0, 0\] is .*, should be "),
        ({"unsteady": 1}, "unsafe", "not-deterministic", "on the GPU: y differs between two runs on the same inputs"),
        ({"stray": (0, 70 * 96 * 2)}, "unsafe", "guard-zone", "on the GPU, first 1 bytes behind the end of y: 1 bytes"),
        ({"stray": (0, -3)}, "unsafe", "guard-zone", "on the GPU, first 3 bytes before the start of y"),
        ({"stray": (1, 70 * 96 * 2 + 255)}, "unsafe", "guard-zone", "first 256 bytes behind the end of y"),
        ({"full": 100_000}, "unsupported", "gpu-memory", "the GPU has no 0.0 GiB left for the plan's buffers"),
    ],
)
def test_what_is_wrong_on_the_device_is_a_verdict(
    script: Mapping[str, object], status: str, error_class: str | None, message: str
) -> None:
    with pytest.raises(Rejected) as raised:
        examined(script, "gelu_tiles")
    verdict = raised.value.verdict
    assert (verdict.status, verdict.stage) == (status, "replay")
    assert error_class in (None, verdict.error_class)
    assert re.search(message, verdict.message), verdict.message


@pytest.mark.parametrize(
    ("script", "status", "error_class", "message"),
    [
        ({"off": 0}, "wrong", None, r"on the GPU: y\[0, 0\] is .*, should be "),
        ({"illegal-address": 0}, "crash", "gpu-fault", "the driver reports CUDA_ERROR_ILLEGAL_ADDRESS"),
        ({"dies": 1}, "crash", "gpu-fault", "the process that ran it ended with exit code 7"),
        ({"hang": 0}, "timeout", "gpu-hang", "on the GPU it was not done after 3 s"),
    ],
)
def test_a_kernel_that_faults_or_hangs_ends_its_runner_alone_and_the_next_call_works(
    script: Mapping[str, object], status: str, error_class: str | None, message: str
) -> None:
    with Runner(DOUBLE, {}, script) as runner:
        assert runner.description["product"] == "emulated"
        first = runner._python.process.pid
        with pytest.raises(Rejected) as raised:
            runner.call("examined", *asked("gelu_tiles"), seconds=3 if "hang" in script else 60)
        verdict = raised.value.verdict
        assert (verdict.status, verdict.stage) == (status, "replay")
        assert error_class in (None, verdict.error_class)
        assert re.search(message, verdict.message), verdict.message
        assert (runner._python.process.pid == first) == ("off" in script)
        assert runner.call("known_answer", seconds=60) is True


def test_what_finds_no_memory_is_asked_once_more_without_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    place = bench.Bench(DeviceDouble({}, {}))  # type: ignore[arg-type]
    task = everyday("gelu", M=8, N=8)
    tries: list[bool] = []

    def needs_all(place: bench.Bench) -> str:
        (_,) = place.oracle.expect_all([question(task, task.sizes, "normal", 1)])
        tries.append(True)
        if len(tries) in lacking:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity")
        return "done"

    monkeypatch.setitem(bench.QUESTIONS, "needs_all", needs_all)
    lacking = {1}
    assert answered("needs_all", (), place) == (RESULT, "done")
    lacking = {3, 4}
    assert answered("needs_all", (), place) == (FULL, "CUDA out of memory. Tried to allocate 448.00 MiB.")
    assert len(tries) == 4
    assert place.oracle._known
    assert answered("forget", (), place) == (RESULT, None)
    assert not place.oracle._known


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners of processes that were other tests' before, where nothing happens to the process."""
    monkeypatch.setattr("evaluator.replay.runner.FreshPython", LentPython)


def test_a_question_that_finds_no_memory_is_a_verdict_and_the_runner_goes_on(
    lent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Runner(DOUBLE, {}, {}) as runner:
        assert runner.description["product"] == "emulated"
        with monkeypatch.context() as patch:
            patch.setattr(Runner, "_asked", lambda *_: (FULL, "CUDA out of memory."))
            with pytest.raises(Rejected) as raised:
                runner.call("known_answer", seconds=60)
        verdict = raised.value.verdict
        assert (verdict.status, verdict.error_class) == ("unsupported", "gpu-memory")
        assert classify(verdict.status, verdict.message)[0] == "gpu-memory"
        runner.rest()
        assert runner.call("known_answer", seconds=60) is True


def test_a_device_that_is_lost_ends_the_run_and_says_so(tmp_path: Path) -> None:
    with Runner(DOUBLE, {}, {"illegal-address": 0, "lost": str(tmp_path / "lost")}) as runner:
        with pytest.raises(
            EnvironmentLacks, match=r"after a kernel's fault \(CUDA_ERROR_ILLEGAL_ADDRESS\) the GPU gave no"
        ):
            runner.call("examined", *asked("gelu_tiles"), seconds=60)
        with pytest.raises(EnvironmentLacks):
            runner.call("known_answer", seconds=5)


def test_a_runner_without_a_device_says_what_is_missing() -> None:
    with Runner() as runner, pytest.raises(EnvironmentLacks, match="the GPU cannot be used: "):
        runner.call("known_answer", seconds=5)
    with pytest.raises(EnvironmentLacks, match="was ended"):
        runner.call("known_answer", seconds=5)


def test_floats_that_are_added_by_atomics_may_come_in_any_order() -> None:
    """Both runs have to be right, where without atomics they have to be equal."""
    assert examined({"unsteady": 1}, "linear_residual_atomic")["normal"]["y"]["elements"] > 2 * 70 * 96
    with pytest.raises(Rejected) as raised:
        examined({"unsteady": 1, "off": 3}, "linear_residual_atomic")
    assert raised.value.verdict.status is Status.WRONG  # in the second run


# ---------------------------------------------------------------------------------------------------- confirmation


@pytest.fixture(scope="module")
def judged(judges: JudgeProcess) -> tuple[Trial, Task, Plans]:
    text, task = source("linear_tiles")
    plans = Plans()
    trial = judges.judge(begin(Candidate(source=text, task=task.identity), task, CHIP), task, CHIP, plans=plans)
    assert trial.correct, trial.verdict
    return trial, task, plans


def cubins(plans: Plans, trial: Trial) -> dict[str, bytes]:
    """The bytecode of each real cubin, which is what the double knows them by."""
    made = confirm.cubins_of(plans.of(trial), CHIP)
    assert isinstance(made, dict)
    kernels = {digest: data for plan in plans.of(trial) for digest, data in plan.kernels.items()}
    return {hashlib.sha256(cubin).hexdigest(): kernels[digest] for digest, cubin in made.items()}


def test_a_winner_that_is_right_on_the_device_has_its_numbers(
    judged: tuple[Trial, Task, Plans], judges: JudgeProcess, lent: None
) -> None:
    trial, task, plans = judged
    with Runner(DOUBLE, cubins(plans, trial), {}) as runner:
        after = confirmed(trial, task, CHIP, plans, runner, judges, seed=5)
    assert after.correct
    assert after.verdict is not None
    assert trial.verdict is not None
    more = set(after.verdict.numbers) - set(trial.verdict.numbers)
    assert {f"{name}, on the GPU" for name in trial.verdict.numbers if name != "own size"} < more
    assert after.verdict.numbers["GPU − emulator"]["y"]["rms"] == 0.0  # the double is the emulator
    assert after.verdict.numbers["on the GPU, full size"]["y"]["sizes"][0] == task.sizes


@pytest.mark.parametrize("script", [{"off": 0}, {"unsteady": 1}])
def test_a_winner_that_is_not_right_on_the_device_disagrees(
    judged: tuple[Trial, Task, Plans], judges: JudgeProcess, lent: None, script: Mapping[str, object]
) -> None:
    trial, task, plans = judged
    with Runner(DOUBLE, cubins(plans, trial), script) as runner:
        after = confirmed(trial, task, CHIP, plans, runner, judges)
    assert after.verdict is not None
    assert (after.verdict.status, after.verdict.stage, after.verdict.error_class) == (
        "disagrees",
        "replay",
        "disagrees",
    )
    assert after.verdict.message.startswith("right by its Tile IR; on the GPU: ")
    assert after.verdict.hint


def test_an_emulator_that_leaves_out_the_last_tile_of_k_is_found(judges: JudgeProcess) -> None:
    one, task = source("linear_tiles")
    short = one.replace("range(ct.cdiv(x.shape[1], TK))", "range(ct.cdiv(x.shape[1], TK) - 1)")
    assert short != one
    (less,) = trace(short, task, [Request(task.sizes)], CHIP)
    assert isinstance(less, Traced)
    (whole,) = trace(one, task, [Request(task.sizes)], CHIP)
    assert isinstance(whole, Traced)
    emulated = bench.Bench(DeviceDouble({}, {}))
    made = bench.outputs(task, (whole,), dict(whole.kernels), CHIP, [task.sizes], 3, 60.0, emulated)
    assert judges.agreement(task, (whole,), CHIP, 3, made)["y"]["elements"] == 70 * 96
    with pytest.raises(Rejected, match=r"y\[.*\] is .* on the GPU, .* on the emulator .*RMS difference") as raised:
        judges.agreement(task, (less,), CHIP, 3, made)
    assert raised.value.verdict.status is Status.DISAGREES


# ---------------------------------------------------------------------------------------------------- several GPUs


def test_a_call_takes_a_gpu_that_is_free_and_a_new_process_the_next_one_in_turn(lent: None) -> None:
    """Two devices of two clocks: calls at once are answered by both, and each stays what it is."""
    task, one = traced("gelu_tiles")
    asked = ([Composition.of_task(task, one, dict(one.kernels))], CHIP, 1, 1)
    scripts = [{"clock": (us, 1e-9)} for us in (10.0, 20.0)]
    with (
        Runners([partial(Runner, DOUBLE, {}, script) for script in scripts]) as runners,
        ThreadPoolExecutor(2) as threads,
    ):
        assert runners.description["product"] == "emulated"
        calls = [threads.submit(runners.call, "raced", *asked, seconds=60) for _ in range(6)]
        seen = {round(call.result()[0][0]) for call in calls}
        assert seen == {10, 20}
        for us in (10.0, 20.0, 10.0):
            with runners.another() as fresh:
                ((first, *_),) = fresh.call("raced", *asked, seconds=60)
                assert first == pytest.approx(us)
    with pytest.raises(EnvironmentLacks, match="was ended"):
        runners.call("raced", *asked, seconds=60)


def test_only_devices_that_are_the_chip_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def driver(number: int) -> Chip:
        if number == 1:
            raise UserError("a GPU that is too old")
        if number > 3:
            raise EnvironmentLacks("no such device")
        return chip("h100" if number == 2 else "h200")

    monkeypatch.setattr("knowledge_base.chips.from_driver", driver)
    assert devices_of(chip("h200")) == [0, 3]
    assert devices_of(chip("b200")) == []
