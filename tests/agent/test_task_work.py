"""One task's way through the loop: what it does with plans that it reads back from the knowledge base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.conclude import artifacts, recall
from agent.task_work import TaskWork
from evaluator.judge import Plans, judge
from evaluator.oracle import Oracle
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, Trial
from knowledge_base.snf.everyday import everyday
from knowledge_base.store import Store

SOURCE = Path(__file__).parents[1] / "evaluator" / "kernels" / "attention.py"
CHIP = chip("rtx5070")
TASK = everyday("attention_qkv", B=1, H=2, T=20)


@pytest.fixture(scope="module")
def judged() -> tuple[Trial, Plans]:
    """A correct trial with several plans: the kernel pins the head width."""
    trial = begin(Candidate(source=SOURCE.read_text(), task=TASK.identity), TASK, CHIP)
    with Oracle() as oracle:
        return judge(trial, TASK, CHIP, oracle=oracle, seed=5)


@pytest.fixture
def store(judged: tuple[Trial, Plans], tmp_path: Path) -> Iterator[Store]:
    trial, plans = judged
    with Store.open(str(tmp_path / "kb.db")) as opened:
        opened.record_tasks([TASK])
        opened.record([trial], artifacts=artifacts(trial, plans))
        yield opened


class Judges:
    """The judge, in this process."""

    def judge(self, *arguments: Any) -> tuple[Trial, Plans]:
        trial, task, chip, traced, seed = arguments
        return judge(trial, task, chip, traced=traced, seed=seed)


def work(store: Store) -> TaskWork:
    context = SimpleNamespace(
        store=store, judges=Judges(), chip=CHIP, seed=5, run="", search_seconds=1.0,
        check_time=lambda: None, check_stopping=lambda: None,
    )  # fmt: skip
    return TaskWork(context, TASK, "attention_qkv", 1, 1.0)  # type: ignore[arg-type]


def test_plans_come_back_as_they_were_stored(store: Store, judged: tuple[Trial, Plans]) -> None:
    trial, plans = judged
    assert len(trial.plans) > 1
    back = recall(store, trial.plans)
    assert {d: (t.plan, dict(t.kernels)) for d, t in back.items()} == {
        d: (t.plan, dict(t.kernels)) for d, t in plans.items()
    }


def test_a_verdict_is_reused_without_a_judge(store: Store, judged: tuple[Trial, Plans]) -> None:
    task = work(store)
    assert task.judge_best([judged[0]], "known") == judged[0]
    assert not task.fresh
    assert set(judged[0].plans) <= set(task.plans)


def test_where_one_plan_of_several_cannot_be_read_back_the_trial_is_judged_again(
    store: Store, judged: tuple[Trial, Plans]
) -> None:
    lost = judged[0].plans[-1]
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE artifacts SET content = x'00' WHERE key = '{lost}'")
    task = work(store)
    again = task.judge_best([judged[0]], "known")
    assert again is not None
    assert again.correct
    assert task.fresh
    assert set(again.plans) <= set(task.plans)
    assert lost in recall(store, judged[0].plans)  # and is whole again
