"""The loop, in this process: what it compares by, what it tells a proposer, what it goes on from."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.cli import invoke
from agent.loop.rundir import RunFolder
from agent.loop.summary import RunSummary
from agent.loop.target_work import RunOptions, run
from agent.loop.task_work import TaskWork
from agent.progress import Lines
from agent.proposers import synthesizer
from agent.proposers.base import Offer, Proposal, ProposalRequest
from agent.proposers.choice import Choice
from evaluator.timing.timer import MODEL, Known, Timer
from evaluator.version import evaluator_version
from knowledge_base import browse
from knowledge_base.chips import CHIPS
from knowledge_base.records import Candidate, Measurement, Trial
from knowledge_base.snf import parse
from knowledge_base.snf.task import Task
from knowledge_base.store import RunRecord, Store

SNF = """\
R, C = 70, 96
x: bf16[R, C]
y = Softmax(ReLU(x))
"""
CHIP = CHIPS["h200"]


def go(
    name: str, folder: Path, timer: Timer = MODEL, text: str = SNF, rounds: int = 2, **limits: float | None
) -> RunSummary:
    """limits: options of the run, search_seconds or budget_minutes."""
    options = RunOptions("target", seed=1, jobs=1, rounds=rounds, **limits)  # type: ignore[arg-type]
    record = RunRecord(name, "target", "h200", "cpu", "synthesizer", "running")
    with Store.open(str(folder / "kb.db")) as store:
        store.start_run(record)
        choice, where = Choice("synthesizer", "asked for"), RunFolder(name, folder)
        try:
            return run(name, options, parse(text, "target"), CHIP, choice, store, where, Lines(), timer)
        finally:
            where.close()


def measured(us: float) -> Measurement:
    return Measurement(kind="measured", chip="h200", us=us, floor_us=1.0)


def won(summary: RunSummary) -> Trial:
    """The winner of the run's one task."""
    (task,) = summary.tasks
    assert task.trial is not None
    return task.trial


def kinds(summary: RunSummary) -> set[str]:
    return {task.time.kind for task in summary.tasks if task.time is not None}


def composed(name: str, folder: Path) -> str:
    """The kind of time that the base shows for the target as this run composed it."""
    with Store.open(str(folder / "kb.db")) as store:
        (row,) = (row for row in browse.attempts(store.database, run=name, limit=1000) if row["move"] == "compose")
    return str(row["kind"])


def known(folder: Path, summary: RunSummary) -> list[Trial]:
    """The task's trials that the base holds with a time."""
    task = summary.tasks[0].task
    with Store.open(str(folder / "kb.db")) as store:
        digests = {row["kernel"] for row in browse.attempts(store.database, limit=1000)}
        of = [store.of_candidate(task.identity, d, "h200", task.sizes, evaluator_version()) for d in sorted(digests)]
    return [trial for trials in of for trial in trials if trial.time is not None]


def test_a_run_compares_by_its_timer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("knowledge_base.rules.rows.shipped", lambda: iter(()))  # mining it takes seconds
    first = go("first", tmp_path, MODEL, search_seconds=1)
    assert (first.status, kinds(first)) == ("done", {"modelled"})
    assert composed("first", tmp_path) == "modelled"
    trials = known(tmp_path, first)
    assert len(trials) > 2
    # A table that calls the run's own pick slow, and another of its configurations fast.
    winner = next(t for t in trials if t.key == won(first).key)
    numbers = itertools.count(100)
    rows = [t.fuller(measurements=(measured(900.0 if t is winner else next(numbers)),)) for t in trials]
    second = go("second", tmp_path, Known(rows))  # the same base: what the model timed is timed again
    assert (second.status, kinds(second)) == ("done", {"measured"})
    assert won(second).key != winner.key
    assert second.total is not None
    assert second.total < measured(900.0)
    assert composed("second", tmp_path) == "measured"
    # Measured times lie in the base now: none gets into this run's table.
    third = go("third", tmp_path, MODEL, search_seconds=1)
    assert kinds(third) == {"modelled"}
    assert third.total is not None
    assert first.total is not None
    assert third.total.over(first.total) <= 1


TWO = """\
M, A, C = 40, 16, 8
x: f32[M, A]
k: f32[M, A]
r: f32[M, C]
w: f32[4, M]
y = (x @ k.T + r @ r.T) / sqrt(A + C) * Select(w, 0, 3)
"""


def test_a_size_used_as_a_number_alone_and_a_fixed_position_are_judged_and_composed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    summary = go("numbers", tmp_path, text=TWO, search_seconds=1)
    assert (summary.status, [t.status for t in summary.tasks]) == ("done", ["correct"] * 2)
    (given,) = [t.task.size_arguments for t in summary.tasks if t.task.size_arguments]
    manifest = next(tmp_path.glob("**/matmul_add_div*/manifest.json"))
    assert json.loads(manifest.read_text())["task"]["given"] == list(given)


def test_a_target_that_reads_nothing_and_moves_next_to_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its floor is 0.000 µs, of which no task has a share."""
    summary = go("positions", tmp_path, text="M = 4\ny = Range(M)", search_seconds=1)
    assert (summary.status, [(t.status, t.share) for t in summary.tasks]) == ("done", [("correct", 1.0)])


def test_a_defect_that_ends_the_asking_is_said_where_a_kernel_stands(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = TaskWork.ask

    def fails(work: TaskWork, proposer: Any) -> str:
        usual(work, proposer)
        raise RuntimeError("a defect")

    monkeypatch.setattr(TaskWork, "ask", fails)
    summary = go("defect", tmp_path, text="M, N = 4, 40\nx: f32[M, N]\ny = GELU(x)", search_seconds=1)
    assert (summary.status, summary.tasks[0].status) == ("done", "correct")
    assert "RuntimeError: a defect" in summary.tasks[0].over
    assert "RuntimeError: a defect" in capfd.readouterr().err


def test_a_task_that_meets_a_defect_says_so_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = synthesizer.synthesize

    def fails(task: Task, *others: Any, **named: Any) -> Any:
        if "softmax" in task.name:
            raise RuntimeError("a defect")
        return usual(task, *others, **named)

    monkeypatch.setattr(synthesizer, "synthesize", fails)
    text = "M, N = 4, 40\nx: f32[M, N]\noutputs = GELU(x), Softmax(x)"
    summary = go("defect", tmp_path, text=text, search_seconds=1, budget_minutes=5)
    said = {t.task.name.split("_")[0]: (t.status, t.message) for t in summary.tasks}
    assert said["gelu"] == ("correct", "")
    assert said["softmax"][0] == "crash"
    assert "RuntimeError: a defect" in said["softmax"][1]
    assert (summary.status, summary.exit_code) == ("incomplete", 1)
    assert not any("budget" in note for note in summary.notes)  # it was not that
    log = next(tmp_path.glob("**/log.txt"))
    assert "Traceback" in log.read_text()


# ---------------------------------------------------------------------------------------------------- proposers

ADD = """\
M, N = 256, 512
a: bf16[M, N]
b: bf16[M, N]
y = a + b
"""
KERNEL = """
import cuda.tile as ct
AXES = {{"TN": [{tiles}]}}
@ct.kernel
def kernel(a, b, y, TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    x = ct.load(a, index=(i, j), shape=({rows}, TN)).astype(ct.float32)
    x = x {op} ct.load(b, index=(i, j), shape=({rows}, TN)).astype(ct.float32)
    ct.store(y, index=(i, j), tile=x.astype(y.dtype))
def launch(stream, a, b, y, *, TN={first}):
    ct.launch(stream, (ct.cdiv(y.shape[0], {rows}), ct.cdiv(y.shape[1], TN)), kernel, (a, b, y, TN))
"""


def kernel(rows: int, *tiles: int, op: str = "+") -> str:
    return KERNEL.format(rows=rows, tiles=", ".join(map(str, tiles)), first=tiles[0], op=op)


@dataclass
class Scripted:
    """A proposer with an answer sheet for each round; it keeps what it was asked."""

    sheets: list[list[str]]
    name: str = "scripted"
    learns: bool = False
    asked: list[ProposalRequest] = field(default_factory=list)
    heard: list[Trial] = field(default_factory=list)

    def propose(self, request: ProposalRequest) -> Offer:
        self.asked.append(request)
        if len(self.asked) > len(self.sheets):
            return Offer(over="the sheets are out")
        made = (
            Candidate(source=s, task=request.task.identity, proposer=self.name)
            for s in self.sheets[len(self.asked) - 1]
        )
        return Offer(tuple(map(Proposal, made)))

    def hear(self, task: Task, trial: Trial) -> None:
        self.heard.append(trial)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    def made(*sheets: list[str]) -> Scripted:
        proposer = Scripted(list(sheets))
        monkeypatch.setattr(Choice, "proposers", lambda *_: (proposer,))
        return proposer

    return made


def stored(folder: Path, source: str) -> list[dict[str, Any]]:
    digest = hashlib.sha256(source.encode()).hexdigest()
    with Store.open(str(folder / "kb.db")) as store:
        return [row for row in browse.attempts(store.database, limit=1000) if row["kernel"] == digest]


def test_a_proposer_hears_of_every_answer_and_is_asked_again_after_a_correct_one(
    tmp_path: Path, scripted: Callable[..., Scripted]
) -> None:
    broken, unreadable, wrong = "def launch(:\n", "AXES = {}\nimport os\n", kernel(2, 512, op="-")
    slow, fast, slower = kernel(1, 16), kernel(4, 128, 64), kernel(1, 32)
    proposer = scripted([broken, unreadable, wrong, slow], [fast, slow], [slower])
    summary = go("first", tmp_path, text=ADD, rounds=9)
    (task,) = summary.tasks
    assert (summary.status, task.status) == ("done", "correct")
    assert won(summary).candidate.source == fast  # a later answer took the place of a right one
    assert [trial.status for trial in task.rejected] == ["invalid", "invalid", "wrong"]
    assert len(proposer.asked) == 4  # until it had nothing more, of nine rounds

    assert {trial.candidate.source for trial in proposer.heard} == {broken, unreadable, wrong, slow, fast, slower}
    first, second, third, last = (request.tried for request in proposer.asked)
    assert first == ()
    assert {t.candidate.source: t.status for t in second} == {
        broken: "invalid", unreadable: "invalid", wrong: "wrong", slow: "correct",
    }  # fmt: skip
    by = {trial.candidate.source: trial for trial in last}
    assert by[broken].verdict is not None
    assert by[broken].verdict.hint
    assert by[wrong].verdict is not None
    assert by[wrong].verdict.message
    assert by[wrong].time is not None  # it was timed before it was judged
    assert by[slow].time is not None
    assert by[fast].time is not None
    assert by[fast].time < by[slow].time
    assert (by[slower].status, by[slower].time is not None) == ("compiled", True)  # no faster: not judged
    assert third == last[: len(third)]
    for source in (broken, unreadable, wrong, slow, fast, slower):
        assert stored(tmp_path, source), source  # each answer is a trial in the base


def test_the_next_run_is_told_what_is_known_and_tries_no_less(
    tmp_path: Path, scripted: Callable[..., Scripted]
) -> None:
    good = kernel(4, 512, 256)
    scripted([good])
    first = go("first", tmp_path, text=ADD)
    proposer = scripted()
    second = go("second", tmp_path, text=ADD)
    (request,) = proposer.asked
    assert [(t.candidate.source, t.correct) for t in request.known] == [(good, True)]
    assert [(t.candidate.source, t.general) for t in request.tried] == [(good, True)]  # judged, or its verdict reused
    assert second.tasks[0].over == "the sheets are out"
    assert won(second).key == won(first).key
    assert second.tasks[0].effort.reused


def test_the_next_run_goes_on_with_the_configurations_that_are_left(
    tmp_path: Path, scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.loop.task_work.LIMIT", None)
    monkeypatch.setattr("agent.loop.task_work.SHORTEST", 0.0)
    scripted([kernel(4, 512, 256, 128)])
    runs = [go(name, tmp_path, text=ADD, search_seconds=0.0) for name in ("first", "second", "third", "fourth")]
    efforts = [one.tasks[0].effort for one in runs]
    assert efforts[0].searched + efforts[0].pruned < efforts[0].span
    assert [one.searched + one.pruned for one in efforts] == list(itertools.accumulate(one.new for one in efforts))
    assert efforts[-1].searched + efforts[-1].pruned == efforts[-1].span
    assert (efforts[-1].new, efforts[-1].reused) == (0, True)
    times = [one.tasks[0].time for one in runs]
    assert all(times)
    assert times == sorted(times, key=lambda time: -time.us if time else 0.0)
    assert f"ruled out, {efforts[0].span - efforts[0].searched - efforts[0].pruned} left" in runs[0].notes[-1]
    assert runs[-1].notes[-1].endswith("0 left (--search-seconds 0); 0 looked at by this run.")


def test_a_run_starts_from_a_file_that_was_checked(
    tmp_path: Path,
    scripted: Callable[..., Scripted],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """``agent check`` gives a correct file its time; a run searches the file's other configurations as well."""
    monkeypatch.chdir(tmp_path)
    good = kernel(1, 16, 64)
    Path("good.py").write_text(good)
    shape = ["--task", "add", "--shape", "M=256,N=512", "--gpu", "h200", "--db", "kb.db"]
    assert invoke(["check", "good.py", *shape, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["kind"] == "modelled"
    assert document["us"] > document["floor_us"] > 0
    (row,) = stored(tmp_path, good)
    assert row == {name: document[name] for name in row if name in document} | {
        name: row[name] for name in ("created_at",)
    }
    scripted([kernel(1, 16)])
    summary = go("first", tmp_path, text=ADD)
    assert (won(summary).candidate.source, won(summary).configuration) == (good, {"TN": 64})
    assert summary.total is not None
    assert summary.total.us < document["us"]
