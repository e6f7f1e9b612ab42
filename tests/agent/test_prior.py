"""What near work says of a file's configurations, on measured landscapes; and what no prior may do."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from agent.experiments import Landscape, known_by, landscapes, spaces, tried, upside_down
from agent.loop.prior import Prior
from agent.loop.sampling import Sampler
from agent.loop.searching import search
from agent.loop.target_work import measured_spaces
from evaluator.timing import Known
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, Measurement
from knowledge_base.rules import Timed, in_spaces
from knowledge_base.snf.everyday import everyday
from knowledge_base.store import RunRecord, Store

WORKS = landscapes()


SOURCE = "import cuda.tile as ct\n\nAXES = {'TILE': [256, 512]}\n"


def work(op: str, configurations: int, **sizes: int) -> Landscape:
    return next(
        one for one in WORKS
        if one.op == op and dict(one.rows[0].sizes) == sizes and len(one.rows) == configurations and one.rows[0].source
    )  # fmt: skip


GELU = work("linear_gelu", 432, M=8192, N=3072, K=768)
RESIDUAL = work("linear_residual", 410, M=8192, N=768, K=768)


def tries(one: Landscape, seed: int, prior: Prior | None = None) -> int:
    """Until one is within 2% of the best."""
    return next(count for count, row in enumerate(tried(one, seed, prior), 1) if row.us <= 1.02 * one.best)


@pytest.mark.parametrize("one", [GELU, RESIDUAL], ids=["linear_gelu", "linear_residual"])
def test_other_operators_bring_a_search_near_the_best_in_few_tries(one: Landscape) -> None:
    """No row of its own op is known."""
    prior = known_by(one, spaces(other for other in WORKS if other.op != one.op))
    cold = sorted(tries(one, seed) for seed in range(8))
    warm = sorted(tries(one, seed, prior) for seed in range(8))
    assert warm[4] <= 5 < cold[4] / 2


def test_a_related_shape_saves_two_thirds_of_the_tries() -> None:
    """On average over the spaces; `agent experiment compounding` has the figures."""
    some = [one for one in WORKS if len(one.rows) >= 400 and one.rows[0].source]
    cold = warm = 0
    for one in some:
        prior = known_by(one, spaces(other for other in WORKS if other.shape != one.shape))
        cold += sum(tries(one, seed) for seed in range(3))
        warm += sum(tries(one, seed, prior) for seed in range(3))
    assert len(some) >= 8
    assert warm < cold / 3


def test_half_of_the_first_tries_are_drawn_whatever_a_prior_says() -> None:
    """The same ones as without it."""
    wrong = known_by(GELU, spaces([upside_down(GELU)]))
    drawn, mixed = ([row.axes for row in itertools.islice(tried(GELU, 5, prior), 10)] for prior in (None, wrong))
    assert mixed[0] == drawn[0]
    assert mixed[2::2] == drawn[1:5]
    assert not any(one in drawn for one in mixed[1::2])


def test_where_nothing_is_near_there_is_none() -> None:
    assert known_by(GELU, spaces([])) is None
    assert known_by(GELU, spaces([one for one in WORKS if not one.op.startswith("linear")])) is None
    other_axes = [replace(row, axes={"BLOCK": i}, source="") for i, row in enumerate(GELU.rows)]
    assert known_by(GELU, spaces([Landscape(other_axes)])) is None


def test_other_chips_and_dtypes_count_less() -> None:
    """Two spaces that say the opposite: the nearer one is believed."""
    contrary = upside_down(GELU).rows
    best = min(range(len(GELU.rows)), key=lambda place: GELU.rows[place].us)
    for changed in ({"chip": "rtx5070"}, {"dtype": "f32"}, {"sizes": {"M": 64, "N": 64, "K": 64}}):
        far = Landscape([replace(row, session="far", **changed) for row in contrary])
        found = known_by(GELU, spaces([GELU, far]))
        assert found is not None
        assert found.first(range(len(GELU.rows)), {}, ()) == best


def test_wrong_guesses_lose_weight_by_what_is_measured() -> None:
    """Even the only one; and all configurations are tried in the end."""
    right, found = known_by(GELU, spaces([GELU])), known_by(GELU, spaces([upside_down(GELU)]))
    assert right is not None
    assert found is not None
    assert max(found.slower({})) == pytest.approx(max(right.slower({})), rel=0.1)
    took = {place: GELU.rows[place].us for place in range(0, len(GELU.rows), 20)}
    assert max(found.slower(took)) < 0.3 * max(right.slower(took))
    sampler = Sampler([row.axes for row in GELU.rows], 1, 0, prior=found)
    asked = []
    while places := sampler.ask(4):
        for place in places:
            sampler.tell(place, GELU.rows[place].us if place % 7 else math.inf)
        asked += places
    assert sorted(asked) == list(range(len(GELU.rows)))


def test_a_prior_takes_what_does_not_run_and_what_its_spaces_lack() -> None:
    """Values that no near space has, axes that some configurations lack, and nothing but failures."""
    sizes = {"M": 64, "N": 64, "K": 64}
    rows = [
        Timed("linear", ("linear",), sizes, "bf16", "h200", "one", {"TM": tm, "TN": tn}, "", us)
        for tm, tn, us in ((64, 64, 3.0), (64, 128, 2.0), (128, 64, 1.0), (128, 128, 4.0))
    ]
    own = [{"TM": 128, "TN": 64}, {"TM": 128, "TN": 999}, {"TM": 64}, {"TN": 64, "OTHER": 1}]
    found = Prior(in_spaces(rows), ("linear",), "bf16", sizes, "h200", own)
    assert found.trusted
    assert found.first(range(4), {}, ()) == 0
    assert found.first([1, 2, 3], {0: math.inf}, ()) in (1, 2, 3, None)
    slower = found.slower({0: math.inf, 1: math.inf})
    assert all(math.isfinite(one) for one in slower)
    assert slower[0] == min(slower)


def test_what_is_known_is_what_ships_and_what_the_base_has(tmp_path: Path) -> None:
    task = everyday("gelu", M=64, N=64)
    trials = [
        begin(Candidate(source=SOURCE, task=task.identity), task, chip("h200"), {"TILE": tile}).fuller(
            measurements=(Measurement(kind="measured", chip="h200", us=1000.0 / tile, floor_us=1.0),),
        )
        for tile in (256, 512)
    ]
    shipped = measured_spaces(None)
    with Store.open(str(tmp_path / "kb.db")) as store:
        assert [one.shape for one in measured_spaces(store)] == [one.shape for one in shipped]
        store.start_run(RunRecord("r", "gelu", "h200", "cuda", "synthesizer", "running"))
        store.record_tasks([task])
        store.record(trials, run="r", move="search")
        *others, mine = measured_spaces(store)
    assert len(others) == len(shipped) > 40
    assert (mine.task, mine.session, sorted(mine.us)) == ("gelu", "r", [1000 / 512, 1000 / 256])


def test_a_search_by_the_clock_begins_where_near_work_was_best() -> None:
    """Of a real file, with times looked up: its second try is the other space's best."""
    h200, task = chip("h200"), everyday("linear_gelu", M=8192, N=3072, K=768)
    source = GELU.rows[0].source
    candidate = Candidate(source=source, task=task.identity, proposer="synthesizer")
    timer = Known(
        begin(candidate, task, h200, row.axes).fuller(
            measurements=(Measurement(kind="measured", chip="h200", us=row.us, floor_us=1.0),)
        )
        for row in GELU.rows
    )
    near = in_spaces(replace(row, session="other", source=source) for row in GELU.rows)
    best = min(GELU.rows, key=lambda row: row.us)
    found = search(candidate, task, h200, limit=4, near=near, timer=timer, jobs=1)
    assert len(found.trials) == 4
    assert found.best is not None
    assert found.best.configuration == best.axes
