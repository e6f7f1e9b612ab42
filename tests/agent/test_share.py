"""`agent kb export` and `import`: what a base found travels, and is judged again where it arrives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from house import ROOT

from agent.cli import invoke
from agent.loop.task_work import foreign_trials
from agent.proposers import Offer
from agent.proposers.synthesizer import Synthesizer
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, Trial
from knowledge_base.snf import everyday
from knowledge_base.store import Store
from knowledge_base.tables import BASES

CANDIDATE = str(ROOT / "tests/candidates/gelu_tiles.py")
LAST = "TM=32,TN=64,occupancy=4"  # of the file's configurations
SMALL = ("--shape", "M=20,N=20", "--gpu", "h200")


def agent(capfd: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert invoke([*arguments, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """The export of a base in which one file was found right."""
    monkeypatch.chdir(tmp_path)
    agent(capfd, "check", CANDIDATE, "--task", "gelu", *SMALL, "--axes", LAST, "--db", "theirs.db")
    with Store.open("theirs.db") as store, store.database.write() as connection:
        connection.execute(BASES.update().where(BASES.c.own).values(key="aa" * 8))  # the tests' bases are copies of one
    given = agent(capfd, "kb", "export", "theirs.jsonl.gz", "--db", "theirs.db")
    assert (given["lines"]["candidate"], given["lines"]["trial"], given["skipped"]) == (1, 1, 0)
    return "theirs.jsonl.gz"


@pytest.mark.usefixtures("file")
def test_a_base_is_never_written_over(capfd: pytest.CaptureFixture[str]) -> None:
    before = Path("theirs.db").read_bytes()
    for command in (("export", "theirs.db"), ("report", "--out", "theirs.db")):
        assert invoke(["kb", *command, "--db", "theirs.db"]) == 2
        assert "theirs.db is a database, which would be lost" in capfd.readouterr().err
    assert Path("theirs.db").read_bytes() == before


@pytest.mark.parametrize("command", [("tasks",), ("export", "new.jsonl"), ("report", "--out", "new.html")])
@pytest.mark.usefixtures("file")
def test_an_op_that_there_is_not_is_told(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["kb", *command, "--op", "atention", "--db", "theirs.db"]) == 2
    said = capfd.readouterr().err
    assert "--op atention: there is no such op" in said
    assert "attention" in said.split("Near it are")[1]
    for op in ("att", "linear-gelu", "gelu", "mul_add_70774d"):
        assert invoke(["kb", *command, "--op", op, "--db", "theirs.db"]) == 0


def test_a_run_judges_what_another_base_found(
    file: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    agent(capfd, "kb", "import", file)
    (theirs,) = agent(capfd, "kb", "attempts", "--status", "foreign")
    monkeypatch.setattr(Synthesizer, "propose", lambda self, request: Offer(over="nothing more"))
    document = agent(capfd, "run", "--target", "gelu", *SMALL, "--proposer", "synthesizer", "--seed", "1")
    (task,) = document["tasks"]
    assert (task["status"], task["kernel"]) == ("correct", theirs["kernel"])
    tried = agent(capfd, "kb", "attempts", "--run", document["id"])
    assert [row["status"] for row in tried if row["move"] == "foreign"] == ["correct"]
    searched = [row["configuration"] for row in tried if row["move"] == "search"]
    assert theirs["configuration"] in searched[:2]  # and the file's default; the others' price is too high
    assert agent(capfd, "kb", "attempts", "--status", "foreign") == [theirs]  # their word stays beside it
    (won,) = agent(capfd, "kb", "kernels")
    assert (won["status"], won["origin"]) == ("correct", "")
    again = agent(capfd, "run", "--target", "gelu", *SMALL, "--proposer", "synthesizer", "--seed", "1")
    moves = {row["move"] for row in agent(capfd, "kb", "attempts", "--run", again["id"])}
    assert "known" in moves
    assert "foreign" not in moves  # it is known by now


def test_what_another_base_calls_slower_than_what_is_known_is_not_tried(
    file: str, capfd: pytest.CaptureFixture[str]
) -> None:
    agent(capfd, "kb", "import", file, "--db", "mine.db")
    task = everyday("gelu", M=20, N=20)
    with Store.open("mine.db") as store:
        (theirs,) = store.foreign(task.identity, "h200", limit=3)
        time = theirs.time
        assert time is not None

        def known(ratio: float, **changes: Any) -> tuple[Trial, ...]:
            other = {"candidate": Candidate(source="AXES = {}\n", task=task.identity), "origin": ""} | changes
            return (theirs.fuller(measurements=(time.model_copy(update={"us": time.us * ratio}),), **other),)

        def tried(known: tuple[Trial, ...]) -> tuple[Trial, ...]:
            return foreign_trials(store, task, chip("h200"), known)

        assert tried(()) == (theirs,)
        assert tried(known(0.9)) == ()
        assert tried(known(1.1)) == (theirs,)
        assert tried(known(0.9, shape={"M": 64, "N": 64})) == (theirs,)  # times of other sizes say nothing


def test_what_people_see(file: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["kb", "export", "again.jsonl", "--db", "theirs.db"]) == 0
    said = capfd.readouterr().out
    assert "again.jsonl: 1 task, 1 candidate, 1 trial, " in said
    assert "base aaaaaaaa" in said
    assert invoke(["kb", "import", "again.jsonl", "--db", "mine.db"]) == 0
    said = capfd.readouterr().out
    assert "New: 1 task, 1 candidate, 1 trial." in said
    assert "shown as foreign" in said
    for arguments, wanted in {
        ("import", "again.jsonl"): "Nothing new.",
        ("tasks",): "1 foreign",
        ("attempts",): "foreign",
        ("show", "gelu"): "1 foreign",
        ("show", "aaaa"): "from again.jsonl",
    }.items():
        assert invoke(["kb", *arguments, "--db", "mine.db"]) == 0
        shown = capfd.readouterr().out
        assert wanted in shown
        assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["import", "nowhere.jsonl"], 2, "nowhere.jsonl can't be read: No such file or directory"),
        (["import", "theirs.db"], 2, "theirs.db, line 1 is "),
        (["export", "x.jsonl", "--gpu", "h300"], 2, "h300"),
        (["export", "x.jsonl", "--db", "nowhere.db"], 2, "there is no knowledge base at nowhere.db"),
        (["export", "/dev/null/x.jsonl", "--db", "theirs.db"], 3, "can't be written"),
        (["export"], 2, "Missing argument"),
    ],
)
def test_what_goes_wrong(
    file: str, arguments: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["kb", *arguments]) == code
    assert said in capfd.readouterr().err


def test_the_source_of_another_base_cannot_act_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("answer.py").write_text(Path(CANDIDATE).read_text() + "# \x1b]0;title\x07\x1b[2J\n")
    agent(capfd, "check", "answer.py", "--task", "gelu", *SMALL, "--db", "theirs.db")
    agent(capfd, "kb", "export", "theirs.jsonl", "--db", "theirs.db")
    agent(capfd, "kb", "import", "theirs.jsonl", "--db", "mine.db")
    (row,) = agent(capfd, "kb", "attempts", "--db", "mine.db")
    assert invoke(["kb", "show", row["kernel"], "--db", "mine.db"]) == 0
    shown = capfd.readouterr().out
    assert "\x1b" not in shown
    assert "\N{REPLACEMENT CHARACTER}]0;title" in shown
