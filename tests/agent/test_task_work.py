"""One task's way through the loop: what it does with plans that it reads back from the knowledge base."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.loop.task_work import TaskWork
from agent.progress import Lines
from evaluator.judging.judgement import judge
from evaluator.judging.oracle import Oracle
from evaluator.plans import Plans
from evaluator.timing.timer import MODEL
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, Measurement, Trial
from knowledge_base.snf import parse
from knowledge_base.snf.canonical import canonical
from knowledge_base.store import Store

CHIP = chip("rtx5070")
TASK = canonical(parse("M, D = 20, 16\nD in (16, 32)\nx: f32[M, D]\ny = Softmax(x)"))
SOURCE = """
import cuda.tile as ct

@ct.kernel
def rows(x, y, D: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i, 0), (8, D), padding_mode=ct.PaddingMode.ZERO)
    tile = ct.exp(tile - ct.max(tile, axis=1, keepdims=True))
    ct.store(y, (i, 0), tile / ct.sum(tile, axis=1, keepdims=True))

def launch(stream, x, y):
    M, D = x.shape
    ct.launch(stream, (ct.cdiv(M, 8),), rows, (x, y, D))
"""


@pytest.fixture(scope="module")
def judged(oracle: Oracle) -> tuple[Trial, Plans]:
    """A correct trial with several plans: the kernel pins the width of a row."""
    trial, plans = begin(Candidate(source=SOURCE, task=TASK.identity), TASK, CHIP), Plans()
    return judge(trial, TASK, CHIP, plans=plans, oracle=oracle, seed=5), plans


@pytest.fixture
def store(judged: tuple[Trial, Plans], tmp_path: Path) -> Iterator[Store]:
    trial, plans = judged
    with Store.open(str(tmp_path / "kb.db")) as opened:
        opened.record_tasks([TASK])
        opened.record([trial], artifacts=plans.artifacts(trial))
        yield opened


class Judges:
    """The judge, in this process."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def judge(self, *arguments: Any) -> Trial:
        trial, task, chip, plans, seed = arguments
        return judge(trial, task, chip, plans=plans, oracle=self.oracle, seed=seed)


def work(store: Store, oracle: Oracle) -> TaskWork:
    context = SimpleNamespace(
        store=store, judges=Judges(oracle), plans=Plans(store), timer=MODEL, runner=None, progress=Lines(), chip=CHIP,
        seed=5, run="",
        search_seconds=1.0, cores=1, proposers=(), check_time=lambda: None, check_stopping=lambda: None,
    )  # fmt: skip
    return TaskWork(context, TASK, TASK.name, 1, 1.0)  # type: ignore[arg-type]


def test_plans_come_back_as_they_were_stored(store: Store, judged: tuple[Trial, Plans]) -> None:
    trial, plans = judged
    assert len(trial.plans) > 1
    back = Plans(store)
    assert [(t.plan, dict(t.kernels)) for t in back.of(trial)] == [(t.plan, dict(t.kernels)) for t in plans.of(trial)]
    assert back.traced(trial) is None  # the judge takes none that was read back
    assert plans.traced(trial) is plans.of(trial)[0]
    assert Plans().of(trial) == ()
    back.put(*plans)  # traced here after all
    assert back.traced(trial) is plans.traced(trial)
    back.put(*Plans(store).of(trial))
    assert back.traced(trial) is plans.traced(trial)


def test_a_verdict_is_reused_without_a_judge(store: Store, judged: tuple[Trial, Plans], oracle: Oracle) -> None:
    task = work(store, oracle)
    assert task.judge_best([judged[0]], "known") == judged[0]
    assert not task.fresh


def test_where_one_plan_of_several_cannot_be_read_back_the_trial_is_judged_again(
    store: Store, judged: tuple[Trial, Plans], oracle: Oracle
) -> None:
    lost = judged[0].plans[-1]
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE artifacts SET content = x'00' WHERE key = '{lost}'")
    task = work(store, oracle)
    again = task.judge_best([judged[0]], "known")
    assert again is not None
    assert again.correct
    assert task.fresh
    assert Plans(store).of(again)  # and is whole again


def timed_as(trial: Trial, us: float, **terms: float) -> Trial:
    """The trial with a modelled time; ``packing``: a term of it."""
    time = Measurement(kind="modelled", chip=CHIP.name, us=us, floor_us=1.0, terms=terms)
    return trial.fuller(measurements=(time,))


def test_a_slower_configuration_of_a_promising_file_takes_no_winners_place(
    store: Store, judged: tuple[Trial, Plans], oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fastest configuration promised more than the general kernel, and was rejected."""

    timed = partial(timed_as, judged[0])
    task = work(store, oracle)
    task.general = timed(10.0)
    for found, winner in ((12.0, 10.0), (9.0, 9.0)):
        monkeypatch.setattr(task, "judge_best", lambda trials, move, found=found: timed(found))
        task.decide([([timed(5.0)], "improve")])
        assert task.time(task.general).us == winner
    assert len(task.tried) == 2  # heard of all the same


def test_a_kernel_that_wants_packed_weights_stands_beside_one_that_serves_every_call(
    store: Store, judged: tuple[Trial, Plans], oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = partial(timed_as, judged[0])
    plain, packed = timed(10.0), timed(8.0, packing=3.0)
    assert (plain.packs, packed.packs) == (False, True)
    assert packed.general
    task = work(store, oracle)
    monkeypatch.setattr(task, "judge_best", lambda trials, move: trials[0])
    task.decide([([packed], "propose"), ([plain], "propose")])
    assert (task.general, task.special) == (plain, packed)
    task.decide([([timed(9.9, packing=3.0)], "propose")])
    assert task.winners == (packed, plain)


def test_where_every_kernel_wants_packed_weights_the_fastest_of_them_serves_until_one_does_not(
    store: Store, judged: tuple[Trial, Plans], oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = partial(timed_as, judged[0])
    packed, faster, plain = timed(8.0, packing=3.0), timed(7.0, packing=3.0), timed(10.0)
    task = work(store, oracle)
    monkeypatch.setattr(task, "judge_best", lambda trials, move: trials[0])
    task.decide([([packed], "propose")])
    assert (task.general, task.special) == (packed, None)
    task.decide([([faster], "propose")])
    assert (task.general, task.special) == (faster, None)
    task.decide([([plain], "propose")])  # slower, and worth being judged all the same
    assert (task.general, task.special) == (plain, faster)
