"""The sampler on measured landscapes: how soon it finds what is within 2% of the best; and a search by known times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import pytest

from agent.loop import looked_up, searching
from agent.loop.assay import PRUNE
from agent.loop.sampling import Sampler
from agent.loop.searching import search
from evaluator.timing import Known
from evaluator.trace import read_axes
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.landscapes import LandscapeRow, landscape, landscape_sources
from knowledge_base.records import Candidate, Measurement, Trial
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

H200 = chip("h200")
TRIES = 60


def spaces() -> dict[tuple[str, str, str, str], tuple[LandscapeRow, ...]]:
    """The rows of each space that is too large to be taken whole at once."""
    found: dict[tuple[str, str, str, str], list[LandscapeRow]] = defaultdict(list)
    for name in ("h200_product", "h200_sweeps", "h200_block"):
        for row in landscape(name):
            found[name, row.task, repr(row.sizes), row.source].append(row)
    return {place: tuple(rows) for place, rows in found.items() if len(rows) >= 48}


def tries(rows: Sequence[LandscapeRow], seed: int) -> int:
    """How many configurations are tried, as a search does, until one is within 2% of the best."""
    axes = read_axes(landscape_sources()[rows[0].source]) if rows[0].source else {}
    assert isinstance(axes, dict)
    default = {name: values[0] for name, values in axes.items()}
    rows = sorted(rows, key=lambda row: row.axes != default)
    took = [math.inf if row.us is None else row.us for row in rows]
    told: list[int] = []
    for place in looked_up([row.axes for row in rows], took, int(rows[0].axes == default), seed):
        told.append(place)
        if min(took[place] for place in told) <= 1.02 * min(took):
            assert len(set(told)) == len(told)
            return len(told)
    raise AssertionError("all are tried, and none is the best")


def test_what_is_within_2_percent_of_the_best_is_found_within_60_tries() -> None:
    needed = {place: sorted(tries(rows, seed) for seed in range(7)) for place, rows in spaces().items()}
    assert len(needed) == 15 + 9
    assert all(of_space[3] <= TRIES for of_space in needed.values()), needed  # the median
    everyone = [one for of_space in needed.values() for one in of_space]
    assert sum(one <= TRIES for one in everyone) >= 0.9 * len(everyone), needed


def test_all_are_asked_for_once_and_what_fails_is_no_example() -> None:
    all_of_them = [{"a": a, "b": b} for a in range(6) for b in range(6)]
    sampler = Sampler(all_of_them, 1, seed=3)
    order: list[int] = []
    while places := sampler.ask(4):
        order += places
        for place in places:
            one = all_of_them[place]
            sampler.tell(place, math.inf if one["a"] == 5 else 10.0 + one["a"] + one["b"])
    assert order[0] == 0
    assert sorted(order) == list(range(36))
    failed = [order.index(place) for place, one in enumerate(all_of_them) if one["a"] == 5]
    assert sum(failed) / 6 > 22  # of 36, the first ten of which are drawn


def known_layernorm(scale: float = 1.0) -> tuple[Candidate, Task, Known]:
    """A file of 16 configurations, and what they took, times ``scale``."""
    rows = [row for row in landscape("h200_product") if row.source == "126d9209"]
    task = everyday("layernorm", **rows[0].sizes)
    candidate = Candidate(source=landscape_sources()["126d9209"], task=task.identity)

    def told(row: LandscapeRow) -> Trial:
        assert row.us is not None
        time = Measurement(kind="measured", chip="h200", us=scale * row.us, floor_us=1.0)
        return begin(candidate, task, H200, row.axes).fuller(measurements=(time,))

    return candidate, task, Known(told(row) for row in rows)


def test_prices_are_held_to_the_model_where_it_gives_the_fastest_more_than_a_clock_does() -> None:
    """Else all others, which it overrates as well, would be taken for slower."""
    candidate, task, timer = known_layernorm(scale=0.2)
    found = search(candidate, task, H200, timer=timer, jobs=2)
    assert len(found.trials) == 16
    went_on = search(candidate, task, H200, timer=timer, known=found.trials[:8], jobs=2)
    assert len(went_on.trials) == 8
    times = [time for trial in found.trials if (time := trial.timed("modelled"))]
    for trial in (*found.trials, *went_on.trials):  # the slowest may be ruled out, by which is ahead then
        assert not trial.pruned or (trial.price_us or 0.0) > PRUNE * min(time.us for time in times)
    assert len(times) >= 14


def test_a_search_by_known_times_tries_what_the_sampler_asks_for_and_finds_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidate, task, timer = known_layernorm()
    monkeypatch.setattr(searching, "BATCH", 4)
    seen: list[int] = []
    found = search(candidate, task, H200, timer=timer, limit=12, jobs=2, progress=lambda done, *_: seen.append(done))
    assert found.best is not None
    time = found.best.timed("measured")
    assert time is not None
    best = min(row.us for row in landscape("h200_product") if row.source == "126d9209" and row.us is not None)
    assert time.us <= 1.02 * best
    assert len(found.trials) == 12
    assert (found.total, found.left_out, found.kind) == (16, 4, "measured")
    assert seen == list(range(1, 13))
    went_on = search(candidate, task, H200, timer=timer, known=found.trials, jobs=2)
    assert len(went_on.trials) == 4
    assert (went_on.total, went_on.left_out) == (16, 0)
    both = {repr(sorted(trial.configuration.items())) for trial in (*found.trials, *went_on.trials)}
    assert len(both) == 16
    late = search(candidate, task, H200, timer=timer, seconds=0.0, jobs=2)
    assert (len(late.trials), late.left_out) == (4, 12)  # a batch is begun always, however short the time
    monkeypatch.setattr(searching, "ENOUGH", 8)
    given_up = search(candidate, task, H200, timer=timer, against=time.us / 2, jobs=2)
    assert len(given_up.trials) < 16
    assert len(search(candidate, task, H200, timer=timer, against=2 * time.us, jobs=2).trials) == 16
    times = [trial.timed("measured") for trial in found.trials]
    assert all(time is not None for time in times)
    assert times == sorted(times, key=lambda time: time.us if time is not None else math.inf)
