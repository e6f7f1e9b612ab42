"""Timers: each gives times of its kind, for the trial that is asked about."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.loop.searching import SearchResult, search
from evaluator.compile import Cache
from evaluator.plans import Plans
from evaluator.timing.timer import MODEL, Known
from knowledge_base.chips import CHIPS
from knowledge_base.records import Candidate, Measurement, Trial
from knowledge_base.snf.everyday import everyday

CHIP = CHIPS["h200"]
PLANS = Plans()
TASK = everyday("layernorm", M=64, N=96)
SOURCE = (Path(__file__).parents[1] / "candidates" / "layernorm_rows.py").read_text()


def measured(us: float) -> Measurement:
    return Measurement(kind="measured", chip="h200", us=us, floor_us=0.1, samples=(us,))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def found(cache: Cache) -> SearchResult:
    return search(Candidate(source=SOURCE, task=TASK.identity), TASK, CHIP, cache=cache, plans=PLANS)


def ranked(found: SearchResult) -> list[Trial]:
    return [trial for trial in found.trials if trial.standing == "ranked"]


def test_the_models_time_is_the_one_a_search_records(found: SearchResult) -> None:
    assert found.kind == MODEL.kind == "modelled"
    for trial in ranked(found):
        assert MODEL.time(trial, TASK, PLANS.of(trial)[0]) == trial.timed("modelled")


def test_a_trial_of_which_no_block_fits_has_no_time(found: SearchResult) -> None:
    trial = ranked(found)[0]
    too_much = tuple(e.model_copy(update={"shared_bytes": 300_000}) for e in trial.evidence)
    assert MODEL.time(trial.fuller(evidence=too_much), TASK, PLANS.of(trial)[0]) is None


def test_known_times_are_found_by_what_was_tried_not_by_who_tried_it(found: SearchResult) -> None:
    first, second = ranked(found)[:2]
    stored = first.fuller(evaluator="an older version", measurements=(measured(9.0), measured(8.0)))
    known, plan = Known([stored, stored.fuller(measurements=(measured(8.5),))]), PLANS.of(first)[0]
    assert known.kind == "measured"
    assert known.time(first, TASK, plan) == measured(8.0)
    assert known.time(second, TASK, plan) is None
    assert known.time(first.fuller(shape={**first.shape, "M": 65}), TASK, plan) is None
    assert known.time(first.fuller(chip="b200"), TASK, plan) is None
    assert Known([stored], "modelled").time(first, TASK, plan) is None


def test_a_search_ranks_by_its_timers_times(found: SearchResult, cache: Cache) -> None:
    """The table turns the model's order round; what is not in it stands behind what is."""
    told = ranked(found)[:-1]
    assert len(told) > 1
    table = Known(t.fuller(measurements=(measured(100.0 - i),)) for i, t in enumerate(told))
    again = search(Candidate(source=SOURCE, task=TASK.identity), TASK, CHIP, cache=cache, timer=table)
    assert again.kind == "measured"
    configurations = [t.configuration for t in ranked(again)]
    assert configurations == [t.configuration for t in reversed(told)] + [ranked(found)[-1].configuration]
    assert again.best is not None
    assert again.best.time == measured(100.0 - (len(told) - 1))
    assert again.best.timed("modelled") == told[-1].timed("modelled")  # kept beside it
