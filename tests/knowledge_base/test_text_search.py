"""Search by words: what is indexed stays what the tables say, and both ways of searching find the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowledge_base import browse
from knowledge_base.browse import finding
from knowledge_base.records import Answered, Candidate, LlmCall, Stage, Status, Trial, Verdict
from knowledge_base.snf import everyday
from knowledge_base.store import Store
from knowledge_base.tables import CANDIDATES, FACTS, RULES
from knowledge_base.text_index import SOURCES, install

pytestmark = pytest.mark.usefixtures("copied_bases")

TASK = everyday("gelu")
ONE = Candidate(source="# walks tiles with ct.bid(0)\nx = 1\n", task=TASK.identity, note="persistent blocks")
OTHER = Candidate(source='# 100%_sure "quoted" \x02 [/bold]\n', task=TASK.identity)


def trial(number: int, message: str, status: Status = Status.WRONG, candidate: Candidate = ONE) -> Trial:
    verdict = Verdict(status=status, stage=Stage.COMPARE, message=message)
    return Trial(
        candidate=candidate, configuration={"TM": number}, chip="h200", shape={"M": 64}, evaluator="v1", verdict=verdict
    )  # fmt: skip


def call(text: str) -> LlmCall:
    return LlmCall(run="r1", task=TASK.identity, shape={"M": 64}, number=1, model="m", endpoint="e",
                   request={"messages": [{"role": "user", "content": "secretword"}]}, text=text,
                   status=Answered.ANSWERED if text else Answered.SENT)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(str(tmp_path / "kb.db")) as opened:
        opened.record_tasks([TASK])
        opened.record(
            [trial(1, "y[3] is 1, expected 2"), trial(2, "y[3] is 1, expected 2"), trial(3, "", Status.CORRECT)]
        )
        opened.record([trial(1, "the tail is not masked", candidate=OTHER)])
        yield opened


def found(store: Store, *words: str, **asked: object) -> list[tuple[str, str]]:
    return [(row["is"], row["id"]) for row in browse.search(store.database, words, **asked)]  # type: ignore[arg-type]


def test_everything_with_words_is_found(store: Store) -> None:
    assert found(store, "walks", "tiles") == [("kernel", ONE.digest)]
    assert found(store, "persistent blocks") == [("kernel", ONE.digest)]  # a note; two words in one are a phrase
    assert found(store, "blocks persistent") == []
    assert found(store, "ct.bid") == [("kernel", ONE.digest)]
    assert found(store, "mask", kinds=["trial"]) == [("trial", trial(1, "x", candidate=OTHER).key)]  # a begin of a word
    assert found(store, "expected", kinds=["trial"]) == [("trial", trial(1, "x").key)]  # what two say is said once
    assert ("task", TASK.identity) in found(store, "gelu")
    assert {kind for kind, _ in found(store, "h200", limit=500)} >= {"fact", "rule"}
    assert len(found(store, "h200", limit=3)) == 3
    (row,) = browse.search(store.database, ["walks"])
    assert (row["of"], row["text"][:22]) == ("gelu", "persistent blocks\n# \x02w")


def test_an_answer_is_found_once_it_is_there_and_what_was_asked_is_not(store: Store) -> None:
    store.record_call(call(""))
    assert found(store, "eureka") == []
    store.record_call(call("eureka: split K"))
    assert found(store, "eureka") == [("call", call("").key)]
    store.record_call(call("never mind"))
    assert found(store, "eureka") == []
    assert found(store, "secretword") == []


def test_what_leaves_or_changes_is_found_no_more(store: Store) -> None:
    with store.database.write() as connection:
        connection.execute(FACTS.delete())
        connection.execute(RULES.update().values(statement="all is vanity", effect=0.5))
        connection.execute(CANDIDATES.update().values(prompt="p"))  # nothing that has words
    assert found(store, "whitepaper") == []
    assert {kind for kind, _ in found(store, "vanity", limit=500)} == {"rule"}
    assert found(store, "linear bf16", kinds=["rule"]) == []
    with store.database.read() as connection:
        connection.exec_driver_sql("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")


@pytest.mark.parametrize(
    "words",
    [['"'], ['"quoted"'], ["a AND"], ["NEAR(x"], ["*"], ["^x", "-y"], ["text:x"], ["x\0y"], ["("], [""], ["é" * 999]],
)  # fmt: skip
def test_no_word_is_read_as_anything_but_a_word(store: Store, words: list[str]) -> None:
    browse.search(store.database, words)


@pytest.mark.parametrize(
    "words",
    [("walks", "tiles"), ("ct.bid",), ("persistent blocks",), ("expected",), ("100%_sure",), ("0%_s",), ("gelu",)],
)  # fmt: skip
def test_looking_the_tables_through_finds_what_the_index_finds(
    store: Store, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Databases other than SQLite have no index; they find parts of words, too."""
    indexed = set(found(store, *words, limit=500))
    monkeypatch.setattr(finding, "_indexed", lambda _: False)
    looked = browse.search(store.database, words, limit=500)
    rows = {(row["is"], row["id"]) for row in looked}
    if words == ("0%_s",):
        assert rows == {("kernel", OTHER.digest)}
    else:
        assert rows == indexed
    for row in looked:
        assert row["text"].partition(browse.OPEN)[2].partition(browse.CLOSE)[0].lower() == words[0].lower()


def test_the_index_of_a_base_that_had_none_is_what_writing_would_have_made(store: Store, tmp_path: Path) -> None:
    store.record_call(call("eureka"))
    query = "SELECT kind, thing, text FROM texts ORDER BY kind, thing"
    with store.database.write() as connection:
        written = connection.exec_driver_sql(query).all()
        for kind in SOURCES:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS texts_{kind}_gain")
        for table in ("words", "texts"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        install(connection)
        assert connection.exec_driver_sql(query).all() == written
    assert {row.kind for row in written} == set(SOURCES)
    store.record_candidate(Candidate(source="# a newcomer\n", task=TASK.identity))
    assert len(found(store, "newcomer")) == 1  # the trigger that was missing is there again
