"""Runs with a GPU, which is the emulated one here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from device_double import DOUBLE
from model_runs import ADD, Said
from runner_again import LentPython

from agent.loop.rundir import RunFolder
from agent.loop.summary import RunSummary
from agent.loop.target_work import RunOptions, run
from agent.proposers.choice import choose
from evaluator.replay import Runner
from evaluator.timing import Measured
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import CHIPS, Chip
from knowledge_base.snf import parse
from knowledge_base.store import RunRecord, Store

PROCESSES = 2  # fresh ones: as many take turns on a GPU, here they would be long in starting
SMALL = ADD.replace("256, 512", "16, 32")


def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's process finds the device beside the tests; a cubin is a bytecode, which the device reads.

    Such processes are lent: which of a run's are fresh ones is asked with real ones.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr("evaluator.replay.runner.FreshPython", LentPython)
    monkeypatch.setattr("agent.loop.task_work.LIMIT", 3)
    monkeypatch.setattr("evaluator.timing.remeasure.PROCESSES", PROCESSES)
    monkeypatch.setattr("agent.loop.finals.PROCESSES", PROCESSES)
    # What ships is not mined after each of them: that takes seconds.
    monkeypatch.setattr("knowledge_base.rules.rows.shipped", lambda: iter(()))
    for module in ("evaluator.timing.clock", "evaluator.replay.confirm", "agent.loop.compose"):
        monkeypatch.setattr(f"{module}.cubins_of", bytecodes)


def bytecodes(plans: Sequence[Launchable], chip: Chip) -> dict[str, bytes]:
    return {digest: data for plan in plans for digest, data in plan.kernels.items()}


def go(
    folder: Path, script: Mapping[str, object], name: str = "first", said: Said | None = None, text: str = SMALL
) -> RunSummary:
    options = RunOptions("target", seed=1, jobs=1)
    choice = choose("synthesizer", None)
    with Store.open(str(folder / "kb.db")) as store, Runner(DOUBLE, {}, script) as runner:
        store.start_run(RunRecord(name, "target", "h200", "cuda", choice.name, "running"))
        where = RunFolder(name, folder)
        try:
            target, timer = parse(text, "target"), Measured(runner, 1)
            chip, progress = CHIPS["h200"], said or Said()
            return run(name, options, target, chip, choice, store, where, progress, timer, runner)
        finally:
            where.close()
