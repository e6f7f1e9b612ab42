"""Runs that are recorded, and answered again from the recording where no model is: with the real judge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_runs import ADD, BROKEN, KEY, RIGHT, WRONG, block
from model_server import Answer, Asked, Fail, ModelServer, error

from agent.cli import invoke
from agent.loop import task_work
from agent.proposers.language_model import model_proposer
from agent.proposers.language_model.policy import Step
from agent.proposers.language_model.recording import Replay, difference, read_recording
from knowledge_base import browse
from knowledge_base.errors import UserError
from knowledge_base.records import Answered, LlmCall, Move
from knowledge_base.store import RunRecord, Store

SNF = ADD


def answers(asked: Asked) -> Answer:
    """A hiccup, a tile of 80, a difference, and from then on the sum."""
    if asked.number == 1:
        return Fail(503, error("busy"))
    return block([BROKEN, WRONG, RIGHT][min(asked.number, 4) - 2])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of three answers, its knowledge base and its recording sum.jsonl."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "sum.snf").write_text(SNF)
    with pytest.MonkeyPatch.context() as patch, ModelServer(answers) as server:
        alone(patch)
        patch.chdir(folder)
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", KEY)
        options = ("--model", "a-model", "--rounds", "3", "--seed", "7", "--record", "sum.jsonl")
        assert run("--target", "sum.snf", "--gpu", "h200", *options) == 0
    return folder


@pytest.fixture
def here(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In that folder, where no model is."""
    alone(monkeypatch)
    monkeypatch.chdir(recorded)
    return recorded


def no_model(patch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        patch.delenv(name, raising=False)


def alone(patch: pytest.MonkeyPatch) -> None:
    """No endpoint; one request in a round, so that answers come in order; no waiting."""
    no_model(patch)
    patch.setattr(model_proposer, "FIRST_WAIT_S", 0.01)
    patch.setattr(model_proposer, "IN_A_ROUND", 1)
    patch.setattr(model_proposer, "REFLECTS", False)
    patch.setattr(task_work, "LIMIT", 2)


def run(*arguments: str) -> int:
    return invoke(["run", "--jobs", "1", *arguments])


def runs() -> list[tuple[RunRecord, list[LlmCall]]]:
    """The runs in this folder's knowledge base with their calls, oldest first."""
    with Store.open(None) as store:
        names = [row["id"] for row in browse.runs(store.database)]
        return [(store.run(name), store.calls(name)) for name in reversed(names)]


def test_a_recording_holds_the_run_and_every_call_but_not_the_key(here: Path) -> None:
    text = (here / "sum.jsonl").read_text()
    record, calls = runs()[0]
    recording = read_recording(text, "sum.jsonl")
    assert (recording.run, recording.target, recording.chip) == (record.id, "sum.snf", "h200")
    assert (recording.seed, recording.rounds, recording.model) == (7, 3, "a-model")
    assert list(recording.calls) == calls
    assert [call.status for call in calls] == [Answered.SERVER_ERROR, *[Answered.ANSWERED] * 3]
    assert KEY not in text
    assert str(here) not in text


@pytest.mark.parametrize("name", ["the file", "the run"])
def test_a_replay_gives_the_answers_again_and_judges_them_again(
    here: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    record, before = runs()[0]
    assert run("--replay", "sum.jsonl" if name == "the file" else record.id[:-2]) == 0
    again, calls = runs()[-1]
    said = " ".join(capfd.readouterr().err.split())
    assert again.id != record.id
    assert (again.proposer, again.chip, again.options["seed"]) == ("replay", "h200", 7)
    answered = before[1:]  # the hiccup is not repeated
    assert [call.text for call in calls] == [call.text for call in answered]
    assert [call.candidate for call in calls] == [call.candidate for call in answered]
    assert [call.paid for call in calls] == [call.paid for call in answered]
    assert [call.number for call in calls] == [1, 2, 3]
    assert {call.endpoint for call in calls} == {f"replay://{record.id}"}
    assert [t["status"] for t in again.summary["tasks"]] == ["correct"]
    statuses = [(row["error_class"], row["status"]) for row in again.summary["tasks"][0]["rejected"]]
    assert statuses == [(row["error_class"], row["status"]) for row in record.summary["tasks"][0]["rejected"]]
    assert len(statuses) == 2
    assert "answered as recorded" in said
    assert "recorded answers, no model was asked" in said
    assert "asked no more: 3 rounds over" in said


def test_a_replay_on_another_chip_shows_how_its_prompts_differ(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--replay", "sum.jsonl", "--gpu", "b200") == 0
    again, calls = runs()[-1]
    assert again.chip == "b200"
    assert all(call.recorded_for not in (None, "", call.prompt) for call in calls)
    assert "3 of 3 prompts changed since" in " ".join(capfd.readouterr().err.split())
    shown = sorted((here / "runs" / again.id / "prompts").glob("*.diff"))
    assert len(shown) == 3
    assert re.search(r"^-.*h200.*^\+.*b200", shown[0].read_text(), re.MULTILINE | re.DOTALL | re.IGNORECASE)


def test_a_replay_of_the_same_prompts_says_so(here: Path) -> None:
    _, (call, *_) = runs()[0]
    assert difference(call, call.fuller(number=9)) == ""
    one = call.fuller(request={**call.request, "messages": [{"role": "user", "content": "a\nb"}]})
    two = call.fuller(request={**call.request, "messages": [{"role": "user", "content": "a\nc"}]})
    assert difference(one, two).splitlines()[-3:] == [" a", "-b", "+c"]
    assert difference(call.fuller(request={"messages": []}), two) == ""  # there is nothing to compare with


def test_a_task_that_the_recording_does_not_know_keeps_the_synthesizers_kernel(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("--replay", "sum.jsonl", "--target", "gelu", "--shape", "M=32,N=64") == 0
    again, calls = runs()[-1]
    assert calls == []
    (task,) = again.summary["tasks"]
    assert (task["status"], task["over"]) == ("correct", "the recording has no more answers for it")
    assert again.target == "gelu"


def test_a_replay_that_stopped_goes_on_with_the_next_answer(here: Path) -> None:
    assert run("--replay", "sum.jsonl", "--rounds", "1") == 0
    stopped, calls = runs()[-1]
    assert [call.number for call in calls] == [1]
    assert run("--resume", stopped.id, "--rounds", "3") == 0
    again, calls = runs()[-1]
    assert again.id == stopped.id
    assert [call.number for call in calls] == [1, 2, 3]
    assert [call.text for call in calls] == [block(source).text for source in (BROKEN, WRONG, RIGHT)]


def test_what_was_replayed_is_no_new_experience_with_the_model(here: Path) -> None:
    assert run("--replay", "sum.jsonl") == 0
    (record, calls), *_ = runs()
    with Store.open(None) as store:
        known = store.moves("a-model", but=())
        assert len(known) == sum(call.paid is not None for call in calls) == 3
        assert store.moves("a-model", but=(record.id,)) == []


def test_an_interrupted_run_is_recorded_as_far_as_it_came(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model_proposer.LanguageModel, "_offer", ended)
    assert run("--replay", "sum.jsonl", "--record", "part.jsonl") == 130
    assert "recorded:" in capfd.readouterr().err
    recording = read_recording((here / "part.jsonl").read_text(), "part.jsonl")
    assert [call.text for call in recording.calls] == [block(BROKEN).text]


def test_a_run_that_is_done_can_still_be_recorded(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record, _ = runs()[0]
    assert run("--resume", record.id, "--record", "later.jsonl") == 0
    assert "is already done" in capfd.readouterr().err
    assert (here / "later.jsonl").read_text() == (here / "sum.jsonl").read_text()


def test_answers_are_matched_by_the_number_of_the_question_that_was_answered(here: Path) -> None:
    _, calls = runs()[0]
    cut = [call.fuller(number=10 + call.number, question=10, status=Answered.CUT, text="impor") for call in calls[1:2]]
    late = calls[1].fuller(number=30, question=11, text="late")
    recording = read_recording((here / "sum.jsonl").read_text(), "sum.jsonl")
    replay = Replay(recording.model_copy(update={"calls": (*cut, late, *calls)}))
    place = calls[0].place
    planned = [Step(number, Move.FRESH) for number in range(1, 7)]
    assert [step.question for step in replay.steps(place, planned, set())] == [1, 2, 3, 4]
    assert replay.steps("elsewhere", planned, set()) == []
    assert replay.ask(calls[0].fuller(question=4)).text == "late"


def test_a_replay_asks_what_was_asked_for_where_the_kernels_are_there(here: Path) -> None:
    replay = Replay(read_recording((here / "sum.jsonl").read_text(), "sum.jsonl"))
    _, (_, one, two, _) = runs()[0]
    assert (one.move, two.move, two.about) == (Move.FRESH, Move.REPAIR, (one.candidate,))
    planned = [Step(1, Move.FRESH), Step(2, Move.IMPROVE, ("x",)), Step(3, Move.FRESH)]
    assert replay.steps(one.place, planned, {one.candidate})[1] == Step(2, Move.REPAIR, (one.candidate,))
    assert replay.steps(one.place, planned, set())[1] == planned[1]


def test_a_recording_keeps_whatever_a_model_said(here: Path) -> None:
    recording = read_recording((here / "sum.jsonl").read_text(), "sum.jsonl")
    odd = recording.calls[1].fuller(text="a\u2028b\x85c\x0bd\r\ne\0f", said="")
    again = read_recording(recording.model_copy(update={"calls": (odd,)}).text(), "odd.jsonl")
    assert again.calls == (odd,)
    assert Replay(again).ask(odd.fuller(question=1)).text == odd.text.replace("\0", "")  # as an endpoint's answers


def test_what_a_strangers_recording_says_is_shown_as_plain_text(here: Path) -> None:
    red = "\x1b[31mred\nmore"
    header, *calls = [json.loads(line) for line in (here / "sum.jsonl").read_text().splitlines()]
    lines = [header | {"target": red}, *(call | {"model": red, "finish": red, "said": red} for call in calls)]
    recording = read_recording("\n".join(map(json.dumps, lines)), "red.jsonl")
    reply = Replay(recording).ask(recording.calls[-1])
    assert all(text.isprintable() for text in (recording.target, recording.model, reply.finish, reply.said))


BAD = {
    "": "is no recording",
    "{}": "is no recording",
    "[1]": "is no recording",
    "half {": "line 1: no JSON",
    '{"recording": 2}': "line 1: ",
    "header": "holds no answer",
    "header\n\n{": "line 3: no JSON",
    'header\n{"run": "x"}': "line 2: task",
    "header\ncall\nno messages": "line 3: 0.content",
    "header\ncall\n\nhalf a character": "line 4: no JSON",
    "header\ncall\nother": "line 3: ",
}


@pytest.mark.parametrize("text", BAD)
def test_a_file_that_is_no_recording_is_refused_with_its_line(here: Path, text: str) -> None:
    header, call, *_ = (here / "sum.jsonl").read_text().splitlines()
    other = json.dumps(json.loads(call) | {"number": "one"})
    nothing = json.dumps(json.loads(call) | {"request": {"messages": [{"role": "user"}]}})
    half = json.dumps(json.loads(call) | {"text": "\ud800"})
    whole = {"header": header, "call": call, "other": other, "no messages": nothing, "half a character": half}
    written = "\n".join(whole.get(line, line) for line in text.split("\n"))
    with pytest.raises(UserError) as caught:
        read_recording(written, "some.jsonl")
    assert caught.value.what.startswith("some.jsonl")
    assert BAD[text] in caught.value.what


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--replay", "nowhere.jsonl"), "no file nowhere.jsonl"),
        (("--replay", "gpt3-block"), "no run 'gpt3-block'"),
        (("--replay", "sum.jsonl", "--model", "m"), "--model m: a replay has its recorded answers"),
        (("--replay", "sum.jsonl", "--proposer", "manual"), "--proposer manual"),
        (("--replay", "sum.jsonl", "--budget-usd", "1"), "--budget-usd 1"),
        (("--replay", "sum.jsonl", "--budget-tokens", "1"), "--budget-tokens 1"),
        (("--replay", "sum.jsonl", "--shape", "M=3"), "the sizes of the recorded run"),
        (("--replay", "sum.jsonl", "--resume", "2"), "--resume goes on with the answers"),
        (("--replay", "sum.snf"), "line 1: no JSON"),
        (("--target", "gelu", "--record", "x.jsonl"), "the synthesizer asks no language model"),
        (("--replay", "sum.jsonl", "--record", "no/x.jsonl"), "there is no folder"),
        (("--replay", "sum.jsonl", "--record", "runs"), "that is a folder"),
        (("--replay", "sum.jsonl", "--record", "runs/knowledge.db"), "is a database, which would be lost"),
    ],
)
def test_what_can_not_be_replayed_or_recorded_is_said_before_any_work(
    here: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    before = len(runs())
    assert run(*arguments) == 2
    assert says in " ".join(capfd.readouterr().err.split())
    assert len(runs()) == before


@pytest.mark.replay
def test_the_block_that_ships_is_answered_rightly_with_repairs_and_without_hope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The README's example; with little for the synthesizer to search."""
    monkeypatch.chdir(tmp_path)
    no_model(monkeypatch)
    monkeypatch.setattr(task_work, "LIMIT", 2)
    assert invoke(["run", "--replay", "gpt2-block", "--search-seconds", "1"]) == 0
    ((record, calls),) = runs()
    rejected = {
        task["name"]: sorted({(trial["status"], trial["error_class"]) for trial in task["rejected"]})
        for task in record.summary["tasks"]
    }
    assert rejected == {
        "linear_gelu": [("wrong", "sum-tail")],
        "linear": [],
        "linear_residual K=3072": [("build-error", "tile-not-power-of-two")],
        "linear_residual K=768": [],
        "attention": [("build-error", "no-such-function"), ("wrong", "wrong-numbers")],
        "layernorm": [("invalid", "forbidden-import"), ("wrong", "imprecise"), ("wrong", "wrong-numbers")],
    }
    right = {"linear_gelu": 3, "linear": 2, "linear_residual K=3072": 2, "linear_residual K=768": 1, "attention": 1}
    said = capfd.readouterr().err
    for name in rejected:
        assert len(re.findall(rf"\] {re.escape(name)}: \w+ correct", said)) == right.get(name, 0), name
    assert len(calls) == 18
    assert [call.move for call in calls].count(Move.REPAIR) == 4
    assert {call.recorded_for for call in calls} == {""}
    assert "changed since" not in said
