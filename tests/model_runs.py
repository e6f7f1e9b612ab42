"""A run of one small task with a language model whose answers a test writes, and the real judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from model_server import Say

from agent.loop.rundir import RunFolder
from agent.loop.summary import RunSummary
from agent.loop.target_work import RunOptions, run
from agent.progress import Silent
from agent.proposers.choice import choose
from evaluator.timing.timer import Timer
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import CHIPS
from knowledge_base.records import LlmCall, Measurement, Trial
from knowledge_base.snf import parse
from knowledge_base.snf.task import Task
from knowledge_base.store import RunRecord, Store

KEY = "sk-a-key-that-nobody-may-see-0123456789"
ADD = """\
M, N = 256, 512
a: bf16[M, N]
b: bf16[M, N]
y = a + b
"""
KERNEL = """\
import cuda.tile as ct
AXES = {{"TN": [{tile}]}}
@ct.kernel
def kernel(a, b, y, TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    p = ct.load(a, index=(i, j), shape=(4, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    q = ct.load(b, index=(i, j), shape=(4, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(y, index=(i, j), tile=(p {op} q).astype(y.dtype))
def launch(stream, a, b, y, *, TN={tile}):
    ct.launch(stream, (ct.cdiv(y.shape[0], 4), ct.cdiv(y.shape[1], TN)), kernel, (a, b, y, TN))
"""
RIGHT, WRONG, BROKEN = (
    KERNEL.format(tile=256, op="+"),
    KERNEL.format(tile=256, op="-"),
    KERNEL.format(tile=80, op="+"),
)


def block(source: str) -> Say:
    return Say(f"This adds the tiles.\n\n```python\n{source}```\n\nIt is fast.")


class Favour:
    """Says that the model's kernels take 1 µs and all others 2, as a card might."""

    kind: Any = "measured"

    def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement:
        us = 1.0 if trial.candidate.proposer == "openai" else 2.0
        return Measurement(kind="measured", chip=trial.chip, us=us, floor_us=0.5)


class Said(Silent):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def go(
    folder: Path,
    url: str,
    *,
    name: str = "first",
    rounds: int = 2,
    timer: Timer | None = None,
    said: Said | None = None,
    tokens: int | None = None,
    text: str = ADD,
    jobs: int = 1,
    seed: int = 1,
    reflects: bool = False,
) -> RunSummary:
    """The run ``name`` of a target (``text``) in a folder with its own knowledge base.

    What ships is not mined after each of them: that takes seconds.  reflects: what answers taught is asked for, too.
    """
    asks = mock.patch("agent.proposers.language_model.model_proposer.REFLECTS", reflects)
    nothing = mock.patch("knowledge_base.rules.rows.shipped", return_value=())
    options = RunOptions("target", seed=seed, jobs=jobs, rounds=rounds)
    choice = choose("openai", "a-model", {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}, tokens=tokens)
    with asks, nothing, Store.open(str(folder / "kb.db")) as store:
        store.start_run(RunRecord(name, "target", "h200", "cpu", choice.name, "running"))
        where = RunFolder(name, folder)
        try:
            target = parse(text, "target")
            return run(name, options, target, CHIPS["h200"], choice, store, where, said or Said(), timer or Favour())
        finally:
            where.close()


def calls(folder: Path, run_id: str = "first") -> list[LlmCall]:
    with Store.open(str(folder / "kb.db")) as store:
        return store.calls(run_id)


def rejected(summary: RunSummary) -> list[str]:
    """Status of each candidate of the model's that was rejected."""
    (task,) = summary.tasks
    return [trial.status for trial in task.rejected if trial.candidate.proposer == "openai"]
