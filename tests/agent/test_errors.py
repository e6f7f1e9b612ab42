"""Every class of the error table that an answer can cause: the judge finds it, and what its author is told mends it.

The author is scripted.  He knows the right file, but writes it only if his prompt has what he would need to find it
himself: the class's hint, and the line that is at fault.  Otherwise he says the same again.

``make errors`` does this for the whole table; a class of each stage is tested always.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import faults_of_contract
import faults_of_results
import pytest
from faults import Fault
from model_runs import block, calls, go
from model_server import Answer, Asked, ModelServer

from agent.loop import task_work
from agent.proposers.language_model import model_proposer
from knowledge_base.hints import table
from knowledge_base.records import Stage, Verdict
from knowledge_base.snf.printer import show
from prompts import feedback

FAULTS: dict[str, Fault] = faults_of_contract.FAULTS | faults_of_results.FAULTS
NOBODYS: dict[str, str] = faults_of_contract.NOBODYS | faults_of_results.NOBODYS
HINTS = {row.name: row.hint for row in table()}
OF_STAGE = {
    Stage.STATIC: "bad-axes",
    Stage.IMPORT: "outside-launch",
    Stage.TRACE: "tile-not-power-of-two",
    Stage.COMPILE: "architecture-lacks",
    Stage.EMULATE: "race",
    Stage.COMPARE: "bias-missing",
}


def hint(name: str) -> re.Pattern[str]:
    """The class's hint, whatever it names."""
    plain = re.sub(r"\s*\(?`?\{\w+\}`?\)?", "\0", HINTS[name]).replace("{{", "{").replace("}}", "}")
    return re.compile(".{0,80}?".join(re.escape(part) for part in plain.split("\0")))


def author(name: str, fault: Fault) -> Callable[[Asked], Answer]:
    """What answers: the fault, until the prompt says enough."""

    line = re.compile(rf"^Line \d+: `{re.escape(fault.line)}`$", re.MULTILINE)

    def answer(asked: Asked) -> Answer:
        told = hint(name).search(asked.prompt) and (not fault.line or line.search(asked.prompt))
        return block(fault.right if told else fault.source)

    return answer


def repairs(name: str, folder: Path) -> tuple[Verdict, int]:
    """The verdict on the faulty answer, and how many repairs led to the right one; -1 if none did."""
    fault = FAULTS[name]
    folder.mkdir(exist_ok=True)
    with ModelServer(author(name, fault)) as server:
        summary = go(folder, server.url, rounds=3, text=show(fault.task.graph), seed=11)
    (task,) = summary.tasks
    assert task.task.identity == fault.task.identity
    faulty, *others = [call for call in calls(folder) if call.candidate]
    of_faulty = [trial for trial in task.rejected if trial.candidate.digest == faulty.candidate]
    assert of_faulty, "it was not rejected"
    assert of_faulty[0].verdict is not None
    mended = task.trial is not None and task.trial.candidate.source == fault.right
    return of_faulty[0].verdict, others[0].question - 1 if mended else -1


@pytest.fixture(autouse=True)
def whole(whole_judgements: None) -> None:
    """A class may be found by any of the judge's looks."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request in a round: a fault, then its repairs.  Few configurations: none of them is what is tested here."""
    monkeypatch.setattr(model_proposer, "IN_A_ROUND", 1)
    monkeypatch.setattr(task_work, "LIMIT", 4)


def test_each_class_has_a_fault_or_a_reason_why_it_has_none() -> None:
    assert FAULTS.keys() | NOBODYS.keys() == HINTS.keys()
    assert not FAULTS.keys() & NOBODYS.keys()


@pytest.mark.errors
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_mended_by_what_its_author_is_told(name: str, tmp_path: Path) -> None:
    verdict, needed = repairs(name, tmp_path)
    assert (verdict.error_class, verdict.source) == (name, FAULTS[name].line)
    assert 1 <= needed <= 2, f"{verdict.message}\n{verdict.hint}"


@pytest.mark.parametrize("stage", OF_STAGE)
def test_a_fault_of_each_stage_is_mended_by_its_hint(stage: Stage, tmp_path: Path) -> None:
    name = OF_STAGE[stage]
    verdict, needed = repairs(name, tmp_path)
    assert (verdict.stage, verdict.error_class, verdict.source) == (stage, name, FAULTS[name].line)
    assert 1 <= needed <= 2


def test_without_its_hint_a_fault_is_not_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the hint it is that mends, and nothing else that is said."""
    said = feedback._verdict
    monkeypatch.setattr(feedback, "_verdict", lambda v: [line for line in said(v) if not line.startswith("Hint: ")])
    _, needed = repairs(OF_STAGE[Stage.STATIC], tmp_path)
    assert needed == -1
