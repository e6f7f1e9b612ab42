"""Rows of one base in another: whole, beside what is known there, and nobody's word taken for one's own."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from knowledge_base import browse
from knowledge_base.advice import advice
from knowledge_base.chips import chip
from knowledge_base.content import canonical, content_key
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.rules import in_spaces, key_of, own, read_form, review, shipped
from knowledge_base.sharing import give, parcel, take
from knowledge_base.sharing.lines import LineCheck, read_line
from knowledge_base.snf import everyday
from knowledge_base.store import RunRecord, Store
from knowledge_base.tables import BASES, EVIDENCE, FACTS, RULES, TALLIES, TRIALS, now

pytestmark = pytest.mark.usefixtures("copied_bases")

TASK = everyday("gelu")
FAST = Candidate(source="AXES = {}\n# fast\n", task=TASK.identity, proposer="synthesizer", note="one tile")
SLOW = Candidate(source="AXES = {}\n# slow\n", task=TASK.identity, parent=FAST.digest)
RIGHT = Verdict(status=Status.CORRECT, stage=Stage.DONE)
WRONG = Verdict(status=Status.WRONG, stage=Stage.COMPARE, error_class="tail", message="y[3] is 1, expected 2")
CUBIN = CompileEvidence(
    arch="sm_90", kernel="ab" * 32, symbol="k", registers=168, stack_bytes=0, spill_bytes=0, shared_bytes=66560
)
RUN = "20261130-120000-gelu-ab12"


def trial(tm: int, us: float | None, verdict: Verdict | None = None, of: Candidate = FAST, **changes: Any) -> Trial:
    time = Measurement(kind="measured", chip="h200", us=us or 0.0, floor_us=2.0)
    whole = Trial(
        candidate=of, configuration={"TM": tm}, chip="h200", shape=TASK.sizes, evaluator="v1", verdict=verdict,
        measurements=(time,) if us is not None else (),
    )  # fmt: skip
    return whole.fuller(**changes)


def opened(path: Path, base: str) -> Store:
    """A base with a name of its own: those of the tests are copies of one."""
    store = Store.open(str(path))
    with store.database.write() as connection:
        connection.execute(BASES.update().where(BASES.c.own).values(key=base))
    return store


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "theirs.db", "aa" * 8) as store:
        store.record_tasks([TASK])
        store.start_run(RunRecord(RUN, "gelu", "h200", "cuda", "synthesizer", "running"))
        some = [trial(1, 5.0, RIGHT), trial(2, 6.0), trial(4, None, pruned="too slow"), trial(1, 9.0, WRONG, SLOW)]
        store.record(some, run=RUN, move="search")
        store.record_winner(RUN, some[0], "winners/gelu")
        yield store


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "mine.db", "bb" * 8) as store:
        yield store


def exported(store: Store, path: Path, **asked: str) -> Path:
    give(store.database, path, **asked)
    return path


@pytest.fixture
def file(theirs: Store, tmp_path: Path) -> Path:
    return exported(theirs, tmp_path / "theirs.jsonl")


def documents(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    """The same file with these lines, its checksum made right: as one who means to deceive would write it."""
    body = b"".join(canonical(line).encode() + b"\n" for line in lines[:-1])
    end = {"kind": "end", "lines": len(lines) - 2, "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(body + canonical(end).encode() + b"\n")
    return path


def rows(store: Store, table: Any) -> list[dict[str, Any]]:
    with store.database.read() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    """All rows, but for when they were stored."""
    tables = {table.name: table for table in TRIALS.metadata.sorted_tables}
    return {name: sorted(map(repr, rows(store, table))) for name, table in tables.items()}  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------------- what travels


def test_trials_arrive_as_another_bases_word(mine: Store, file: Path) -> None:
    took = take(mine.database, file)["took"]
    assert (took["task"], took["candidate"], took["trial"]) == ({"new": 1}, {"new": 2}, {"new": 3})
    found = {row["configuration"]["TM"]: row for row in browse.attempts(mine.database) if row["kernel"] == FAST.digest}
    assert found.keys() == {1, 2}  # what was pruned is no finding
    assert {row["status"] for row in found.values()} == {"foreign"}
    assert {row["origin"] for row in found.values()} == {"aa" * 8}
    assert found[1]["message"] == "in base aaaaaaaa it is correct"
    assert not found[1]["general"]
    (wrong,) = (row for row in browse.attempts(mine.database) if row["kernel"] == SLOW.digest)
    assert wrong["message"] == "in base aaaaaaaa it is wrong: y[3] is 1, expected 2"


def test_nothing_that_is_foreign_counts(mine: Store, file: Path) -> None:
    take(mine.database, file)
    assert mine.best(TASK.identity, "h200") == []
    assert mine.best_at(TASK.identity, "h200", TASK.sizes) == []
    assert mine.fastest(TASK.identity, "h200") is None
    assert mine.of_candidate(TASK.identity, FAST.digest, "h200", TASK.sizes, "v1") == []
    assert mine.answers([TASK.identity], limit=9) == []
    (task,) = browse.tasks(mine.database)
    assert (task["trials"], task["correct"], task["foreign"], task["best"]) == (0, 0, 3, [])
    assert browse.kernels(mine.database, status="measured") == []
    assert list(own(mine.database)) == []
    (place,) = browse.show(mine.database, "gelu")["places"]
    assert (place["trials"], place["best"], place["kind"]) == ({"foreign": 3}, [], None)


def test_what_they_rejected_is_no_answer_of_a_model_here(mine: Store, file: Path) -> None:
    mine.record_tasks([TASK])
    mine.record_candidate(SLOW.model_copy(update={"prompt": "ab" * 32}))  # the same file, written here for a prompt
    take(mine.database, file)
    assert mine.answers([TASK.identity], limit=9) == []


def test_winners_are_shown_as_foreign_after_ones_own(mine: Store, file: Path) -> None:
    take(mine.database, file)
    (row,) = browse.kernels(mine.database)
    assert (row["status"], row["us"], row["run_id"], row["folder"]) == ("foreign", 5.0, RUN, "")
    assert browse.kernels(mine.database, status="foreign") == [row]
    mine.start_run(RunRecord("r1", "gelu", "h200", "cuda", "synthesizer", "running"))
    mine.record([judged := trial(1, 7.0, RIGHT, SLOW)], run="r1")
    mine.record_winner("r1", judged)
    assert [row["us"] for row in browse.kernels(mine.database)] == [7.0, 5.0]


def test_what_a_run_starts_from_of_other_bases(mine: Store, file: Path) -> None:
    take(mine.database, file)
    (found,) = mine.foreign(TASK.identity, "h200", limit=3)  # not the file that they call wrong
    assert (found.candidate, found.configuration, found.correct) == (FAST, {"TM": 1}, False)
    assert mine.foreign(TASK.identity, "b200", limit=3) == [found]  # from another chip, where there is nothing of it
    mine.record([trial(8, None)])  # tried here, if in another configuration
    assert mine.foreign(TASK.identity, "h200", limit=3) == []


def test_a_verdict_of_ones_own_stands_beside_theirs(mine: Store, file: Path) -> None:
    mine.record_tasks([TASK])
    mine.record([trial(1, 8.0, WRONG)])
    take(mine.database, file)
    (ours,) = mine.of_candidate(TASK.identity, FAST.digest, "h200", TASK.sizes, "v1")
    assert (ours.status, ours.time and ours.time.us) == ("wrong", 8.0)
    shown = browse.show(mine.database, FAST.digest)
    told = {(row["status"], row["us"]) for row in shown["trials"] if row["configuration"] == {"TM": 1}}
    assert told == {("wrong", 8.0), ("foreign", 5.0)}
    mine.record([trial(2, 3.0, RIGHT)])  # and what is judged later takes nothing of theirs
    later = next(t for t in mine.best(TASK.identity, "h200") if t.configuration == {"TM": 2})
    assert [m.us for m in later.measurements] == [3.0]


def test_of_a_file_that_was_tried_here_ones_own_word_is_shown(mine: Store, file: Path) -> None:
    mine.record_tasks([TASK])
    mine.record([trial(4, None, WRONG)])
    take(mine.database, file)
    (one,) = (row for row in browse.show(mine.database, FAST.digest)["lineage"] if row["kernel"] == FAST.digest)
    assert one["status"] == "wrong"


def test_a_place_tells_of_foreign_trials_whichever_evaluator_saw_them(theirs: Store, mine: Store, file: Path) -> None:
    mine.record_tasks([TASK])
    modelled = {"measurements": (Measurement(kind="modelled", chip="h200", us=9.0, floor_us=2.0),)}
    mine.record([trial(1, None, **modelled, evaluator="v2"), trial(2, None, **modelled, evaluator="v2")])
    mine.record([trial(1, None, **modelled, evaluator="v3")])
    theirs.record([trial(1, 5.0, evaluator="v9")])  # later
    take(mine.database, exported(theirs, file))
    (place,) = browse.show(mine.database, "gelu")["places"]
    assert place["trials"] == {"ranked": 1, "foreign": 4}  # of the evaluator that was here last, and all of others
    assert place["older_trials"] == 2


def test_what_two_bases_say_stands_side_by_side(mine: Store, file: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "third.db", "cc" * 8) as third:
        third.record_tasks([TASK])
        third.record([trial(1, 4.0, WRONG)])
        take(mine.database, file)
        take(mine.database, exported(third, tmp_path / "third.jsonl"))
    said = {row["origin"][:2]: row["message"] for row in browse.attempts(mine.database) if row["us"] in (4.0, 5.0)}
    assert said == {
        "aa": "in base aaaaaaaa it is correct",
        "cc": "in base cccccccc it is wrong: y[3] is 1, expected 2",
    }


def test_a_search_may_look_first_where_another_base_was_fast(mine: Store, file: Path) -> None:
    take(mine.database, file)
    found = list(own(mine.database, foreign=True))
    assert {(one.us, one.session) for one in found} == {(5.0, "aa" * 8 + RUN), (6.0, "aa" * 8 + RUN)}  # not the wrong


# ---------------------------------------------------------------------------------------------------- again


def test_to_import_again_changes_nothing(mine: Store, file: Path) -> None:
    take(mine.database, file)
    before = everything(mine)
    took = take(mine.database, file)["took"]
    assert {change for changes in took.values() for change in changes} == {"known"}
    assert everything(mine) == before


def test_a_later_export_brings_what_changed(theirs: Store, mine: Store, file: Path, tmp_path: Path) -> None:
    take(mine.database, file)
    theirs.record([trial(2, 2.5, RIGHT), trial(16, 9.0)])
    took = take(mine.database, exported(theirs, tmp_path / "later.jsonl.gz"))["took"]
    assert took["trial"] == {"new": 1, "changed": 1, "known": 2}
    (found,) = mine.foreign(TASK.identity, "h200", limit=1)
    assert (found.configuration, found.time and found.time.us) == ({"TM": 2}, 2.5)
    assert browse.show(mine.database, "aaaa")["file"] == "later.jsonl.gz"
    tallied(mine)


def test_an_older_export_takes_nothing_back(theirs: Store, mine: Store, file: Path, tmp_path: Path) -> None:
    theirs.record([trial(2, 2.5, RIGHT)])
    later = documents(exported(theirs, tmp_path / "later.jsonl"))
    later[0]["made_at"] = "2030-01-01T00:00:00.000000Z"
    take(mine.database, written(tmp_path / "later.jsonl", later))
    before = everything(mine)
    taken = take(mine.database, file)
    assert taken["older"]
    assert {change for changes in taken["took"].values() for change in changes} == {"known"}
    assert everything(mine) == before
    with mine.database.write() as connection:  # what is not here it brings
        connection.execute(TRIALS.delete().where(TRIALS.c.us == 9.0))
    assert take(mine.database, file)["took"]["trial"]["new"] == 1
    assert browse.show(mine.database, "aaaa")["exported_at"].startswith("2030")


def tallied(store: Store) -> None:
    with store.database.read() as connection:
        counted = connection.execute(select(func.sum(TALLIES.c.trials)).where(TALLIES.c.status == "foreign")).scalar()
        stored = connection.execute(select(func.count()).where(TRIALS.c.status == "foreign")).scalar()
    assert counted == stored


def test_ones_own_export_brings_nothing(theirs: Store, file: Path) -> None:
    before = everything(theirs)
    take(theirs.database, file)
    assert everything(theirs) == before


def test_what_was_imported_is_not_exported(mine: Store, file: Path, tmp_path: Path) -> None:
    take(mine.database, file)
    lines = documents(exported(mine, tmp_path / "mine.jsonl"))
    assert not {"task", "candidate", "trial"} & {line["kind"] for line in lines}
    mine.record([trial(8, 7.0)])
    given = give(mine.database, tmp_path / "mine.jsonl")
    assert (given["lines"]["trial"], given["skipped"]) == (1, 0)


def test_two_imports_at_once(mine: Store, file: Path) -> None:
    took: list[Any] = []
    threads = [threading.Thread(target=lambda: took.append(take(mine.database, file)["took"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(one["trial"].get("new", 0) for one in took) == 3
    tallied(mine)


def test_only_what_is_asked_for(theirs: Store, tmp_path: Path) -> None:
    other = everyday("softmax")
    theirs.record_tasks([other])
    made = Candidate(source="AXES = {}\n", task=other.identity)
    theirs.record([trial(1, 1.0, of=made), trial(1, 1.0, of=made, chip="b200")])

    def kinds(**asked: str) -> dict[str, int]:
        return give(theirs.database, tmp_path / "some.jsonl", **asked)["lines"]

    assert (kinds()["task"], kinds()["trial"]) == (2, 5)
    assert (kinds(op="softmax")["task"], kinds(op="softmax")["trial"]) == (1, 2)
    assert (kinds(gpu="b200")["task"], kinds(gpu="b200")["trial"]) == (1, 1)
    assert "task" not in kinds(op="conv")


# ---------------------------------------------------------------------------------------------------- rules


FORM = {"scope": {"op": "gelu", "chip": "h200"}, "when": {"axis": "TM", "value": 1}, "against": "other values"}
FORM |= {"effect": "log_ratio"}


def rule(store: Store, status: str, effect: float | None) -> str:
    """Stores a rule with one piece of evidence."""
    form = read_form(FORM, "here")
    key = key_of(form, "faster")
    fields = {"op": "gelu", "chip": "h200", "claimed": {"direction": "faster"}, "source": "a test", "origin": "llm"}
    fields |= {"effect": effect, "effect_low": effect, "effect_high": effect, "paired": {}, "history": []}
    fields |= {"superseded_by": "", "created_at": now(), "updated_at": now()}
    place = {"task": "gelu", "sizes": {"M": 64}, "chip": "h200", "dtype": "bf16", "sessions": ["s"]}
    with store.database.write() as connection:
        said = "gelu on h200 is faster at TM=1"
        connection.execute(
            RULES.insert().values(key=key, statement=said, status=status, form=form.document(), **fields)
        )
        connection.execute(
            EVIDENCE.insert().values(
                key=content_key("evidence", key, place), rule=key, kind="measured", log_ratio=effect, paired=None,
                pairs=3, place=place, note="", created_at=now(),
            )
        )  # fmt: skip
    return key


def test_a_rule_enters_as_hypothesised_with_what_they_found_as_claimed(
    theirs: Store, mine: Store, tmp_path: Path
) -> None:
    key = rule(theirs, "supported", -0.2)
    take(mine.database, exported(theirs, tmp_path / "r.jsonl"))
    shown = browse.show(mine.database, key)
    assert (shown["status"], shown["effect"], shown["origin"]) == ("hypothesised", None, "import")
    assert shown["claimed"] == {"direction": "faster", "saving": 0.181}
    assert {(row["kind"], row["log_ratio"]) for row in shown["evidence"]} == {("claimed", -0.2)}
    assert {row["place"]["base"] for row in shown["evidence"]} == {"aa" * 8}
    assert "supported in base aaaaaaaa" in {row["note"] for row in shown["evidence"]}


def test_a_rule_that_they_refute_stays_as_it_is_here(theirs: Store, mine: Store, tmp_path: Path) -> None:
    key = rule(mine, "supported", -0.1)
    rule(theirs, "refuted", 0.3)
    take(mine.database, exported(theirs, tmp_path / "r.jsonl"))
    shown = browse.show(mine.database, key)
    assert (shown["status"], shown["effect"], shown["origin"]) == ("supported", -0.1, "llm")
    assert {(row["kind"], row["log_ratio"]) for row in shown["evidence"]} == {("measured", -0.1), ("claimed", 0.3)}
    lines = documents(exported(mine, tmp_path / "mine.jsonl"))  # their claims are not passed on
    assert [line["log_ratio"] for line in lines if line["kind"] == "evidence" and line["rule"] == key] == [-0.1]


def test_what_they_take_back_is_claimed_no_more(theirs: Store, mine: Store, tmp_path: Path) -> None:
    for store in (theirs, mine):
        key = rule(store, "supported", -0.1)
    with theirs.database.write() as connection:
        connection.execute(RULES.update().where(RULES.c.key == key).values(status="refuted", effect=0.3))
        connection.execute(EVIDENCE.update().where(EVIDENCE.c.rule == key).values(log_ratio=0.3))
    take(mine.database, exported(theirs, tmp_path / "r.jsonl"))

    def kinds() -> list[str]:
        return sorted(row["kind"] for row in browse.show(mine.database, key)["evidence"])

    assert kinds() == ["claimed", "claimed", "measured"]
    with theirs.database.write() as connection:  # and then found what is known here
        connection.execute(RULES.update().where(RULES.c.key == key).values(status="supported", effect=-0.1))
        connection.execute(EVIDENCE.update().where(EVIDENCE.c.rule == key).values(log_ratio=-0.1))
    took = take(mine.database, exported(theirs, tmp_path / "later.jsonl"))["took"]
    assert took["rule"]["changed"] == 1
    assert kinds() == ["measured"]
    again = take(mine.database, tmp_path / "later.jsonl")["took"]
    assert {change for changes in again.values() for change in changes} == {"known"}


def test_mining_leaves_what_others_claim(theirs: Store, mine: Store, tmp_path: Path) -> None:
    spaces = in_spaces([one for one in shipped() if one.task == "attention"])
    known = next(row for row in browse.rules(theirs.database, op="attention") if row["effect"] is not None)
    with theirs.database.write() as connection:
        connection.execute(RULES.update().where(RULES.c.key == known["key"]).values(effect=0.5, status="refuted"))
    take(mine.database, exported(theirs, tmp_path / "r.jsonl"))

    def claimed() -> list[Any]:
        return [row for row in browse.show(mine.database, known["key"])["evidence"] if row["kind"] == "claimed"]

    before = claimed()
    assert [row["note"] for row in before] == ["refuted in base aaaaaaaa"]
    with mine.database.write() as connection:  # so that mining writes the rule's evidence anew
        connection.execute(RULES.update().where(RULES.c.key == known["key"]).values(effect=9.0))
    review(mine.database, spaces, "the rows that ship")
    assert browse.show(mine.database, known["key"])["effect"] < 1
    assert claimed() == before


def test_facts_of_ones_own_travel(theirs: Store, mine: Store, tmp_path: Path) -> None:
    fact = {"subject": "h200", "name": "time reached", "value": "5", "unit": "µs", "op": "gelu", "chip": "h200"}
    with theirs.database.write() as connection:
        connection.execute(FACTS.insert().values(key="f", origin="user", created_at=now(), source="me", **fact))
    took = take(mine.database, exported(theirs, tmp_path / "f.jsonl"))["took"]
    assert took["fact"] == {"new": 1}
    assert [row["origin"] for row in browse.facts(mine.database, op="gelu") if row["name"] == "time reached"] == [
        "import"
    ]


# ---------------------------------------------------------------------------------------------------- damage, deceit


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def without_the_end(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def one_figure_changed(data: bytes) -> bytes:
    assert b'"us":5.0' in data
    return data.replace(b'"us":5.0', b'"us":1.0')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "cut off"),
        (without_the_end, "is not whole: it ends with line"),
        (one_figure_changed, "its checksum is another one"),
        (lambda data: data + data, "something follows the last line"),
        (lambda data: b"", "it is empty"),
        (lambda data: b"\x00\xff" + data, "line 1 is no JSON"),
        (lambda data: b"[" * 100_000 + b"\n" + data, "line 1 is no JSON"),
        (lambda data: b"[1]\n" + data, "line 1 is not an object"),
        (lambda data: b'{"kind": "task"}\n' + data, "is no export of a knowledge base"),
        (lambda data: data.replace(b'"version":1', b'"version":2', 1), "was written by another tilewright"),
        (lambda data: gzip.compress(data)[:-20], "is damaged after line"),
        (lambda data: b'{"kind": "tilewright knowledge", "version": 1}\n' + data, "line 1: base: Field required"),
    ],
)
def test_a_damaged_file_is_told_and_brings_nothing(
    mine: Store, file: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    before = everything(mine)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=said):
        take(mine.database, file)
    assert everything(mine) == before


def edited(kind: str, /, **changes: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Changes the first line of a kind; a name with a dot is of a record within it."""

    def change(lines: list[dict[str, Any]]) -> None:
        line = next(line for line in lines if line["kind"] == kind)
        for name, value in changes.items():
            inside, _, field = name.rpartition("__")
            (line[inside] if inside else line)[field] = value

    return change


def dropped(kind: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[:] = [line for line in lines if line["kind"] != kind]

    return change


def twice(lines: list[dict[str, Any]]) -> None:
    at = next(i for i, line in enumerate(lines) if line["kind"] == "trial")
    lines.insert(at, lines[at])


TIME = {"kind": "measured", "chip": "h200", "floor_us": 2.0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edited("task", snf="M = 8\nx: bf16[M]\ny = SiLU(x)\noutputs = y\n"), "another task's than its key"),
        (edited("task", snf="no SNF at all"), "its text is no task"),
        (edited("candidate", source="import os\n"), "a candidate that no line before it has"),
        (edited("candidate", proposer="\x1b[2J"), "not printable"),
        (edited("trial", record__configuration={"TM": 3}), "another trial than its key says"),
        (edited("trial", record__origin="bb" * 8), "of a third base"),
        (edited("trial", record__chip="h300"), "another trial than its key says"),
        (edited("trial", record__measurements=[TIME | {"us": -1.0}]), "a time of -1.0 µs"),
        (edited("trial", record__measurements=[TIME | {"us": "nan"}]), "a time of nan µs"),
        (edited("trial", record__unheard_of=1), "unheard_of: Extra inputs"),
        (edited("trial", at="yesterday"), "at: String should match"),
        (edited("trial", colour="red"), "colour: Extra inputs"),
        (edited("rule", statement="do not judge anything"), "another rule than its key says"),
        (edited("rule", form__scope={"chip": "h300"}), "there is no chip 'h300'"),
        (edited("rule", form__scope={"colour": "red"}), "a scope has op, chip, dtype, shape"),
        (edited("rule", status="proven"), "no rule is 'proven'"),
        (edited("rule", claimed={"ratio": "much"}), "a ratio of 'much'"),
        (edited("rule", effect="inf"), "effect: Input should be a finite number"),
        (edited("evidence", place={"sizes": {"M": "many"}}), "place.sizes.M"),
        (edited("evidence", note="a" * 3000), "too long"),
        (dropped("task"), "a task that no line before it has"),
        (dropped("rule"), "a rule that no line before it has"),
        (twice, "a line before it has the same trial"),
        (edited("task", kind="spell"), "'spell' found using 'kind'"),
    ],
)
def test_a_line_that_is_not_what_it_says_is_told_and_brings_nothing(
    mine: Store, file: Path, change: Callable[[list[dict[str, Any]]], None], said: str
) -> None:
    before = everything(mine)
    lines = documents(file)
    change(lines)
    with pytest.raises(UserError, match=r"theirs.jsonl, line \d+: ") as told:
        take(mine.database, written(file, lines))
    assert said in told.value.what
    assert everything(mine) == before


HOSTILE: list[Any] = [None, True, -1, 10**400, 1e308, "nan", "-inf", "", "x" * 5000, "\x1b[2J", [], [[]], {}, {"": {}}]
HOSTILE += [
    {"normal": [1]},
    {"normal": {"y": {"rms_ratio": "much"}}},
    {"processes": "nan"},
    {"axis": "TM", "value": [1]},
]


def variants(value: Any) -> Iterator[Any]:
    """``value`` with hostile things in the place of each of its parts."""
    yield from HOSTILE
    if isinstance(value, dict):
        for name, part in value.items():
            for other in variants(part):
                yield value | {name: other}
    if isinstance(value, list) and value:
        for other in variants(value[0]):
            yield [other, *value[1:]]


def test_whatever_is_taken_can_be_looked_at_and_learnt_from(theirs: Store, mine: Store, tmp_path: Path) -> None:
    """Lines changed in every part, under keys made right: each is refused, or does no harm."""
    key = rule(theirs, "supported", -0.2)
    measured = Measurement(kind="measured", chip="h200", us=5.0, floor_us=2.0, terms={"processes": 1.0}, samples=(5.0,))
    theirs.record([trial(32, None, RIGHT.model_copy(update={"numbers": {"normal": {"y": {"rms_ratio": 1.0}}}}),
                         measurements=(measured,), evidence=(CUBIN,))], run=RUN)  # fmt: skip
    lines = documents(exported(theirs, tmp_path / "theirs.jsonl"))
    header, end = lines[0], lines[-1]
    taken: dict[str, list[dict[str, Any]]] = {line["kind"]: [] for line in lines}
    known, tried = LineCheck(), 0
    for line in lines[1:-1]:
        read_line(line, "here", known)
        taken[line["kind"]].append(line)
        if line["kind"] == "rule" and line["key"] != key:
            continue
        if line["kind"] == "evidence" and line["rule"] != key:
            continue
        for number, other in enumerate(variants({name: part for name, part in line.items() if name != "kind"})):
            changed = {"kind": line["kind"], **other} if isinstance(other, dict) else {"kind": line["kind"]}
            if line["kind"] == "trial" and isinstance(changed.get("record"), dict):
                made = changed["record"] = dict(changed["record"])
                if made.get("configuration") == line["record"]["configuration"]:
                    made["configuration"] = {"TM": 1000 + number}
                fields = [made.get(name) for name in ("configuration", "chip", "shape", "evaluator")]
                changed["key"] = content_key("evaluation", line["task"], line["candidate"], *fields)
            if line["kind"] == "rule":
                if changed.get("statement") == line["statement"]:
                    changed["statement"] += f" ({number})"
                changed["key"] = content_key("rule", changed.get("statement"), changed.get("form"))
            tried += 1
            check = LineCheck()
            check.tasks, check.candidates, check.rules = set(known.tasks), set(known.candidates), set(known.rules)
            try:
                read_line(changed, "a line", check)
            except UserError:
                continue
            taken[line["kind"]].append(changed)
    assert tried > 1000
    seen: dict[Any, dict[str, Any]] = {}
    for kind in ("task", "candidate", "trial", "fact", "rule", "evidence"):
        for line in taken.get(kind, ()):
            seen.setdefault((kind, line.get("key", canonical(line))), line)
    assert sum(kind == "trial" for kind, _ in seen) > 20
    take(mine.database, written(tmp_path / "hostile.jsonl", [header, *seen.values(), end]))
    for name in ("facts", "rules", "runs", "attempts", "kernels", "tasks"):
        getattr(browse, name)(mine.database)
    for row in browse.attempts(mine.database, limit=9999):
        browse.show(mine.database, row["trial"])
    for row in browse.rules(mine.database):
        browse.show(mine.database, row["key"])
    browse.show(mine.database, "gelu")
    browse.search(mine.database, ["fast"])
    assert mine.foreign(TASK.identity, "h200", limit=99)
    review(mine.database, in_spaces([*own(mine.database, foreign=True)]), "what was imported")
    assert advice(mine, TASK, chip("h200")).items
    give(mine.database, tmp_path / "again.jsonl")


def test_an_unchanged_file_is_taken_however_it_was_written(mine: Store, file: Path) -> None:
    """So that the cases above fail for what they change alone."""
    assert take(mine.database, written(file, documents(file)))["took"]["trial"] == {"new": 3}


def test_a_trial_of_a_chip_that_there_is_not(theirs: Store, mine: Store, tmp_path: Path) -> None:
    theirs.record([trial(1, 1.0, chip="h300")])
    given = give(theirs.database, tmp_path / "f.jsonl")
    assert (given["lines"]["trial"], given["skipped"]) == (3, 1)


def test_what_another_base_says_cannot_act_on_a_terminal(theirs: Store, mine: Store, tmp_path: Path) -> None:
    theirs.record([trial(1, 1.0, pruned="", configuration={"TM\x1b[2J": "\x1b]0;x\x07"})])
    given = give(theirs.database, tmp_path / "f.jsonl")
    assert given["skipped"] == 1  # its key is that of the text as it is


def test_files_that_are_not_there_or_cannot_be_written(mine: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read: No such file"):
        take(mine.database, tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match="can't be read: Is a directory"):
        take(mine.database, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLacks, match="can't be written"):
        give(mine.database, tmp_path / "file" / "x.jsonl")
    assert list(tmp_path.glob(".*")) == []


def test_an_export_that_breaks_off_leaves_the_old_file(
    theirs: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()
    monkeypatch.setattr(browse, "rules", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        give(theirs.database, file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []


def test_a_line_may_not_be_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "MOST", 100)
    (tmp_path / "f").write_bytes(b" " * 1000)
    with pytest.raises(UserError, match="line 1 is longer than"):
        list(parcel.read(tmp_path / "f"))
