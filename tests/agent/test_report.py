"""The final table, report.md and the JSON document are made from one summary, and the table fits."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from agent.loop import report
from agent.loop.summary import Effort, RunSummary, TaskResult
from evaluator.confinement.confine import containment
from kernels_generated.runtime.plan import Guard, Launchable, LaunchPlan
from knowledge_base.content import plain
from knowledge_base.records import Candidate, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf.everyday import everyday

TASK = everyday("linear_gelu")
CANDIDATE = Candidate(source="…", task=TASK.identity, proposer="synthesizer")
RIGHT = Verdict(status=Status.CORRECT, stage=Stage.DONE, numbers={"normal": {"y": {"rms_ratio": 0.51}}})
PLAN = LaunchPlan("t", "sample", ("M",), (), (), (), (Guard("==", ("mod", "M", 16), 0),))
WINNER = Trial(
    candidate=CANDIDATE,
    configuration={"TM": 128, "TN": 128, "TK": 64, "occupancy": 1, "persistent": True},
    chip="rtx5070",
    shape=TASK.sizes,
    evaluator="e",
    verdict=RIGHT,
)


def time(us: float) -> Measurement:
    return Measurement(kind="modelled", chip="rtx5070", us=us, floor_us=1.0)


def result(label: str = "linear_gelu", **changes: object) -> TaskResult:
    given = {
        "label": label,
        "task": TASK,
        "calls": 1,
        "status": "correct",
        "trial": WINNER,
        "time": time(123.456),
        "plans": (Launchable(PLAN, {}), Launchable(replace(PLAN, guards=()), {})),
        "floor_us": 98.7,
        "share": 0.4,
        "effort": Effort(searched=20, configurations=36, seconds=1.0),
    }
    return TaskResult(**(given | changes))  # type: ignore[arg-type]


def inexact(error: float | None) -> Trial:
    return WINNER.fuller(verdict=RIGHT.model_copy(update={"numbers": {"normal": {"y": {"rms_ratio": error}}}}))


def summary(*tasks: TaskResult, **changes: object) -> RunSummary:
    given = {
        "id": "20260102-030405-gpt2-block-7f3a",
        "target": "gpt2-block",
        "chip": "rtx5070",
        "device": "cpu",
        "proposer": "synthesizer",
        "why": "neither OPENAI_API_KEY nor OPENAI_BASE_URL is set",
        "status": "done",
        "plan": "v2",
        "plans": {
            "v1": {"tasks": 9, "calls": 14, "floor_us": 1234.5},
            "v2": {"tasks": 5, "calls": 7, "floor_us": 789.1},
        },
        "tasks": tasks,
        "composed": WINNER.fuller(judged=({"M": 65},)),
        "seconds": 61.5,
        "folder": "runs/20260102-030405-gpt2-block-7f3a",
    }
    return RunSummary(**(given | changes))  # type: ignore[arg-type]


WIDE = result("linear_rmsnorm_square_relu_0a1b2c K=12288", task=everyday("attention_qkv"), calls=48)


def printed(shown: RunSummary) -> str:
    out = io.StringIO()
    report.final_table(shown.document(), Console(file=out, width=80))
    return out.getvalue()


def test_the_table_fits_80_columns_whatever_the_names() -> None:
    text = printed(summary(result(), WIDE, result(time=time(123456.7), floor_us=0.01, trial=inexact(None))))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert CANDIDATE.digest[:7] in text
    assert "12× linear_residual K=3072" in printed(summary(result("linear_residual K=3072", calls=12)))


def test_a_modelled_time_is_marked_in_every_form() -> None:
    shown = summary(result())
    assert "~123" in printed(shown)
    assert "~123" in report.markdown(shown.document(), {})
    assert "modelled, not measured" in report.markdown(shown.document(), {})
    assert shown.document()["tasks"][0]["kind"] == "modelled"


def test_packing_is_said_beside_the_times() -> None:
    shown = summary(result(time=time(10.0).model_copy(update={"terms": {"packing": 7.25}})), result("linear"))
    said = "linear_gelu: its weights are packed once, ~7.25 µs more"
    assert said in " ".join(printed(shown).split())
    assert said in report.markdown(shown.document(), {})
    assert [task["packing_us"] for task in shown.document()["tasks"]] == [7.25, None]


def test_a_task_without_kernel_says_why_and_makes_the_run_fail() -> None:
    failed = result(status="wrong", message="y[3, 4] is 1, should be 2", trial=None, time=None, plans=())
    shown = summary(result(), failed, status="incomplete", composed=None)
    assert "should be 2" in printed(shown)
    assert "should be 2" in report.markdown(shown.document(), {})
    assert shown.exit_code == 1
    assert shown.total is None


def test_totals_count_every_call() -> None:
    shown = summary(result(calls=2, time=time(10.0), floor_us=4.0), result(time=time(5.0), floor_us=1.0))
    document = shown.document()
    assert (document["total_us"], document["total_floor_us"]) == (25.0, 9.0)


def test_no_total_is_made_of_times_of_unlike_kinds() -> None:
    measured = time(5.0).model_copy(update={"kind": "measured"})
    shown = summary(result(), result(time=measured))
    assert (shown.total, shown.document()["total_us"]) == (None, None)
    assert "target:" not in printed(shown)
    assert "marked ~ are modelled" in report.markdown(shown.document(), {})


def test_the_document_is_json() -> None:
    text = json.dumps(plain(summary(result(trial=inexact(float("inf"))), WIDE).document()), allow_nan=False)
    assert json.loads(text)["exit_code"] == 0


@pytest.mark.parametrize("status", ["done", "incomplete", "interrupted"])
def test_exit_codes_follow_the_status(status: str) -> None:
    assert summary(status=status).exit_code == {"done": 0, "incomplete": 1, "interrupted": 130}[status]


def test_the_report_says_what_was_searched_and_what_held_the_candidates() -> None:
    text = report.markdown(summary(result()).document(), {"torch": "2.13.0"})
    assert "20 of 36 configurations" in text
    assert containment().says in text
    assert "every size" in text
    assert "M%16 == 0" in text


def test_a_run_that_an_earlier_version_stored_is_shown_as_it_was() -> None:
    task = {"name": "gelu", "calls": 2, "status": "correct", "message": "", "kernel": "0123456789", "kind": "modelled"}
    task |= {
        "us": 12.5,
        "floor_us": 9.0,
        "error": 0.51,
        "share": 1.0,
        "fusion": "gelu",
        "correct": True,
        "sizes": {"M": 7},
    }
    composed = {"status": "correct", "message": "", "numbers": {}, "sizes": [], "seconds": 1.0}
    stored = summary(result()).document() | {"tasks": [task], "composed": composed, "total_us": 25.0}
    out = io.StringIO()
    report.final_table(stored, Console(file=out, width=80))
    assert "2× gelu" in out.getvalue()
    assert "~12.5" in out.getvalue()
    assert "target: ~25.0 µs" in out.getvalue()
