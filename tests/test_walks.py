"""docs/design.md walks twice; a real run goes the same way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from walking import ROOT, Step, Walk, asked

import evaluator.judging
from agent.cli import invoke

PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
STEP = re.compile(r"^\| (\d+) \| `(.+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
MOST = 14  # rooms


def told(heading: str) -> list[Step]:
    """The steps of the table below a heading."""
    section = PAGE.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = STEP.findall(section)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    return [(file, name) for _, file, name in rows]


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """Every step of either walk; a judgement's are noted in its process, and put behind those of who asked for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setattr("agent.loop.task_work.LIMIT", 2)  # every configuration goes the same way
    stops = {*told("From a specification to a stored winner"), *told("From an answer file to the next run")}
    made = Walk(stops)

    class Watched(evaluator.judging.JudgeProcess):
        def call(self, function: Any, *arguments: Any, progress: Any = None) -> Any:
            answer, steps = super().call(asked, stops, function, *arguments, progress=progress)
            made.steps += [step for step in steps if step not in made.steps]
            return answer

    monkeypatch.setattr("agent.commands.check.JudgeProcess", Watched)
    monkeypatch.setattr("agent.loop.judges.JudgeProcess", Watched)
    return made


def test_from_a_specification_to_a_stored_winner(walk: Walk) -> None:
    way = told("From a specification to a stored winner")
    with walk:
        assert invoke(["run", "--target", "gelu", "--shape", "M=64,N=64", "--proposer", "synthesizer"]) == 0
    assert [step for step in walk.steps if step in way] == way
    assert len(way) <= MOST


def test_from_an_answer_file_to_the_next_run(walk: Walk) -> None:
    way = told("From an answer file to the next run")
    file = str(ROOT / "tests" / "candidates" / "gelu_tiles.py")
    with walk:
        assert invoke(["check", file, "--task", "gelu", "--shape", "M=64,N=64"]) == 0
        assert invoke(["run", "--target", "gelu", "--shape", "M=64,N=64", "--proposer", "synthesizer"]) == 0
    assert [step for step in walk.steps if step in way] == way
    assert len({room for room, _ in way}) <= MOST
