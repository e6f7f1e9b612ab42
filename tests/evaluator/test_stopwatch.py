"""Timing: what is timed is what was checked, in which order, and what its statistics say.  On the emulated device."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from device_double import CHIP, DOUBLE, DeviceDouble, source, traced

from evaluator.compile import compile_kernels
from evaluator.judging import Rejected, question
from evaluator.replay import Composition, Runner, bench
from evaluator.replay.bench import NearOracle
from evaluator.replay.card import Card
from evaluator.replay.stopwatch import SETS, PlanContestant, race
from evaluator.timing import Interval, Measured, measured, median, ratio
from evaluator.trial import begin
from knowledge_base.records import Candidate
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's process finds the device beside the tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))


def raced(name: str, script: Mapping[str, object], count: int = 1, rounds: int = 1) -> list[list[float]]:
    """µs of ``count`` contestants, all the same plan; its bytecode is the double's cubin."""
    task, one = traced(name)
    emulated = bench.Bench(DeviceDouble({}, script))
    return bench.raced([Composition.of_task(task, one, dict(one.kernels))] * count, CHIP, 1, rounds, emulated)


# ---------------------------------------------------------------------------------------------------- turns


class Turns:
    """A contestant that notes what happens to it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def samples(self):  # type: ignore[no-untyped-def]
        return [(lambda: self.log.append(f"{self.name} before"), lambda: self.log.append(self.name))] * SETS

    def check(self) -> None:
        self.log.append(f"{self.name} checked")


class Noting(DeviceDouble):
    """Notes flushes, and that persisting lines are forgotten."""

    def __init__(self, log: list[str]) -> None:
        super().__init__({}, {})
        self.log = log

    def fill(self, address: int, element: bytes, count: int, stream: int) -> None:
        super().fill(address, element, count, stream)
        self.log.append(f"flush {count * len(element)}")

    def forget_persisting(self) -> None:
        self.log.append("forget")


def test_contestants_take_turns_there_and_back_with_a_cold_cache_before_each_sample() -> None:
    log: list[str] = []
    device = Noting(log)
    times = race(device, [Turns("A", log), Turns("B", log)], rounds=2)
    assert [len(series) for series in times] == [4 * SETS, 4 * SETS]
    sample = [["{0} before", f"flush {2 * device.l2_bytes}", "{0}"]] * SETS
    graph = {name: [line.format(name) for lines in sample for line in lines] for name in "AB"}
    turns = [line for name in "ABBAABBA" for line in ["forget", *graph[name]]]
    assert log == [*graph["A"], *graph["B"], *turns, "A checked", "B checked"]


def test_within_a_graph_no_inputs_are_met_twice() -> None:
    """A kernel that knows its inputs again would find no result of theirs."""
    task, one = traced("gelu_tiles")
    device = DeviceDouble({}, {})
    questions = [question(task, task.sizes, "normal", seed) for seed in range(SETS)]
    answers = list(NearOracle(device.place).expect_all(questions))
    assert len({float(answer.inputs["x"][0, 0]) for answer in answers}) == SETS
    whole = Composition.of_task(task, one, one.kernels)
    race(device, [PlanContestant(device, Card(device, one.kernels), whole, CHIP, answers)], rounds=1)
    graphs = [device.read[start : start + SETS] for start in range(0, len(device.read), SETS)]
    assert len(graphs) == 4  # the check, the one that brings it there, and two turns
    assert all(len(set(graph)) == SETS and graph == graphs[0] for graph in graphs)


# ---------------------------------------------------------------------------------------------------- right, still

# Launches of gelu_tiles by number: SETS before the timing, SETS to bring the graph there, then 2 · SETS for each round.
TIMED = 2 * SETS


@pytest.mark.parametrize(
    ("script", "error_class", "message"),
    [
        ({"off": 0}, None, r"on the GPU: y\[0, 0\] is .*, should be"),
        ({"idle": TIMED}, "not-deterministic", "on the GPU: after it was timed, a result is not what it was before"),
        ({"off": TIMED}, "not-deterministic", "on the GPU: after it was timed, a result is not what it was before"),
        ({"unsteady": 1}, "not-deterministic", "on the GPU: after it was timed, a result is not what it was before"),
        ({"stray": (TIMED + 1, 70 * 96 * 2)}, "guard-zone", "first 1 bytes behind the end of y"),
        ({"stray": (TIMED + 1, -(1 << 17) - 70 * 96 * 2)}, "input-modified", "x, which it may only read, is not what"),
    ],
)
def test_a_plan_that_is_not_right_before_and_after_has_no_time(
    script: Mapping[str, object], error_class: str | None, message: str
) -> None:
    with pytest.raises(Rejected) as raised:
        raced("gelu_tiles", script)
    verdict = raised.value.verdict
    assert error_class in (None, verdict.error_class)
    assert re.search(message, verdict.message), verdict.message


def test_sums_in_any_order_have_to_be_right_again() -> None:
    assert len(raced("linear_residual_atomic", {"unsteady": 1})[0]) == 2 * SETS
    with pytest.raises(Rejected, match="should be"):
        raced("linear_residual_atomic", {"off": 4 * TIMED - 2})


# ---------------------------------------------------------------------------------------------------- the timer


def timer_of(script: Mapping[str, object]) -> tuple[object, Task]:
    text, _ = source("gelu_tiles")
    task, one = traced("gelu_tiles")
    answers = compile_kernels(one.kernels, [CHIP.arch])
    bytecodes = {answer.digest: one.kernels[digest] for (digest, _), answer in answers.items()}  # type: ignore[union-attr]
    trial = begin(Candidate(source=text, task=task.identity), task, CHIP)
    with Runner(DOUBLE, bytecodes, script) as runner:
        return Measured(runner, seed=3).time(trial, task, one), task


def test_a_timer_with_a_card_gives_measured_times() -> None:
    time, _ = timer_of({"clock": (40.0, 0.01)})
    assert (time.kind, time.chip, time.status) == ("measured", "h200", "stable")  # type: ignore[attr-defined]
    assert time.us == pytest.approx(40.0, rel=0.02)  # type: ignore[attr-defined]
    assert time.terms["low"] <= time.us <= time.terms["high"]  # type: ignore[attr-defined]
    assert len(time.samples) == 4 * SETS  # type: ignore[attr-defined]


def test_a_time_that_does_not_settle_is_looked_at_again_and_then_unstable() -> None:
    time, _ = timer_of({"clock": (40.0, 0.5)})
    assert (time.status, len(time.samples)) == ("unstable", 12 * SETS)  # type: ignore[attr-defined]


def test_what_is_faster_than_light_is_quarantined() -> None:
    task = everyday("linear", M=4096, N=4096, K=4096)
    found = measured([[10.0, 10.0, 10.1]], task, task.sizes, CHIP)
    assert found.status == "quarantined"
    assert found.us < 0.9 * found.floor_us


# ---------------------------------------------------------------------------------------------------- statistics


def scripted(
    rng: np.random.Generator, effect: float, processes: int = 5, samples: int = 24
) -> tuple[list[list[float]], list[list[float]]]:
    """Series of two kernels in some processes, as cards give them: each process has an offset of its own for each
    kernel (0.3%), clocks drift for both, a sample in thirty is late."""
    slow, fast = [], []
    for _ in range(processes):
        drift = np.cumsum(rng.normal(0, 0.002, samples))
        pair = []
        for shift in (effect, 0.0):
            late = np.where(rng.random(samples) < 1 / 30, rng.exponential(0.3, samples), 0.0)
            logs = math.log(50) + shift + drift + rng.normal(0, 0.003) + rng.normal(0, 0.01, samples) + late
            pair.append([float(us) for us in np.exp(logs)])
        slow.append(pair[0])
        fast.append(pair[1])
    return slow, fast


def test_a_kernel_against_itself_is_1_in_94_of_100_trials_and_5_percent_are_found_in_90() -> None:
    rng = np.random.default_rng(20261127)
    same = [ratio(*scripted(rng, 0.0)) for _ in range(1000)]
    assert sum(found.low <= 1.0 <= found.high for found in same) >= 940
    assert np.median([found.value for found in same]) == pytest.approx(1.0, abs=0.002)
    slower = [ratio(*scripted(rng, math.log(1.05))) for _ in range(1000)]
    assert sum(found.low > 1.0 for found in slower) >= 900
    assert np.median([found.value for found in slower]) == pytest.approx(1.05, abs=0.003)


def test_an_interval_is_no_narrower_where_processes_differ_than_they_do() -> None:
    """Of three processes that say 1%, 5% and 9%, nobody knows the next one."""
    one = ratio([[1.01] * 9, [1.05] * 9, [1.09] * 9], [[1.0] * 9] * 3)
    assert one.value == pytest.approx(1.05)
    assert one.low < 1.01 < 1.09 < one.high


def test_a_median_is_not_moved_by_one_late_sample() -> None:
    assert median([[10.0, 10.0, 10.0, 500.0, 10.0]]).value == pytest.approx(10.0)


def test_series_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="3 samples beside 2"):
        ratio([[1.0, 1.0, 1.0]], [[1.0, 1.0]])
    with pytest.raises(ValueError, match="longer"):
        ratio([[1.0]], [[1.0], [1.0]])
    with pytest.raises(ValueError, match="no samples"):
        median([])
    assert Interval(2.0, 1.0, 3.0).width == 1.0


# ---------------------------------------------------------------------------------------------------- noise of a card

# 32 processes on an H100, in each one kernel against itself: two series of 24 samples.
RECORDED = json.loads((Path(__file__).parent / "self_race_h100.json").read_text())["processes"]


def drawn(rng: np.random.Generator, effect: float) -> Interval:
    """The ratio in five of the processes, with ``effect`` put on the first kernel; which one is first is drawn."""
    slow, fast = [], []
    for number in rng.choice(len(RECORDED), 5, replace=False):
        pair = RECORDED[number][:: rng.choice([-1, 1])]
        slow.append([us * effect for us in pair[0]])
        fast.append(pair[1])
    return ratio(slow, fast)


def test_on_a_card_too_a_kernel_against_itself_is_1_and_5_percent_are_found() -> None:
    assert len(RECORDED) >= 30
    rng = np.random.default_rng(27)
    same = [drawn(rng, 1.0) for _ in range(1000)]
    assert sum(found.low <= 1.0 <= found.high for found in same) >= 940
    assert sum(drawn(rng, 1.05).low > 1.0 for _ in range(1000)) >= 900
