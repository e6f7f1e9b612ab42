"""What a language model is asked to have learned, and what becomes of it: rules that evidence alone moves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from model_runs import RIGHT, WRONG, Said, block, calls, go
from model_server import Answer, Asked, Fail, ModelServer, Say

from agent.loop.summary import RunSummary
from agent.proposers.language_model import model_proposer
from agent.proposers.language_model.answers import NO_RULES, rules_in
from agent.proposers.language_model.recording import Recording, Replay
from knowledge_base import browse
from knowledge_base.errors import UserError
from knowledge_base.records import Answered, LlmCall, Move
from knowledge_base.rules import Claim, claim, in_spaces, key_of, mine, read_claim, review, shipped
from knowledge_base.store import Store

WIDE = {"op": "add", "when": {"TN": 256}, "direction": "faster", "because": "a row fits\x1b[2J a tile"}
SAYS = "Tiles of 256 win.\n\n```json\n" + json.dumps({"rules": [WIDE]}) + "\n```\n"


def reflecting(text: str | Answer) -> Any:
    """A server that writes a wrong kernel, then right ones, and says ``text`` when it is asked what it learned."""

    def answer(asked: Asked) -> Answer:
        if "what these times teach" in asked.prompt:
            return Say(text) if isinstance(text, str) else text
        return block(WRONG if asked.number == 1 else RIGHT)

    return answer


def ran(folder: Path, text: str | Answer, **more: Any) -> tuple[RunSummary, list[Asked], list[str]]:
    said = Said()
    with ModelServer(reflecting(text)) as server:
        summary = go(folder, server.url, reflects=True, said=said, **more)
    return summary, server.asked, said.lines


def claimed(folder: Path) -> list[dict[str, Any]]:
    with Store.open(str(folder / "kb.db")) as store:
        return [rule for rule in browse.rules(store.database) if rule["origin"] == "llm"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_proposer, "IN_A_ROUND", 1)
    monkeypatch.setattr(model_proposer, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr("agent.loop.task_work.LIMIT", 2)


# ---------------------------------------------------------------------------------------------------- in a run


def test_a_model_is_asked_once_what_its_answers_taught_and_its_rule_is_hypothesised(tmp_path: Path) -> None:
    summary, asked, lines = ran(tmp_path, SAYS)
    (task,) = summary.tasks
    assert (summary.status, task.status) == ("done", "correct")
    *kernels, last = asked
    assert "what these times teach" in last.prompt
    assert not any("what these times teach" in one.prompt for one in kernels)
    for part in ("Answer 1: wrong", "TN", "persistent", "op is one of: add.", '{"rules": []}', "NVIDIA H200"):
        assert part in last.prompt
    assert "one complete Python file" not in last.prompt
    (rule,) = claimed(tmp_path)
    assert rule["statement"] == "add in bf16 on h200 is faster at TN=256"
    assert (rule["status"], rule["effect"], rule["evidence"], rule["history"]) == ("hypothesised", None, 0, [])
    assert rule["source"] == f"a-model, call {len(asked)} of run first"
    assert rule["claimed"] == {"direction": "faster", "because": "a row fits [2J a tile"}
    call = calls(tmp_path)[-1]
    assert (call.move, call.question, call.status, call.problem) == (Move.REFLECT, 0, Answered.ANSWERED, "")
    assert (call.candidate, call.paid) == ("", None)
    assert "target: it claims 1 new rule" in lines or any(line.endswith(": it claims 1 new rule") for line in lines)
    with Store.open(str(tmp_path / "kb.db")) as store:
        (shown,) = (r for r in browse.rules(store.database) if r["origin"] == "llm")
        assert browse.show(store.database, shown["key"])["source"] == rule["source"]


def test_the_next_prompt_tells_it_as_untested(tmp_path: Path) -> None:
    ran(tmp_path, SAYS)
    _, asked, lines = ran(tmp_path, SAYS, name="second")
    told = "add in bf16 on h200 is faster at TN=256 (not tested yet, because a row fits [2J a tile; a-model, call"
    assert all(told in one.prompt for one in asked if "what these times" in one.prompt or one.number == 1)
    assert any("it claims 0 new rules, 1 known already" in line for line in lines)
    assert len(claimed(tmp_path)) == 1


@pytest.mark.parametrize("answer", ["no JSON at all", Fail(401)])
def test_whatever_is_answered_the_run_ends_with_its_kernel(tmp_path: Path, answer: str | Answer) -> None:
    summary, _, _ = ran(tmp_path, answer)
    assert (summary.status, summary.tasks[0].status) == ("done", "correct")
    assert claimed(tmp_path) == []


def test_nothing_is_asked_where_nothing_was_answered_or_nothing_may_be_spent(tmp_path: Path) -> None:
    with ModelServer(lambda _: Fail(401)) as server:
        go(tmp_path, server.url, reflects=True)
    assert not [one for one in server.asked if "what these times teach" in one.prompt]
    (tmp_path / "poor").mkdir()
    _, asked, _ = ran(tmp_path / "poor", SAYS, tokens=60_000, rounds=8)
    assert asked
    assert calls(tmp_path / "poor")
    spent = sum((call.tokens_in or 0) + (call.tokens_out or 0) for call in calls(tmp_path / "poor"))
    assert spent <= 60_000


# ---------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    "text",
    [
        SAYS,
        json.dumps({"rules": [WIDE]}),
        "<think>{'rules': 1}</think>" + SAYS,
        'Well:\n```\n{"rules": [' + json.dumps(WIDE) + ",]\n```",  # broken: mended
    ],
)
def test_rules_are_found_however_they_are_wrapped(text: str) -> None:
    assert rules_in(text) == ([WIDE], "")


@pytest.mark.parametrize("text", ["", "none", "{}", '{"rules": 1}', "[1]", "{" * 100_000, '{"rules": [' * 50_000])
def test_what_holds_no_rules_is_said_to(text: str) -> None:
    assert rules_in(text) == ([], NO_RULES)


def read(**changes: Any) -> Claim:
    said = {name: value for name, value in (WIDE | changes).items() if value is not None}
    return read_claim(said, {"add", "both"}, "h200", "bf16", ("TN", "TM"))


def test_a_claim_is_a_form_of_what_was_seen() -> None:
    form = read(when={"persistent": False, "TM": 64, "TN": "x"}, shape="M*N >= 4096").form.document()
    assert form["scope"] == {"op": "add", "chip": "h200", "dtype": "bf16", "shape": "M*N >= 4096"}
    assert form["when"]["all"] == [
        {"axis": "TM", "value": 64}, {"axis": "TN", "value": "x"}, {"structure": "persistent", "value": False}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"op": "mul"}, "op 'mul' is not of this task"),
        ({"op": None}, "op '' is not of this task"),
        ({"op": ["add"]}, "op ['add'] is not of this task"),
        ({"direction": "best"}, "faster or slower, not 'best'"),
        ({"when": {}}, "one to 4 conditions"),
        ({"when": {f"A{i}": 1 for i in range(5)}}, "one to 4 conditions"),
        ({"when": {"TK": 64}}, "there is no 'TK' among TN"),
        ({"when": {"TN": [64]}}, "TN is a number or a text"),
        ({"when": {"TN": None}}, "TN is a number or a text"),
        ({"when": {"TN": float("nan")}}, "TN is a number or a text"),
        ({"when": {"persistent": "yes"}}, "persistent is true or false"),
        ({"shape": "M > 1"}, "a shape is written"),
        ({"shape": 7}, "a scope's values are texts"),
        ({"effect": 0.5}, "a rule has no effect"),
    ],
)
def test_what_is_no_rule_is_refused_and_says_why(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        read(**changes)


def test_what_no_text_can_hold_is_left_out_of_a_rule_and_of_what_is_said(tmp_path: Path) -> None:
    """Halves of characters, which JSON can spell and a database can not hold, and escapes that a terminal obeys."""
    rules = [WIDE | {"when": {"TN": "a\ud800\x1b[2J"}}, {"a\ud800\x1b": 1}]
    _, _, lines = ran(tmp_path, json.dumps({"rules": rules}))
    assert [rule["statement"] for rule in claimed(tmp_path)] == ["add in bf16 on h200 is faster at TN=a  [2J"]
    assert calls(tmp_path)[-1].problem == "a rule has no a  "
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("said", [None, 1, "a rule", ["op"], {}])
def test_what_is_no_object_is_refused(said: Any) -> None:
    with pytest.raises(UserError):
        read_claim(said, {"add"}, "h200", "bf16", ())


def test_three_rules_are_kept_and_what_was_wrong_with_others_is_noted(tmp_path: Path) -> None:
    many = [WIDE | {"when": {"TN": 2**i}} for i in range(4, 9)]
    many[1] = WIDE | {"op": "mul"}
    _, _, lines = ran(tmp_path, json.dumps({"rules": many}))
    assert sorted(rule["statement"][-2:] for rule in claimed(tmp_path)) == ["16", "64"]
    assert any("it claims 2 new rules; not kept: op 'mul' is not of this task" in line for line in lines)
    assert "op 'mul' is not of this task" in calls(tmp_path)[-1].problem


# ---------------------------------------------------------------------------------------------------- evidence


def test_evidence_alone_moves_what_a_model_claims(tmp_path: Path) -> None:
    """Of two claims that contradict each other one becomes supported, the other refuted, by what was measured."""
    rows = in_spaces(row for row in shipped() if row.session == "h200_product")
    taken = next(rule for rule in mine(rows) if rule.direction == "faster" and rule.form.scope.op == "linear")
    assert taken.form.when is not None
    right, wrong = (Claim(form=taken.form, direction=direction) for direction in ("faster", "slower"))
    with Store.open(str(tmp_path / "kb.db")) as store:
        base = store.database
        known = {rule["key"] for rule in browse.rules(base)}
        new = claim(base, [right, wrong], "a-model")
        keys = {one.direction: key_of(one.form, one.direction) for one in (right, wrong)}
        assert {change.key for change in new} == set(keys.values()) - known
        assert claim(base, [right, wrong], "another") == ()  # known by now
        review(base, rows, "what was measured")
        after = {rule["key"]: rule for rule in browse.rules(base)}
    assert after[keys["faster"]]["status"] == "supported"
    refuted = after[keys["slower"]]
    assert (refuted["status"], refuted["origin"], refuted["source"]) == ("refuted", "llm", "a-model")
    assert refuted["effect"] < 0
    assert [(step["was"], step["status"]) for step in refuted["history"]] == [("hypothesised", "refuted")]


# ---------------------------------------------------------------------------------------------------- recordings


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    ran(tmp_path, SAYS)
    return Recording(run="first", target="t", snf="", chip="h200", seed=1, calls=tuple(calls(tmp_path)))


def test_a_replay_reflects_as_it_was_recorded(recording: Recording) -> None:
    *kernels, reflection = recording.calls
    replay = Replay(recording)
    assert [one.text for answers in recording.answers.values() for one in answers] == [one.text for one in kernels]
    assert replay.reflects(reflection.place)
    assert replay.ask(reflection).text == SAYS
    again: LlmCall = kernels[0].fuller(question=1)
    assert replay.ask(again).text == kernels[0].text
    without = Replay(recording.model_copy(update={"calls": tuple(kernels)}))
    assert not without.reflects(reflection.place)
