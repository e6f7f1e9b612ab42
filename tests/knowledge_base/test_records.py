"""What the records promise: times of unlike kinds are never compared, a trial's time is of the kind asked for."""

from __future__ import annotations

import math

import pytest

from agent.loop.ranking import rank
from knowledge_base.records import (
    Candidate,
    Incomparable,
    Kind,
    Measurement,
    Stage,
    Status,
    Trial,
    Verdict,
    in_sequence,
)


def time(us: float, kind: Kind = "modelled", chip: str = "h200", **fields: object) -> Measurement:
    return Measurement.model_validate({"kind": kind, "chip": chip, "us": us, "floor_us": us / 2, **fields})


def trial(tm: int, *times: Measurement, **fields: object) -> Trial:
    candidate = Candidate(source="…", task="t")
    known = {"candidate": candidate, "configuration": {"TM": tm}, "chip": "h200", "shape": {"N": 8}, "evaluator": "e"}
    return Trial.model_validate({**known, "measurements": times, **fields})


@pytest.mark.parametrize("other", [time(9.0, "measured"), time(9.0, chip="b200")])
def test_times_of_unlike_kinds_or_chips_do_not_compare(other: Measurement) -> None:
    for attempt in (
        lambda: time(11.0) < other,
        lambda: other > time(11.0),
        lambda: time(11.0).over(other),
        lambda: min(time(11.0), other),
        lambda: in_sequence([(time(11.0), 1), (other, 2)]),
    ):
        with pytest.raises(Incomparable, match="do not compare"):
            attempt()


def test_times_of_one_kind_are_ordered_divided_and_added() -> None:
    assert sorted([time(3.0), time(1.0), time(2.0)]) == [time(1.0), time(2.0), time(3.0)]
    assert time(3.0).over(time(2.0)) == 1.5
    assert (time(0.0).over(time(0.0)), time(1.0).over(time(0.0))) == (1.0, math.inf)
    whole = in_sequence([(time(3.0), 2), (time(1.5), 4)])
    assert (whole.us, whole.floor_us, whole.kind, whole.chip) == (12.0, 6.0, "modelled", "h200")
    with pytest.raises(ValueError, match="no calls"):
        in_sequence([])


def test_a_trial_gives_the_time_of_the_kind_asked_for() -> None:
    both = trial(
        64, time(9.0), time(12.0, "measured"), time(11.0, "measured"), time(1.0, "measured", status="quarantined")
    )
    assert (both.timed("modelled"), both.timed("measured")) == (time(9.0), time(11.0, "measured"))
    assert both.time == time(11.0, "measured")  # the one to show
    assert (trial(64, time(9.0)).timed("measured"), trial(64).time) == (None, None)


def test_ranking_never_puts_a_modelled_time_beside_a_measured_one() -> None:
    slow = trial(1, time(9.5), time(11.0, "measured"))
    fast = trial(2, time(9.9), time(10.0, "measured"))
    guess = trial(3, time(9.0))
    assert rank([guess, slow, fast], "measured") == [fast, slow]
    assert rank([slow, fast, guess], "modelled") == [guess, slow, fast]


def test_ranking_leaves_out_what_was_rejected_and_takes_back_what_the_load_may_explain() -> None:
    wrong = trial(1, time(1.0), verdict=Verdict(status=Status.WRONG, stage=Stage.COMPARE))
    late = trial(2, time(2.0), verdict=Verdict(status=Status.TIMEOUT, stage=Stage.TRACE))
    evidence = {"arch": "sm_90", "kernel": "k", "symbol": "s", "registers": 255, "stack_bytes": 0, "shared_bytes": 0}
    spilling = trial(3, time(2.9), evidence=({**evidence, "spill_bytes": 8},))
    right = trial(4, time(3.0), verdict=Verdict(status=Status.CORRECT, stage=Stage.DONE))
    ranked = rank([spilling, wrong, right, late], "modelled")
    assert [t.configuration["TM"] for t in ranked] == [2, 4, 3]
    assert ranked[0].verdict is None


def test_of_modelled_times_near_each_other_the_one_without_spills_comes_first() -> None:
    evidence = {"arch": "sm_90", "kernel": "k", "symbol": "s", "registers": 255, "stack_bytes": 0, "shared_bytes": 0}
    spilling = trial(1, time(1.0), time(1.0, "measured"), evidence=({**evidence, "spill_bytes": 8},))
    other = trial(2, time(1.03), time(1.03, "measured"), evidence_elsewhere=({**evidence, "spill_bytes": 8},))
    slower = trial(3, time(1.05), time(1.05, "measured"))
    assert rank([slower, spilling, other], "modelled") == [other, spilling, slower]
    assert rank([slower, spilling, other], "measured") == [spilling, other, slower]
