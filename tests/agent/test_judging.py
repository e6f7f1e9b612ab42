"""The pool of judge processes: ready before a candidate runs where that matters, and ended from any thread."""

from __future__ import annotations

import threading
import time

import pytest

from agent.loop import judges as judging
from agent.loop.judges import Judges
from evaluator.confinement.barriers import Containment
from evaluator.plans import Plans
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.records import Candidate
from knowledge_base.snf.everyday import everyday


@pytest.fixture(autouse=True)
def lent_judges() -> None:
    """Processes of their own: what becomes of them is what is tested here."""


def test_where_candidates_can_write_files_the_judges_have_read_theirs_before_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "containment", lambda: Containment(why="nothing is refused here"))
    with Judges(2) as judges:
        assert all(process._ready for process in judges._all)


def test_a_pool_that_is_stopped_ends_calls_that_wait_for_a_process() -> None:
    gpu, task = chip("rtx5070"), everyday("gelu", M=100, N=70)
    begun = begin(Candidate(source="", task=task.identity), task, gpu)
    raised: list[str] = []

    def call() -> None:
        try:
            judges.judge(begun, task, gpu, Plans(), 1)
        except EnvironmentLacks as error:
            raised.append(error.what)

    with Judges(1) as judges:
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # it still imports torch
        judges.stop()
        for thread in threads:
            thread.join(20)
    assert raised == ["the judge's process was ended"] * 3


def test_another_judge_is_started_when_it_is_needed_up_to_as_many_as_there_may_be() -> None:
    with Judges(2) as judges:
        with judges._one() as first:
            assert judges._all == [first]
            with judges._one() as second:
                assert judges._all == [first, second]
                assert judges._another() is None
        with judges._one():
            assert judges._all == [first, second]
    assert judges._another() is None  # nothing is started once it was stopped
