"""The final table, report.md and the JSON document are made from one summary, and the table fits."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from agent import report
from agent.summary import RunSummary, TaskResult
from evaluator.confine import containment
from knowledge_base.content import plain


def result(name: str = "linear_gelu", **changes: object) -> TaskResult:
    given = {
        "name": name,
        "identity": "ab" * 32,
        "ops": ("linear", "gelu"),
        "sizes": {"M": 8192, "N": 3072, "K": 768},
        "calls": 1,
        "status": "correct",
        "kernel": "0123456789abcdef" * 4,
        "proposer": "synthesizer",
        "configuration": {"TM": 128, "TN": 128, "TK": 64, "occupancy": 1, "persistent": True},
        "kind": "modelled",
        "us": 123.456,
        "floor_us": 98.7,
        "error": 0.51,
        "share": 0.4,
        "searched": 20,
        "configurations": 36,
        "guards": (("M % 16 == 0",), ()),
    }
    return TaskResult(**(given | changes))  # type: ignore[arg-type]


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
        "composed": {"status": "correct", "message": ""},
        "seconds": 61.5,
        "folder": "runs/20260102-030405-gpt2-block-7f3a",
    }
    return RunSummary(**(given | changes))  # type: ignore[arg-type]


WIDE = result("linear_rmsnorm_square_relu_0a1b2c K=12288", ops=("linear", "rmsnorm", "relu", "square", "add"), calls=48)


def printed(shown: RunSummary) -> str:
    out = io.StringIO()
    report.final_table(shown, Console(file=out, width=80))
    return out.getvalue()


def test_the_table_fits_80_columns_whatever_the_names() -> None:
    text = printed(summary(result(), WIDE, result(us=123456.7, floor_us=0.01, error=None)))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "0123456" in text
    assert "12× linear_residual K=3072" in printed(summary(result("linear_residual K=3072", calls=12)))


def test_a_modelled_time_is_marked_in_every_form() -> None:
    shown = summary(result())
    assert "~123" in printed(shown)
    assert "~123" in report.markdown(shown, {})
    assert "modelled, not measured" in report.markdown(shown, {})
    assert shown.document()["tasks"][0]["kind"] == "modelled"


def test_a_task_without_kernel_says_why_and_makes_the_run_fail() -> None:
    failed = result(status="wrong", message="y[3, 4] is 1, should be 2", kernel="", us=None, error=None)
    shown = summary(result(), failed, status="incomplete", composed={})
    assert "should be 2" in printed(shown)
    assert "should be 2" in report.markdown(shown, {})
    assert shown.exit_code == 1
    assert shown.total_us is None


def test_totals_count_every_call() -> None:
    shown = summary(result(calls=2, us=10.0, floor_us=4.0), result(us=5.0, floor_us=1.0))
    assert (shown.total_us, shown.total_floor_us) == (25.0, 9.0)


def test_the_document_is_json() -> None:
    text = json.dumps(plain(summary(result(error=float("inf")), WIDE).document()), allow_nan=False)
    assert json.loads(text)["exit_code"] == 0


@pytest.mark.parametrize("status", ["done", "incomplete", "interrupted"])
def test_exit_codes_follow_the_status(status: str) -> None:
    assert summary(status=status).exit_code == {"done": 0, "incomplete": 1, "interrupted": 130}[status]


def test_the_report_says_what_was_searched_and_what_held_the_candidates() -> None:
    text = report.markdown(summary(result()), {"torch": "2.13.0"})
    assert "20 of 36 configurations" in text
    assert containment().says in text
    assert "every size" in text
    assert "M % 16 == 0" in text
