"""The pool of judge processes: ready before a candidate runs where that matters."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from agent import judging
from agent.judging import Judges
from evaluator.containment import Containment


def _modules(oracle: Any) -> set[str]:
    """In a judge process: what it has imported.  It has its oracle."""
    assert oracle._settled
    return set(sys.modules)


def test_where_candidates_can_write_files_the_judges_have_read_theirs_before_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "containment", lambda: Containment(why="nothing is refused here"))
    with Judges(2) as judges:
        assert {"torch", "evaluator.executable", "evaluator.tileir.program"} <= judges.call(_modules)
