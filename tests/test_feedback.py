"""What an author hears of an answer: all that is known of it, and one change."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf import everyday
from prompts.briefing import Answer, Briefing
from prompts.change import PIPES, change
from prompts.feedback import outcome, said

H200 = chip("h200")
GELU, NORM = everyday("linear_gelu"), everyday("layernorm")
RIGHT = Verdict(status=Status.CORRECT, stage=Stage.DONE)


def evidence(**fields: Any) -> CompileEvidence:
    plain = {
        "arch": "sm_90", "kernel": "0" * 64, "symbol": "gelu", "registers": 168, "stack_bytes": 0, "spill_bytes": 0,
        "shared_bytes": 66560, "mma": "wgmma", "tma": True,
    }  # fmt: skip
    return CompileEvidence.model_validate(plain | fields)


def trial(us: float | None = 80.0, *, cubin: dict[str, Any] | None = None, **more: Any) -> Trial:
    """A right trial of linear_gelu with a modelled time and one cubin."""
    terms = more.pop("terms", {})
    time = Measurement(kind="modelled", chip="h200", us=us, floor_us=39.0, terms=terms) if us is not None else None
    made = begin(
        Candidate(source="# source\n", task=GELU.identity, proposer="openai"), GELU, H200, more.pop("axes", {"TM": 64})
    )
    fields = {"verdict": RIGHT, "evidence": (evidence(**(cubin or {})),), "measurements": (time,) if time else ()}
    return made.fuller(**(fields | more))


def page(one: Trial, *configurations: Trial, best: Trial | None = None, total: int = 0) -> str:
    fastest = None if best is None or best.time is None else (best, best.time)
    briefing = Briefing(GELU, H200, 39.0, 2, 4, best=fastest)
    return said(Answer(one, configurations, total), briefing)


# ---------------------------------------------------------------------------------------------------- one change


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (trial(cubin={"spill_bytes": 96}), "gelu spills 96 bytes a thread"),
        (trial(cubin={"mma": "fma"}), "multiplies on scalar units"),
        (trial(cubin={"mma": "mma.sync"}), "uses mma.sync, not wgmma, the full-rate instruction of sm_90"),
        (trial(cubin={"serialised_wgmma": True}), "waits after every wgmma"),
        (trial(cubin={"tma": False}), "loads without TMA"),
        (trial(terms={"waves": 0.25, "occupancy": 2.0}), "There are 66 blocks for 132 multiprocessors"),
        (trial(terms={"waves": 2.25, "occupancy": 1.0}), "fill the chip 2.25 times: in the last round 75% of it"),
        (trial(terms={"waves": 2.0, "mma": 40.0, "special": 60.0}), "approximate forms"),
        (trial(us=42.0, cubin={"tma": False}), "within a tenth of the speed of light"),
    ],
)
def test_what_costs_most_is_what_is_to_change(made: Trial, told: str) -> None:
    assert told in change(made, GELU, H200)


@pytest.mark.parametrize("pipe", PIPES)
def test_each_pipe_has_its_change(pipe: str) -> None:
    others = dict.fromkeys(PIPES, 1.0)
    told = change(trial(terms=others | {pipe: 9.0, "waves": 50.0}), GELU, H200)
    assert told.startswith(PIPES[pipe])
    assert f"{pipe} 9.0" in told


def test_a_norm_needs_no_tensor_cores() -> None:
    assert change(trial(cubin={"mma": "", "tma": False}, terms={"memory": 5.0}), NORM, H200).startswith(PIPES["memory"])


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    assert change(trial(us=None), GELU, H200) == ""
    assert change(trial(), GELU, H200) == ""


def test_a_measured_time_decides_and_the_model_explains() -> None:
    measured = Measurement(kind="measured", chip="h200", us=90.0, floor_us=39.0)
    modelled = Measurement(kind="modelled", chip="h200", us=40.0, floor_us=39.0, terms={"l2": 30.0})
    both = trial().fuller(measurements=(modelled, measured))
    assert change(both, GELU, H200).startswith(PIPES["l2"])
    assert "90.0 µs (measured) is 2.31 times the speed of light." in page(both)


# ---------------------------------------------------------------------------------------------------- the page


def test_a_right_answer_hears_how_far_it_is_from_the_floor_and_from_the_best() -> None:
    best = begin(Candidate(source="# best\n", task=GELU.identity), GELU, H200).fuller(
        verdict=RIGHT, measurements=(Measurement(kind="modelled", chip="h200", us=64.0, floor_us=39.0),)
    )
    text = page(trial(cubin={"spill_bytes": 8}), best=best)
    assert "80.0 µs (modelled) is 2.05 times the speed of light and 1.25 times the fastest kernel so far." in text
    assert "gelu: 168 registers a thread, 8 bytes a thread spilled, 66560 bytes of shared memory" in text
    assert text.count("To change: ") == 1
    assert outcome(trial()) == "right, 80.0 µs (modelled)"


def test_its_configurations_are_named_with_what_kept_them_back() -> None:
    refused = Verdict(status=Status.COMPILE_ERROR, stage=Stage.COMPILE, message="too many registers")
    rows = [
        trial(90.0, axes={"TM": 128}, verdict=None),
        trial(80.0, axes={"TM": 64}),
        trial(700.0, axes={"TM": 256}, verdict=None, cubin={"spill_bytes": 512}),
        trial(None, axes={"TM": 512}, verdict=refused, evidence=()),
        trial(None, axes={"TM": 1024}, verdict=refused, evidence=()),
    ]
    text = page(rows[1], *rows, total=8)
    assert "Of 8 configurations 5 were looked at. The fastest, in µs: TM=64: 80.0; TM=128: 90.0." in text
    assert "1 spills (TM=256): 512 bytes of registers a thread are spilled" in text
    assert "2 failed (TM=512 and others): too many registers" in text
    assert "TM=1024" not in text


def test_a_specialised_answer_hears_which_sizes_it_refused() -> None:
    text = page(trial(infeasible=({"M": 7, "N": 1, "K": 3},)))
    assert "launch raised ValueError at M=7, N=1, K=3. It is kept for the sizes that it serves" in text


def test_a_rejected_answer_hears_nothing_of_speed() -> None:
    wrong = Verdict(
        status=Status.WRONG, stage=Stage.COMPARE, error_class="tail-not-summed", line=9,
        source="for k in range(K // TK):",
        message="y[64, 1] is 0.57, should be 2.56; right where K is a multiple of 64", hint="end the loop at ct.cdiv",
    )  # fmt: skip
    text = page(trial(verdict=wrong))
    assert text.splitlines() == [
        "In the configuration TM=64.",
        "wrong (tail-not-summed): y[64, 1] is 0.57, should be 2.56; right where K is a multiple of 64",
        "Line 9: `for k in range(K // TK):`",
        "Hint: end the loop at ct.cdiv",
    ]
