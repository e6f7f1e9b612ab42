"""A language model in the loop: a real endpoint on this machine, whose answers are written here, and the real judge."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_runs import ADD, BROKEN, KERNEL, KEY, RIGHT, WRONG, Favour, Said, block, calls, go, rejected
from model_server import Answer, Asked, Fail, Hang, ModelServer, Say, error
from processes import below, environment

from agent.cli import invoke
from agent.loop import task_work
from agent.proposers.language_model import model_proposer
from agent.proposers.language_model.policy import PATIENCE
from kernels_generated.runtime.plan import Launchable
from knowledge_base.records import Answered, Measurement, Trial
from knowledge_base.snf.task import Task
from knowledge_base.store import Store

ROOT = Path(__file__).parents[2]
Told = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request in a round, so that answers come in order; several at once are test_policy's."""
    monkeypatch.setattr(model_proposer, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(model_proposer, "IN_A_ROUND", 1)
    monkeypatch.setattr(task_work, "LIMIT", 2)  # configurations: none of them is what is tested here


# ---------------------------------------------------------------------------------------------------- answers


def test_an_answer_becomes_the_winner_and_the_exchange_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ModelServer(lambda _: block(RIGHT)) as server:
        summary = go(tmp_path, server.url, rounds=1)
    (task,) = summary.tasks
    assert (summary.status, task.status) == ("done", "correct")
    assert task.trial is not None
    assert (task.trial.candidate.source, task.trial.candidate.proposer) == (RIGHT, "openai")
    (call,) = calls(tmp_path)
    (asked,) = server.asked
    assert call.request["messages"] == asked.body["messages"]
    assert call.text == block(RIGHT).text
    assert (call.status, call.number, call.candidate) == (Answered.ANSWERED, 1, task.trial.candidate.digest)
    assert (call.tokens_in, call.tokens_out, call.cost_usd) == (1000, 200, None)  # a local model has no price
    assert task.trial.candidate.prompt == call.prompt
    assert summary.asked is not None
    assert (summary.asked.calls, summary.asked.candidates, summary.asked.tokens_out) == (1, 1, 200)

    db = ["--db", str(tmp_path / "kb.db")]
    assert invoke(["kb", "show", call.key[:10], *db]) == 0
    shown = capfd.readouterr().out
    assert asked.prompt.splitlines()[0][:60] in shown
    assert "It is fast." in shown
    assert invoke(["kb", "calls", *db]) == 0
    listed = capfd.readouterr().out
    assert call.key[:8] in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert invoke(["kb", "show", call.candidate[:10], "--json", *db]) == 0
    kernel = json.loads(capfd.readouterr().out)
    assert (kernel["calls"], kernel["prompt"]) == ([call.key], call.prompt)


def test_the_model_is_told_what_there_is_to_beat_and_what_became_of_its_answers(tmp_path: Path) -> None:
    sheets = [BROKEN, WRONG, RIGHT]
    with ModelServer(lambda asked: block(sheets[asked.number - 1])) as server:
        summary = go(tmp_path, server.url, rounds=3)
    assert rejected(summary) == ["build-error", "wrong"]
    first, second, third = (asked.prompt for asked in server.asked)
    assert "2.00 µs (measured)" in first  # the synthesizer's kernel was there before
    assert "To be worth anything yours has to be faster" in first
    assert "Your answers so far" not in first
    assert BROKEN in second
    assert "not a power of two" in second
    assert "Hint: tile shape" in second
    assert "Mend answer 1" in second
    assert WRONG in third
    assert BROKEN in third
    assert "Mend answer 2" in third
    moves = {a["kernel"]: a["move"] for a in attempts(tmp_path) if a["move"] != "search"}
    assert [moves[c.candidate] for c in calls(tmp_path) if c.candidate in moves][-2:] == ["repair", "repair"]
    # what is the same for all comes first, to the letter: an endpoint's cache holds it
    assert len({asked.body["messages"][0]["content"] for asked in server.asked}) == 1


def test_a_right_answer_is_answered_too_and_a_slow_one_is_judged(tmp_path: Path) -> None:
    class Slow(Favour):
        def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement:
            time = super().time(trial, task, plan)
            return time.model_copy(update={"us": 3.0}) if trial.candidate.proposer == "openai" else time

    with ModelServer(lambda asked: block(KERNEL.format(tile=64 * asked.number, op="+"))) as server:
        summary = go(tmp_path, server.url, rounds=2, timer=Slow())
    assert summary.tasks[0].trial is not None
    assert summary.tasks[0].trial.candidate.proposer == "synthesizer"  # the floor
    second = server.asked[1].prompt
    assert "Answer 1: right, 3.00 µs (measured)" in second
    assert "registers a thread" in second


def test_a_fast_answer_that_refuses_sizes_is_kept_and_told_which(tmp_path: Path) -> None:
    narrow = RIGHT.replace("def launch(stream, a, b, y, *, TN=256):\n", "def launch(stream, a, b, y, *, TN=256):\n"
        "    if y.shape[0] % 4:\n        raise ValueError('rows')\n")  # fmt: skip
    with ModelServer(lambda asked: block(narrow if asked.number == 1 else WRONG)) as server:
        summary = go(tmp_path, server.url, rounds=2)
    (task,) = summary.tasks
    assert task.trial is not None
    assert (task.trial.candidate.source, bool(task.trial.infeasible)) == (narrow, True)
    assert "right where it ran, but launch refused some sizes, 1.00 µs (measured)" in server.asked[1].prompt
    assert "launch raised ValueError at" in server.asked[1].prompt
    assert "Mend answer 1" in server.asked[1].prompt


def attempts(folder: Path) -> list[dict[str, Any]]:
    from knowledge_base import browse

    with Store.open(str(folder / "kb.db")) as store:
        return browse.attempts(store.database, run="first", limit=1000)


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (Say("I think a kernel would be nice."), "holds no Python file"),
        (Say("```python\nprint('hello')\n```"), "defines no function launch"),
        (Say(""), "was empty"),
        (Say("```python\nimport cuda", finish="length"), "cut off"),
        (Say("", refusal="I can't help with that"), "You declined"),
    ],
)
def test_an_answer_without_a_file_is_asked_for_again(tmp_path: Path, first: Answer, told: str) -> None:
    with ModelServer(lambda asked: first if asked.number == 1 else block(RIGHT)) as server:
        summary = go(tmp_path, server.url, rounds=2)
    assert summary.tasks[0].trial is not None
    assert summary.tasks[0].trial.candidate.source == RIGHT
    assert told in server.asked[1].prompt
    before, after = calls(tmp_path)
    assert told in before.problem
    assert (before.candidate, bool(after.candidate)) == ("", True)


def test_a_model_that_repeats_itself_is_told_so_and_then_left(tmp_path: Path) -> None:
    with ModelServer(lambda _: block(WRONG)) as server:
        summary = go(tmp_path, server.url, rounds=9)
    assert (summary.status, rejected(summary)) == ("done", ["wrong"])
    assert len(server.asked) == PATIENCE
    assert summary.tasks[0].over == "3 rounds brought nothing faster"
    assert "a file that is known already (wrong). Write another one." in server.asked[2].prompt


def test_changes_are_made_to_the_answer_that_is_mended(tmp_path: Path) -> None:
    line = next(line for line in WRONG.split("\n") if "p - q" in line)
    change = f"Add them.\n```diff\n-{line}\n+{line.replace('-', '+')}\n```"
    with ModelServer(lambda asked: block(WRONG) if asked.number == 1 else Say(change)) as server:
        summary = go(tmp_path, server.url, rounds=2)
    (task,) = summary.tasks
    assert task.trial is not None
    assert task.trial.candidate.source == RIGHT
    first, second = calls(tmp_path)
    assert (task.trial.candidate.parent, second.about, second.paid) == (first.candidate, (first.candidate,), True)


def test_an_answer_that_broke_off_behind_the_file_is_taken(tmp_path: Path) -> None:
    said = block(RIGHT).text
    with ModelServer(lambda _: Say(said, cut=len(said) - 8)) as server:
        summary = go(tmp_path, server.url, rounds=1)
    (call,) = calls(tmp_path)
    assert (call.status, bool(call.candidate)) == (Answered.CUT, True)
    assert summary.tasks[0].trial is not None
    assert summary.tasks[0].trial.candidate.source == RIGHT


# ---------------------------------------------------------------------------------------------------- failures

TEMPORARY = [
    Fail(429, error("slow down"), {"retry-after-ms": "20"}),
    Fail(500, error("oops")),
    Fail(503, "busy", kind="text/plain"),
    Say("half an answer", cut=6),
]


@pytest.mark.parametrize("failure", TEMPORARY, ids=lambda f: str(f)[:40])
def test_a_failure_that_passes_is_waited_out_and_recorded(tmp_path: Path, failure: Answer) -> None:
    with ModelServer(lambda asked: failure if asked.number < 3 else block(RIGHT)) as server:
        summary = go(tmp_path, server.url, rounds=1)
    assert summary.tasks[0].trial is not None
    assert summary.tasks[0].trial.candidate.source == RIGHT
    recorded = calls(tmp_path)
    assert [call.number for call in recorded] == [1, 2, 3]
    assert [call.status is Answered.ANSWERED for call in recorded] == [False, False, True]
    assert len({call.prompt for call in recorded}) == 1


LASTING = [
    (Fail(401, error(f"Incorrect API key provided: {KEY}")), "wrong-key", 1),
    (Fail(404, error("The model `a-model` does not exist")), "unknown-model", 1),
    (Fail(403, error("not for you")), "not-allowed", 1),
    (Fail(400, error("no")), "bad-request", 1),
    (Fail(200, "<html>hello</html>", kind="text/html"), "no-endpoint", 1),
    (Fail(500, error("oops")), "server-error", model_proposer.ATTEMPTS),
    (Fail(429, error("come back tomorrow"), {"Retry-After": "86400"}), "rate-limited", 1),
]


@pytest.mark.parametrize(("failure", "status", "count"), LASTING, ids=[status for _, status, _ in LASTING])
def test_a_model_that_fails_leaves_a_run_with_right_kernels(
    tmp_path: Path, failure: Answer, status: str, count: int
) -> None:
    said = Said()
    with ModelServer(lambda _: failure) as server:
        summary = go(tmp_path, server.url, rounds=3, said=said)
    assert (summary.status, summary.exit_code) == ("done", 0)
    assert len(server.asked) == count
    assert summary.asked is not None
    assert summary.asked.failure.startswith(status)
    assert any("gave no kernel" in note for note in summary.notes)
    assert any(status in line and "stand" in line for line in said.lines)
    assert KEY not in json.dumps(summary.document(), default=str)


def test_an_endpoint_that_is_not_there_leaves_a_run_with_right_kernels(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        summary = go(tmp_path, f"http://127.0.0.1:{free.getsockname()[1]}/v1")
    assert (summary.status, summary.exit_code) == ("done", 0)
    assert {call.status for call in calls(tmp_path)} == {Answered.UNREACHABLE}


@pytest.mark.parametrize(
    ("context", "said", "most"),
    [
        (8192, "This model's maximum context length is 8192 tokens. However, you requested 35000 tokens", 2),
        (6000, "the request exceeds the available context size (6000 tokens), try increasing it", 2),
        (8192, "prompt is too long", 5),
    ],
)
def test_a_small_context_gets_shorter_prompts_and_less_room_for_an_answer(
    context: int, said: str, most: int, tmp_path: Path
) -> None:
    def answer(asked: Asked) -> Answer:
        needed = asked.body["max_tokens"] + len(asked.prompt) / 3.5
        return block(RIGHT) if needed <= context else Fail(400, error(said))

    with ModelServer(answer) as server:
        summary = go(tmp_path, server.url, rounds=1)
    assert summary.asked is not None
    assert summary.asked.candidates == 1
    assert len(server.asked) <= most
    assert "# The task" in server.asked[-1].prompt
    assert "How TileGym writes it" not in server.asked[-1].prompt


def test_prompts_are_measured_in_the_tokens_that_the_endpoint_counts(tmp_path: Path) -> None:
    """One that counts a token for every two characters gets shorter prompts from its second call on."""

    def answer(asked: Asked) -> Answer:
        source = WRONG + f"# {asked.number}" + " pad" * 6000 + "\n"
        return Say(f"```python\n{source}```", usage=(len(asked.prompt) // 2, 100, 0))

    with ModelServer(answer) as server:
        go(tmp_path, server.url, rounds=3)
    lengths = [len(asked.prompt) for asked in server.asked]
    assert lengths[1] > 24_000  # the answer it has to mend is never cut, all that can be is
    assert "How TileGym writes it" not in server.asked[1].prompt


# ---------------------------------------------------------------------------------------------------- the command

# In a process of its own, which looks at few configurations as well.
COMMAND = "from agent.loop import task_work\ntask_work.LIMIT = 2\nfrom agent.cli import main\nmain()"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command in a folder of its own."""
    begun: list[subprocess.Popen[str]] = []
    (tmp_path / "add.snf").write_text(ADD)

    def start(url: str, *arguments: str) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url}
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


SPY = """\
import os
import cuda.tile as ct
AXES = {"KEY": [os.environ["OPENAI_API_KEY"]]}
def launch(stream, a, b, y, *, KEY=""):
    raise ValueError(os.environ["OPENAI_API_KEY"])
"""


def test_a_key_is_seen_nowhere(tmp_path: Path, agent: Callable[..., subprocess.Popen[str]]) -> None:
    """Not in what is printed, stored or written, nor in what the endpoint is told, nor in a child's environment."""
    answers: list[Answer] = [
        Say(f"My key is {KEY}. ```python\n# {KEY}\n{RIGHT}```"),
        block(SPY),
        Fail(401, error(f"bad key {KEY}")),
    ]
    environments: list[bytes] = []
    process: list[subprocess.Popen[str]] = []

    def answer(asked: Asked) -> Answer:
        environments.extend(filter(None, map(environment, below(process[0].pid))))
        return answers[min(asked.number, 3) - 1]

    with ModelServer(answer) as server:
        command = ("run", "--target", "add.snf", "--gpu", "h200", "--model", "a-model", "--rounds", "3", "--json")
        process.append(agent(server.url, *command))
        out, err = process[0].communicate(timeout=120)
    assert process[0].returncode == 0, err
    assert "then by a language model: a-model at" in err
    assert len(server.asked) >= 3
    assert environments, "there are judges"
    assert not any(KEY.encode() in found for found in environments)
    assert KEY not in out + err
    assert not any(KEY in asked.prompt for asked in server.asked)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "knowledge.db" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_a_run_that_waits_for_an_answer_can_be_interrupted_and_goes_on(
    tmp_path: Path, agent: Callable[..., subprocess.Popen[str]]
) -> None:
    heard = threading.Event()

    def answer(asked: Asked) -> Answer:
        if asked.number == 2:
            heard.set()
        return Hang(60.0) if asked.number <= 2 else block(RIGHT)

    with ModelServer(answer) as server:
        first = agent(server.url, "run", "--target", "add.snf", "--gpu", "h200", "--model", "a-model", "--rounds", "1")
        assert heard.wait(60)
        time.sleep(0.2)
        first.send_signal(2)
        start = time.monotonic()
        _, err = first.communicate(timeout=60)
        assert time.monotonic() - start < 10
        assert (first.returncode, "--resume" in err) == (130, True)
        (folder,) = (tmp_path / "runs").glob("*add*")
        second = agent(server.url, "run", "--resume", folder.name, "--json")
        out, err = second.communicate(timeout=60)
        assert second.returncode == 0, err
    document = json.loads(out)
    # Those that were left are not forgotten, nor are the model and its one round; the last one asks what was learnt.
    assert document["asked"]["outcomes"] == {"sent": 2, "answered": 3}
    most = [a.body["max_tokens"] + len(a.prompt) for a in server.asked[:2]]
    assert document["asked"]["charged_tokens"] > sum(most)
    with sqlite3.connect(tmp_path / "runs" / "knowledge.db") as connection:
        numbers = connection.execute("SELECT number, status FROM llm_calls ORDER BY number").fetchall()
    assert numbers == [(1, "sent"), (2, "sent"), (3, "answered"), (4, "answered"), (5, "answered")]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Told:
    """The command in this process, in a folder of its own: its exit code, what it wrote, what it said."""
    (tmp_path / "add.snf").write_text(ADD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def tell(url: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        capfd.readouterr()
        return invoke(list(arguments)), *capfd.readouterr()

    return tell


def test_a_run_that_is_done_asks_again_if_told_to(tmp_path: Path, told: Told) -> None:
    """A model that failed leaves right kernels, so the run is done; with the key mended it goes on where it was."""
    with ModelServer(lambda asked: Fail(401, error("no")) if asked.number == 1 else block(RIGHT)) as server:
        common = ("run", "--target", "add.snf", "--gpu", "h200", "--model", "a-model", "--rounds", "1")
        assert told(server.url, *common)[0] == 0
        asked = len(server.asked)
        (folder,) = (tmp_path / "runs").glob("*add*")
        _, _, err = told(server.url, "run", "--resume", folder.name)
        assert "already done" in err
        assert "--resume RUN --rounds N" in err
        assert len(server.asked) == asked
        _, out, err = told(server.url, "run", "--resume", folder.name, "--rounds", "2", "--json")
    document = json.loads(out)
    assert (document["status"], document["asked"]["candidates"]) == ("done", 1)
    assert document["asked"]["calls"] == len(server.asked) > asked


def test_what_is_shown_is_what_is_sent(told: Told) -> None:
    """``agent prompt`` after the synthesizer's run shows the first prompt of a model's run on the same base."""
    with ModelServer(lambda _: Fail(401, error("no"))) as server:
        common = ("--target", "add.snf", "--gpu", "h200")
        assert told(server.url, "run", *common, "--proposer", "synthesizer")[0] == 0
        _, shown, _ = told(server.url, "prompt", *common, "--model", "a-model", "--json")
        assert told(server.url, "run", *common, "--model", "a-model")[0] == 0
    document = json.loads(shown)
    assert document["request"]["messages"] in [asked.body["messages"] for asked in server.asked]
    assert document["tokens"] == sum(section["tokens"] for section in document["sections"])
