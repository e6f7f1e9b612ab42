"""No cheat is called correct, and every honest kernel is: one of each kind here, all on three seeds by make attack."""

from __future__ import annotations

import pytest
from cheats import CHEATS, Attempt
from honest import HONEST

from evaluator.judging import JudgeProcess
from evaluator.trial import begin
from knowledge_base.chips import CHIPS
from knowledge_base.records import Candidate, Verdict

CHIP = CHIPS["rtx5070"]
SEEDS = (1, 2, 3)
ALL = {f"{kind}: {name}": cheat for kind, some in CHEATS.items() for name, cheat in some.items()}
FIRST = [next(f"{kind}: {name}" for name in some) for kind, some in CHEATS.items()]


def verdict(judges: JudgeProcess, cheat: Attempt, seed: int) -> Verdict:
    task = cheat.task
    trial = begin(Candidate(source=cheat.source, task=task.identity), task, CHIP)
    found = judges.judge(trial, task, CHIP, seed=seed).verdict
    assert found is not None
    return found


def accepted(found: Verdict) -> bool:
    """Whether the judge says correct; what it says besides must be of the kernel, and no defect of its own."""
    assert found.status not in ("crash", "timeout", "build-error"), found
    return found.correct


@pytest.mark.parametrize("name", FIRST)
def test_a_cheat_of_each_kind_is_rejected(judges: JudgeProcess, name: str) -> None:
    assert not accepted(verdict(judges, ALL[name], SEEDS[0]))


def test_an_honest_kernel_is_accepted(judges: JudgeProcess) -> None:
    found = verdict(judges, next(iter(HONEST.values())), SEEDS[0])
    assert accepted(found), found


@pytest.mark.attack
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ALL)
def test_every_cheat_is_rejected(judges: JudgeProcess, name: str, seed: int) -> None:
    assert not accepted(verdict(judges, ALL[name], seed))


@pytest.mark.attack
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", HONEST)
def test_every_honest_kernel_is_accepted(judges: JudgeProcess, name: str, seed: int) -> None:
    found = verdict(judges, HONEST[name], seed)
    assert accepted(found), found
