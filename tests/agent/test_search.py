"""Configuration search: every configuration is accounted for, the best is first, and what is given up could not win."""

from __future__ import annotations

import itertools

import pytest

from agent.loop import assay
from agent.loop.ranking import in_file, searched
from agent.loop.searching import SearchResult, search
from evaluator.compile import Cache
from evaluator.plans import Plans
from knowledge_base.chips import CHIPS
from knowledge_base.records import STANDINGS, Candidate, Status
from knowledge_base.snf.everyday import everyday

CHIP = CHIPS["rtx5070"]

SOURCE = """
import cuda.tile as ct

AXES = {"TM": [16, 4, 3], "TN": [128, 64], "style": ["plain", "never"], "occupancy": [1, 2]}

@ct.kernel
def kernel(a, b, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    at = (ct.bid(0), ct.bid(1))
    s = ct.load(a, index=at, shape=(TM, TN)).astype(ct.float32)
    s = s + ct.load(b, index=at, shape=(TM, TN)).astype(ct.float32)
    ct.store(y, index=at, tile=s.astype(y.dtype))

def launch(stream, a, b, y, *, TM=16, TN=128, style="plain", occupancy=1):
    if style == "never":
        raise ValueError("this style is for other sizes")
    grid = (ct.cdiv(a.shape[0], TM), ct.cdiv(a.shape[1], TN))
    ct.launch(stream, grid, kernel.replace_hints(occupancy=occupancy), (a, b, y, TM, TN))
"""


def candidate(task, source: str = SOURCE) -> Candidate:
    return Candidate(source=source, task=task.identity)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def task():
    return everyday("add", M=512, N=768)


@pytest.fixture(scope="module")
def plans() -> Plans:
    return Plans()


@pytest.fixture(scope="module")
def result(task, cache, plans) -> SearchResult:
    return search(candidate(task), task, CHIP, cache=cache, plans=plans)


def test_every_configuration_has_one_row(result):
    assert result.total == len(result.trials) == 24
    assert result.left_out == 0
    assert len({tuple(sorted(row.configuration.items())) for row in result.trials}) == 24


def test_each_row_says_what_became_of_it(result, plans):
    for row in result.trials:
        if row.configuration["style"] == "never":
            assert row.standing == "infeasible"
            assert "other sizes" in row.reason
        elif row.configuration["TM"] == 3:  # no power of two: the front end's refusal
            assert row.standing == "failed"
            assert row.verdict.status is Status.BUILD_ERROR
        elif row.standing == "ranked":
            assert row.time.kind == "modelled"
            assert row.time.chip == "rtx5070"
            assert [e.kernel for e in row.evidence] == list(plans.of(row)[0].plan.kernels)
            assert row.evidence[0].arch == "sm_120"
        else:
            assert row.standing == "pruned"
            assert row.reason


def test_the_best_comes_first_and_the_rest_in_order(result):
    ranked = [row for row in result.trials if row.standing == "ranked"]
    assert ranked
    assert result.best is result.trials[0] is ranked[0]
    assert [row.time.us for row in ranked] == sorted(row.time.us for row in ranked)
    order = [status for status, _ in itertools.groupby(result.trials, key=lambda row: row.standing)]
    assert order == sorted(order, key=STANDINGS.index)


def test_what_was_pruned_could_not_have_won(task, cache, result, monkeypatch):
    monkeypatch.setattr(assay, "PRUNE", float("inf"))
    everything = search(candidate(task), task, CHIP, cache=cache)
    assert "pruned" not in everything.counts()
    assert everything.best.time.us == result.best.time.us
    ideal = {tuple(sorted(r.configuration.items())): r.time.us for r in everything.trials if r.standing == "ranked"}
    for row in result.trials:
        if row.standing == "pruned":
            assert ideal[tuple(sorted(row.configuration.items()))] >= result.best.time.us


def test_a_second_search_gives_the_same_answer_from_the_cache(task, cache, result, monkeypatch):
    from evaluator.compile import pool

    def unreachable(*_: object, **__: object) -> None:
        raise AssertionError("assembled again")

    monkeypatch.setattr(pool, "assemble", unreachable)
    again = search(candidate(task), task, CHIP, cache=cache)
    assert [(r.configuration, r.standing, r.time) for r in again.trials] == [
        (r.configuration, r.standing, r.time) for r in result.trials
    ]


def test_spilling_and_oversized_configurations_are_behind_with_their_reason(cache):
    source = """
import cuda.tile as ct

AXES = {"TM": [64, 128, 512], "TN": [64, 256, 512]}

@ct.kernel
def kernel(x, w, b, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.full((TM, TN), 0, dtype=ct.float32)
    for k in range(ct.num_tiles(x, axis=1, shape=(TM, 64))):
        p = ct.load(x, index=(i, k), shape=(TM, 64), padding_mode=ct.PaddingMode.ZERO)
        q = ct.load(w, index=(j, k), shape=(TN, 64), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(p, ct.transpose(q), acc)
    acc = acc + ct.load(b, index=(j,), shape=(TN,)).astype(ct.float32)
    ct.store(y, index=(i, j), tile=acc.astype(y.dtype))

def launch(stream, x, w, b, y, *, TM=64, TN=64):
    if (TM, TN) not in ((64, 64), (128, 256), (512, 512)):
        raise ValueError("not this pair")
    ct.launch(stream, (ct.cdiv(x.shape[0], TM), ct.cdiv(w.shape[0], TN)), kernel, (x, w, b, y, TM, TN))
"""
    task = everyday("linear", M=512, N=512, K=64)
    found = search(candidate(task, source), task, CHIP, cache=cache, first=[{"TM": 128, "TN": 256}])
    by_tile = {(r.configuration["TM"], r.configuration["TN"]): r for r in found.trials}
    assert by_tile[64, 64].standing == "ranked"
    assert by_tile[128, 256].standing == "spills"
    assert "bytes of registers" in by_tile[128, 256].reason
    assert by_tile[128, 256].time is not None
    assert by_tile[512, 512].standing == "pruned"
    assert "accumulator of 1024 KiB" in by_tile[512, 512].reason
    assert found.best is by_tile[64, 64]


def test_progress_hears_of_every_row(task, cache):
    heard = []
    found = search(candidate(task), task, CHIP, cache=cache, progress=lambda done, of, row: heard.append((done, of)))
    assert [one for one in heard if one[0]] == [(i + 1, 24) for i in range(len(found.trials))]
    assert heard[0] == (0, 24)  # so that a search can be stopped while it traces


def test_a_warm_start_is_looked_at_first(task, cache):
    best = {"TM": 4, "TN": 64}
    heard = []
    search(
        candidate(task),
        task,
        CHIP,
        cache=cache,
        limit=4,
        first=[best],
        progress=lambda _, __, row: heard.append(row.configuration),
    )
    assert {**best, "style": "plain", "occupancy": 1} in heard


def test_after_its_time_a_search_compiles_no_more_but_has_an_answer(task, cache):
    found = search(candidate(task), task, CHIP, cache=cache, seconds=0.0, jobs=1)
    assert found.counts()["ranked"] == 1
    assert found.best
    assert found.left_out == 24 - len(found.trials) > 0


def test_a_search_goes_on_where_another_ended_and_is_over_once_all_was_looked_at(task, cache, result):
    trials = []
    for _ in range(24):
        found = search(candidate(task), task, CHIP, cache=cache, known=trials, seconds=0.0, jobs=1)
        new = {in_file(trial.configuration) for trial in found.trials}
        assert not new & {in_file(trial.configuration) for trial in trials}  # none is looked at again
        trials += found.trials
        assert found.left_out == 24 - len(trials)
        if searched(trials, "modelled", 24):
            break
    assert len(trials) == 24
    assert min(trial.time for trial in trials if trial.time) == result.best.time
    nothing = search(candidate(task), task, CHIP, cache=cache, known=trials)
    assert (nothing.trials, nothing.left_out) == ((), 0)


def test_what_was_priced_out_is_looked_at_again_where_the_bar_is_higher(task, cache, result, monkeypatch):
    """By another kind of time, say, or as what it was held to was judged to be wrong."""
    with monkeypatch.context() as strict:
        strict.setattr(assay, "PRUNE", 0.0)
        few = search(candidate(task), task, CHIP, cache=cache, jobs=1)
        assert few.counts()["ranked"] == 1
        assert searched(few.trials, "modelled", 24)
    known = [row for row in few.trials if row.standing == "pruned"]
    assert all(row.price_us for row in known)
    assert not searched(few.trials, "modelled", 24)
    found = search(candidate(task), task, CHIP, cache=cache, known=known)
    assert len(found.trials) == 24  # the refused ones were not among the known
    assert found.best.time == result.best.time


def test_a_file_that_breaks_the_contract_is_a_verdict_not_an_exception(task):
    found = search(candidate(task, "AXES = 3\n"), task, CHIP)
    (whole,) = found.trials  # so that the attempt leaves a trace in the knowledge base
    assert whole.verdict == found.verdict
    assert (whole.configuration, whole.verdict.line, whole.standing) == ({}, 1, "failed")
    assert found.best is None
    assert found.verdict.status is Status.INVALID
