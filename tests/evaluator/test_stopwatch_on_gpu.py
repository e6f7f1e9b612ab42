"""Timing on a card: a kernel against itself, against one that does its work twice, and against light."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.replay import Composition, Runner, cubins_of
from evaluator.timing import Measured, ratio
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from knowledge_base.chips import from_driver
from knowledge_base.records import Candidate, Verdict
from knowledge_base.snf.everyday import everyday

pytestmark = pytest.mark.gpu

LAYERNORM = (Path(__file__).parent.parent / "candidates" / "layernorm_rows.py").read_text()
TASK = everyday("layernorm")
TWICE = LAYERNORM.replace("    ct.launch(", "    for _ in range(2):\n        ct.launch(")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as one:
        yield one


def traced(text: str) -> Traced:
    (one,) = trace(text, TASK, [Request(TASK.sizes)], from_driver())
    assert isinstance(one, Traced), one
    return one


def ready(text: str) -> Composition:
    plan = traced(text)
    cubins = cubins_of([plan], from_driver())
    assert not isinstance(cubins, Verdict)
    return Composition.of_task(TASK, plan, cubins)


def test_a_kernel_takes_as_long_as_itself_and_half_as_long_as_twice_it(runner: Runner) -> None:
    compositions = [ready(LAYERNORM), ready(LAYERNORM), ready(TWICE)]
    one, same, twice = runner.call("raced", compositions, from_driver(), 1, 5, seconds=60)
    assert ratio([one], [same]).value == pytest.approx(1.0, abs=0.02)
    assert 1.7 < ratio([twice], [one]).value < 2.2
    print(ratio([one], [same]), ratio([twice], [one]))


def test_a_measured_time_is_stable_and_slower_than_light(runner: Runner) -> None:
    plan = traced(LAYERNORM)
    trial = begin(Candidate(source=LAYERNORM, task=TASK.identity), TASK, from_driver())
    first, second = (Measured(runner, seed).time(trial, TASK, plan) for seed in (1, 2))
    assert first is not None
    assert second is not None
    assert (first.status, second.status) == ("stable", "stable")
    assert first.us > first.floor_us
    assert first.over(second) == pytest.approx(1.0, abs=0.05)
    print(first.us, first.terms, first.floor_us)
