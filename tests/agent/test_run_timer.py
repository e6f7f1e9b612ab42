"""A run compares by its timer's times alone, whatever else the knowledge base holds."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from agent.progress import Lines
from agent.proposers.choose import Choice
from agent.run import RunOptions, run
from agent.rundir import RunFolder
from agent.summary import RunSummary
from evaluator.timer import MODEL, Known, Timer
from evaluator.version import evaluator_version
from knowledge_base import browse
from knowledge_base.chips import CHIPS
from knowledge_base.records import Measurement, Trial
from knowledge_base.snf import parse
from knowledge_base.store import RunRecord, Store

SNF = """\
R, C = 70, 96
x: bf16[R, C]
y = Softmax(ReLU(x))
"""
CHIP = CHIPS["h200"]


def go(name: str, folder: Path, timer: Timer) -> RunSummary:
    options = RunOptions("target", seed=1, jobs=1)
    record = RunRecord(name, "target", "h200", "cpu", "synthesizer", "running")
    with Store.open(str(folder / "kb.db")) as store:
        store.start_run(record)
        choice, where = Choice("synthesizer", "asked for"), RunFolder(name, folder)
        try:
            return run(name, options, parse(SNF, "target"), CHIP, choice, store, where, Lines(), timer)
        finally:
            where.close()


def measured(us: float) -> Measurement:
    return Measurement(kind="measured", chip="h200", us=us, floor_us=1.0)


def composed(name: str, folder: Path) -> str:
    """The kind of time that the base shows for the target as this run composed it."""
    with Store.open(str(folder / "kb.db")) as store:
        (row,) = (row for row in browse.attempts(store.database, run=name) if row["move"] == "compose")
    return str(row["kind"])


def known(folder: Path, summary: RunSummary) -> list[Trial]:
    """The task's trials that the base holds with a time."""
    (task,) = summary.tasks
    with Store.open(str(folder / "kb.db")) as store:
        candidates = {row["candidate"] for row in browse.attempts(store.database, limit=1000)}
        of = [store.of_candidate(task.identity, c, "h200", task.sizes, evaluator_version()) for c in sorted(candidates)]
    return [trial for trials in of for trial in trials if trial.time is not None]


def test_a_run_compares_by_its_timer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = go("first", tmp_path, MODEL)
    assert (first.status, first.tasks[0].kind) == ("done", "modelled")
    assert composed("first", tmp_path) == "modelled"
    trials = known(tmp_path, first)
    assert len(trials) > 2
    # A table that calls the run's own pick slow, and another of its configurations fast.
    picked = {(t.candidate.digest, str(t.configuration)): t for t in trials}
    winner = picked[first.tasks[0].kernel, str(dict(first.tasks[0].configuration))]
    numbers = itertools.count(100)
    rows = [t.fuller(measurements=(measured(900.0 if t is winner else next(numbers)),)) for t in trials]
    second = go("second", tmp_path, Known(rows))  # the same base: what the model timed is timed again
    (task,) = second.tasks
    assert (second.status, task.kind, second.total_us) == ("done", "measured", task.us)
    assert (task.kernel, dict(task.configuration)) != (winner.candidate.digest, winner.configuration)
    assert task.us is not None
    assert task.us < 900
    assert composed("second", tmp_path) == "measured"
    third = go("third", tmp_path, MODEL)  # measured times lie in the base now: none gets into this run's table
    assert {t.kind for t in third.tasks} == {"modelled"}
    assert third.total_us is not None
    assert first.total_us is not None
    assert third.total_us <= first.total_us
