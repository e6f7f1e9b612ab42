"""A run with a GPU, which is the emulated one here: what is judged is confirmed there, and times are its clock's."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from card_runs import PROCESSES, SMALL, emulated, go
from device_double import DOUBLE
from model_runs import Said

from agent.cli import invoke
from agent.loop import target_work, winners
from agent.loop.context import RunContext
from agent.loop.summary import TaskResult
from agent.proposers.synthesizer import synthesize
from evaluator.confinement import FreshPython
from evaluator.judging import JudgeProcess
from evaluator.plans import Plans
from evaluator.replay import Runner
from evaluator.timing import measured
from evaluator.trial import begin
from knowledge_base.chips import CHIPS
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.rules import Change, Lesson, own, shipped
from knowledge_base.snf import decompose, load_target, parse
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Decomposition
from knowledge_base.store import Store


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated(monkeypatch)


def test_a_run_with_a_gpu_confirms_measures_and_measures_again_in_fresh_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []

    class Fresh(FreshPython):
        def __init__(self, module: str) -> None:
            super().__init__(module)
            begun.append(module)

    monkeypatch.setattr("evaluator.replay.runner.FreshPython", Fresh)
    said = Said()
    summary = go(tmp_path, {"clock": (40.0, 0.001)}, said=said)
    (task,) = summary.tasks
    assert (summary.status, summary.device, task.status) == ("done", "cuda", "correct")
    assert task.time is not None
    assert (task.time.kind, task.time.status, task.time.processes) == ("measured", "stable", PROCESSES)
    assert task.time.us == pytest.approx(40.0, rel=0.02)
    assert task.time.terms["low"] < task.time.us < task.time.terms["high"]
    assert len(task.time.samples) == 16 * PROCESSES
    assert len(begun) > PROCESSES
    assert task.trial is not None
    assert task.trial.verdict is not None
    assert {"normal, on the GPU", "on the GPU, full size", "GPU − emulator"} <= set(task.trial.verdict.numbers)
    assert any("measuring 1 kernel and the whole target in fresh processes" in line for line in said.lines)
    report = (tmp_path / "first" / "report.md").read_text()
    assert re.search(r"\| 40\.\d \(3\d\.\d to 4\d\.\d, 2 processes\) \|", report), report
    folder = tmp_path / "first" / "winners" / task.task.name
    (winner,) = winners.read(folder)["winners"]
    assert len(winner["cubins"]) == len({kernel for plan in winner["plans"] for kernel in plan["kernels"]})
    for name, digest in winner["cubins"].items():
        assert sha256((folder / name).read_bytes()).hexdigest() == digest
    assert (winner["kind"], winner["us"]) == ("measured", task.time.us)
    assert invoke(["kb", "show", "first", "--json", "--db", str(tmp_path / "kb.db")]) == 0
    shown = json.loads(capfd.readouterr().out)["summary"]["tasks"][0]
    assert (shown["kind"], shown["us"], shown["processes"]) == ("measured", task.time.us, PROCESSES)

    said = Said()
    again = go(tmp_path, {"illegal-address": 0}, "second", said)  # nothing is launched a second time
    assert again.tasks[0].time == task.time
    assert not any("fresh processes" in line for line in said.lines)


def test_what_a_run_measured_is_mined_for_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, where there is something new; and not at all where there is too much of it."""
    said = Said()
    monkeypatch.setattr("knowledge_base.rules.rows.shipped", shipped)
    first = go(tmp_path, {"clock": (40.0, 0.001)}, said=said)
    assert said.lines.count("what was measured is mined for rules") == 1
    assert first.lesson is not None
    with Store.open(str(tmp_path / "kb.db")) as store:
        assert first.lesson.own == len(list(own(store.database))) >= 2
    assert first.lesson.configurations == first.lesson.own + len(list(shipped()))
    assert first.notes[-1].startswith("Mined for rules, with what ships: ")
    assert json.loads(json.dumps(first.document()))["lesson"]["own"] == first.lesson.own
    again = go(tmp_path, {"clock": (40.0, 0.001)}, name="second", said=said)
    assert said.lines.count("what was measured is mined for rules") == 1
    assert (again.lesson, again.document()["lesson"]) == (None, {})
    monkeypatch.setattr(target_work, "NEWEST", 1)
    monkeypatch.setattr(target_work, "measured_spaces", lambda store: ())
    more = go(tmp_path, {"clock": (40.0, 0.001)}, name="third", text=SMALL.replace("16, 32", "16, 64"))
    assert more.lesson is None
    assert more.notes[-1].endswith("1 measured configurations: `agent kb mine` mines them for rules.")


def test_rules_that_a_run_changed_are_in_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = (
        Change("1" * 64, "add is faster at TILE=32", "", "supported", "faster in 2 of 2 shapes, 9 pairs"),
        Change("2" * 64, "add is slower at TILE=64", "supported", "refuted", "faster in 1 of 1 shapes, 8 pairs"),
    )
    monkeypatch.setattr(target_work, "learn", lambda database, most: Lesson(10, 4, 2, changes))
    summary = go(tmp_path, {"clock": (40.0, 0.001)})
    assert summary.notes[-1] == "Mined for rules, with what ships: of the rules, 1 new, 1 refuted (agent kb rules)."
    report = (Path(summary.folder) / "report.md").read_text()
    assert "- new, supported: add is faster at TILE=32 (faster in 2 of 2 shapes, 9 pairs)\n" in report
    assert "- supported → refuted: add is slower at TILE=64 (faster in 1 of 1 shapes, 8 pairs)\n" in report


def test_a_kernel_that_is_wrong_on_the_card_is_no_winner(tmp_path: Path) -> None:
    summary = go(tmp_path, {"off": 0})
    (task,) = summary.tasks
    assert (summary.status, task.correct, task.trial) == ("incomplete", False, None)
    assert "on the GPU" in task.message
    with Store.open(str(tmp_path / "kb.db")) as store:
        assert store.best(task.task.identity, "h200") == []


def test_a_kernel_that_turns_wrong_in_a_fresh_process_is_no_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "another", lambda _: Runner(DOUBLE, {}, {"off": 0}))
    summary = go(tmp_path, {})
    (task,) = summary.tasks
    assert (summary.status, task.correct, task.trial, task.time) == ("incomplete", False, None, None)
    assert "on the GPU" in task.message
    with Store.open(str(tmp_path / "kb.db")) as store:  # where it was correct before
        assert store.best(task.task.identity, "h200") == []


def test_what_was_judged_without_a_gpu_is_judged_again_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.loop.task_work.LIMIT", 1)
    (task,) = decompose(parse(SMALL, "target"), "v2").tasks
    plans, chip = Plans(), CHIPS["h200"]
    with JudgeProcess() as judges, Store.open(str(tmp_path / "kb.db")) as store:
        store.record_tasks([task])
        for candidate in synthesize(task, chip):
            trial = judges.judge(begin(candidate, task, chip), task, chip, plans=plans, seed=1)
            assert trial.correct
            store.record([trial], artifacts=plans.artifacts(trial))
    (found,) = go(tmp_path, {}).tasks
    assert found.trial is not None
    assert found.trial.verdict is not None
    assert "GPU − emulator" in found.trial.verdict.numbers
    with Store.open(str(tmp_path / "kb.db")) as store:
        (stored, *_) = store.best(task.identity, "h200")
        assert stored.verdict is not None
        assert "GPU − emulator" in stored.verdict.numbers


def test_a_lost_gpu_ends_the_run_and_says_so(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    with pytest.raises(EnvironmentLacks, match="gave no right answer"):
        go(tmp_path, {"lost": str(lost), "dies": 3})
    assert lost.exists()


# ---------------------------------------------------------------------------------------------------- fusion plans

TWO = """\
M, N = 16, 32
x: bf16[M, N]
w: weight.bf16[N]
y = RMSNorm(GELU(x), w)
"""


def test_a_fusion_plan_that_is_faster_as_a_whole_is_chosen(tmp_path: Path) -> None:
    """The fused kernel, one launch, takes 100 µs, and two kernels of an op each together 50."""
    said = Said()
    script = {"clock of 1": (100.0, 0.0001), "clock of 2": (50.0, 0.0001)}
    summary = go(tmp_path, script, said=said, text=TWO)
    assert any("plan v1, which may be faster" in line for line in said.lines)
    assert (summary.status, summary.plan, len(summary.tasks)) == ("done", "v1", 2)
    assert [round(summary.plans[name]["us"]) for name in ("v1", "v2")] == [50, 100]
    assert summary.composed is not None
    assert summary.composed.time is not None
    assert summary.composed.time.us == pytest.approx(50.0, rel=0.01)


def test_what_the_usual_plan_found_stands_where_another_cannot_be_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_out = target_work._carried_out

    def usual_alone(context: RunContext, target: str, plan: Decomposition) -> target_work._Done:
        if plan.plan == "v1":
            raise UserError("no launch can know that size")
        return carried_out(context, target, plan)

    monkeypatch.setattr(target_work, "_carried_out", usual_alone)
    said = Said()
    summary = go(tmp_path, {"clock": (100.0, 0.0001)}, said=said, text=TWO)
    assert (summary.status, summary.plan) == ("done", "v2")
    assert "plan v1 was given up: no launch can know that size" in said.lines


def done(us: float, correct: bool = True) -> target_work._Done:
    plan = decompose(load_target("gpt2-block").graph, "v1")
    time = measured([[us] * 9] * 5, plan.whole, plan.whole.sizes, CHIPS["h200"])
    return target_work._Done([], SimpleNamespace(timed=lambda kind: time, correct=correct))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "chosen"), [(done(500.0), "v1"), (done(594.0), "v2"), (done(700.0), "v2"), (done(500.0, False), "v2")]
)
def test_the_usual_plan_stays_unless_another_is_right_and_faster_by_more_than_chance(
    other: target_work._Done, chosen: str
) -> None:
    assert target_work._fastest({"v2": done(600.0), "v1": other}) == chosen


@pytest.mark.parametrize(
    ("us", "layernorm_us", "tried"),
    [(300.0, None, False), (314.0, None, False), (320.0, None, True), (328.0, 11.0, False), (340.0, 11.0, True)],
)
def test_a_plan_is_tried_only_where_it_may_be_below_what_was_measured(
    us: float, layernorm_us: float | None, tried: bool
) -> None:
    """The GPT-2 block of single ops reads what the fused one keeps.

    On an H200 its floor is 290 µs, its 13 launches take 20 more, and two layernorms measured at 11 instead of 4 µs 14.
    Faster by less than 2% it would not be kept.
    """
    plan = decompose(load_target("gpt2-block").graph, "v1")
    so_far = done(us)
    if layernorm_us is not None:
        layernorm = plan.calls[0].task
        time = measured([[layernorm_us] * 9] * 5, layernorm, layernorm.sizes, CHIPS["h200"])
        so_far = replace(so_far, results=[TaskResult("layernorm", layernorm, 2, 2.6, "correct", time=time)])
    assert target_work._promises(SimpleNamespace(chip=CHIPS["h200"]), plan, so_far) == tried  # type: ignore[arg-type]


def test_a_plan_of_the_same_tasks_is_not_tried() -> None:
    """Where nothing can be fused: the target took a little longer than its one task by itself."""
    plan = decompose(everyday("linear_nobias").graph, "v1")
    (call,) = plan.calls
    alone, whole = (measured([[us] * 9] * 5, call.task, call.task.sizes, CHIPS["h200"]) for us in (100.0, 110.0))
    known = [TaskResult("linear_nobias", call.task, 1, 1.0, "correct", time=alone)]
    so_far = target_work._Done(known, SimpleNamespace(timed=lambda kind: whole, correct=True))  # type: ignore[arg-type]
    assert not target_work._promises(SimpleNamespace(chip=CHIPS["h200"]), plan, so_far)  # type: ignore[arg-type]
