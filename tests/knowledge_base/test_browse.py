"""What `agent kb show` has to say: standings by chip and shape, lineage, learning curves; and that counts are right."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from knowledge_base import browse
from knowledge_base.errors import UserError
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf import everyday
from knowledge_base.store import RunRecord, Store
from knowledge_base.tables import TALLIES, TRIALS

pytestmark = pytest.mark.usefixtures("copied_bases")

TASK = everyday("gelu")
CANDIDATE = Candidate(source="AXES = {}\n", task=TASK.identity, proposer="synthesizer")
RIGHT = Verdict(status=Status.CORRECT, stage=Stage.DONE)


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(str(tmp_path / "kb.db")) as opened:
        opened.record_tasks([TASK])
        yield opened


def time(us: float, kind: Any = "modelled", **terms: float) -> Measurement:
    return Measurement(kind=kind, chip="h200", us=us, floor_us=2.0, terms=terms)


def cubin(**changes: Any) -> CompileEvidence:
    said = {"arch": "sm_90", "kernel": "ab" * 32, "symbol": "k", "registers": 90, "stack_bytes": 0, "spill_bytes": 0}
    return CompileEvidence(**{**said, "shared_bytes": 1024, "mma": "wgmma", "tma": True, **changes})


def trial(tm: int, us: float | None, verdict: Verdict | None = None, **changes: Any) -> Trial:
    whole = Trial(
        candidate=CANDIDATE, configuration={"TM": tm}, chip="h200", shape={"M": 64, "N": 32}, evaluator="v1",
        verdict=verdict, measurements=(time(us),) if us is not None else (), evidence=(cubin(),) if us else (),
    )  # fmt: skip
    return whole.fuller(**changes)


def test_the_name_of_a_task_means_the_task_not_the_target_that_was_made_of_it(store: Store) -> None:
    whole = dataclasses.replace(TASK, identity="ab" * 32)
    store.record_tasks([whole])
    made = Candidate(source="{}", task=whole.identity, proposer="composition")
    store.record([trial(1, 2.0, RIGHT, candidate=made)])
    assert browse.show(store.database, "gelu")["identity"] == TASK.identity
    assert browse.show(store.database, whole.identity)["identity"] == whole.identity
    store.record_tasks([dataclasses.replace(TASK, identity="cd" * 32)])
    with pytest.raises(UserError, match="'gelu' names several things"):
        browse.show(store.database, "gelu")


def failed(status: Status, error_class: str, message: str) -> Verdict:
    return Verdict(status=status, stage=Stage.COMPARE, error_class=error_class, message=message)


def test_tallies_are_what_counting_the_trials_gives(store: Store) -> None:
    """However trials become fuller: a time, then a verdict, again, another's verdict for one that a load explained."""
    rng = random.Random(0)
    verdicts = [None, RIGHT, failed(Status.WRONG, "tail", "y[3] is 1"), failed(Status.TIMEOUT, "timeout", "60 s"),
                failed(Status.INFEASIBLE, "", "ValueError")]  # fmt: skip
    for _ in range(150):
        made = []
        for _ in range(rng.choice((1, 3))):
            one = trial(
                rng.randrange(8), rng.choice((None, 3.0)), rng.choice(verdicts), chip=rng.choice(("h200", "b200"))
            )
            made.append(one if one.measurements or one.verdict else one.fuller(pruned="by its price"))
        store.record(made)
    t, y = TRIALS.c, TALLIES.c
    with store.database.read() as connection:
        place = (t.task, t.chip, t.shape, t.evaluator, t.status, t.standing)
        counted = {
            tuple(row[:-1]): row[-1] for row in connection.execute(select(*place, func.count()).group_by(*place))
        }
        kept = connection.execute(select(y.task, y.chip, y.shape, y.evaluator, y.status, y.standing, y.trials)).all()
    assert {tuple(row[:-1]): row[-1] for row in kept if row[-1]} == counted
    assert len(kept) > len(counted) > 4  # of some kinds all became others
    (task,) = (row for row in browse.tasks(store.database) if row["task"] == "gelu")
    assert task["trials"] == sum(counted.values())
    (here,) = (row for row in browse.tasks(store.database, gpu="h200") if row["task"] == "gelu")
    assert here["trials"] == sum(n for place, n in counted.items() if place[1] == "h200")


def test_a_task_says_what_won_and_what_lost_to_it_and_why(store: Store) -> None:
    best = trial(1, None, RIGHT, measurements=(time(10.0, occupancy=2, waves=1.0, l2=1.0),), evidence=(cubin(),))
    spills = trial(2, None, measurements=(time(15.0, occupancy=2, waves=1.0, l2=1.1, spill=4.0),),
                   evidence=(cubin(spill_bytes=48),))  # fmt: skip
    plain = trial(3, None, measurements=(time(20.0, occupancy=1, waves=2.1, l2=9.0),),
                  evidence=(cubin(tma=False, mma="mma.sync"),))  # fmt: skip
    wrong = [trial(tm, 9.0, failed(Status.WRONG, "tail", f"y[{tm}] is 1")) for tm in (4, 5, 6)]
    refused = trial(7, None, failed(Status.BUILD_ERROR, "dtype", "no such dtype"))
    pruned = trial(8, None, pruned="an ideal cubin would take 33.5 µs")
    store.record([plain, best, *wrong, spills, refused, pruned])
    page = browse.show(store.database, "gelu")
    (place,) = page["places"]
    assert (place["chip"], place["shape"], place["kind"]) == ("h200", {"M": 64, "N": 32}, "modelled")
    assert place["trials"] == {"ranked": 2, "spills": 1, "pruned": 1, "failed": 4}
    assert [(one["configuration"]["TM"], one["slower"]) for one in place["best"]] == [(1, 1.0), (2, 1.5), (3, 2.0)]
    assert place["best"][0]["why"] == []
    assert place["best"][1]["why"] == ["spills 48 B a thread", "spill ~+4 µs"]
    assert place["best"][2]["why"] == ["no TMA", "mma.sync, not wgmma", "1 block an SM, not 2",
                                       "2.10 waves, the last of them not full", "l2 ~+8 µs"]  # fmt: skip
    lost = {(one["standing"], one["error_class"]): one for one in place["lost"]}
    assert set(lost) == {("spills", ""), ("pruned", ""), ("failed", "tail"), ("failed", "dtype")}
    tail = lost["failed", "tail"]
    assert (tail["of_these"], tail["looked_at"], tail["trials"]) == (3, 4, 4)
    assert tail["reason"].startswith("y[")
    assert browse.show(store.database, tail["trial"])["status"] == "wrong"
    assert {row["status"]: row["count"] for row in page["trials"]}["wrong"] == 3
    json.dumps(page, allow_nan=False)


def test_measured_times_stand_alone_and_modelled_ones_of_the_latest_evaluator(store: Store) -> None:
    store.record([trial(1, 5.0), trial(2, 6.0)])
    store.record([trial(1, 50.0, evaluator="v2"), trial(3, 40.0, evaluator="v2")])
    (place,) = browse.show(store.database, "gelu")["places"]
    assert [one["us"] for one in place["best"]] == [40.0, 50.0]  # models of different versions do not compare
    assert (place["trials"], place["older_trials"]) == ({"ranked": 2}, 2)
    store.record([trial(2, None, RIGHT, measurements=(time(70.0, "measured"),), evidence=(cubin(),))])
    (place,) = browse.show(store.database, "gelu")["places"]
    assert [(one["us"], one["kind"]) for one in place["best"]] == [(70.0, "measured")]
    assert (place["trials"], place["older_trials"]) == ({"ranked": 4}, 0)


def test_a_correct_one_is_among_the_best_even_if_many_that_nobody_judged_are_faster(store: Store) -> None:
    store.record([trial(tm, 10.0 + tm) for tm in range(20)] + [trial(99, 99.0, RIGHT)])
    (place,) = browse.show(store.database, "gelu")["places"]
    assert [one["configuration"]["TM"] for one in place["best"]] == [*range(7), 99]
    assert place["best"][0]["slower"] < place["best"][-1]["slower"] == 1.0  # beside the one that is right


def test_a_chip_can_be_asked_for_and_places_beyond_the_first_are_counted(store: Store) -> None:
    store.record([trial(1, 5.0, chip="b200", shape={"M": m}, measurements=()) for m in range(1, 9)] + [trial(1, 5.0)])
    page = browse.show(store.database, "gelu")
    assert (len(page["places"]), page["more_places"]) == (6, 3)
    here = browse.show(store.database, "gelu", gpu="h200")
    assert ([place["chip"] for place in here["places"]], here["more_places"]) == (["h200"], 0)


def test_a_kernel_says_what_it_was_made_from_and_what_changed(store: Store) -> None:
    first = Candidate(source="a\nb\nc\n", task=TASK.identity, proposer="openai", note="plain")
    second = Candidate(source="a\nB\nc\n", task=TASK.identity, proposer="openai", parent=first.digest, note="larger")
    third = Candidate(
        source="a\nB\nC\n", task=TASK.identity, proposer="openai", parent=second.digest, note="persistent"
    )
    other = Candidate(source="x\n", task=TASK.identity, proposer="openai", parent=first.digest, note="a dead end")
    wrong = failed(Status.WRONG, "tail", "y[3] is 1")
    tried = [(first, RIGHT, 30.0), (second, RIGHT, 20.0), (other, wrong, 9.0), (third, RIGHT, 10.0)]
    store.record([trial(1, us, verdict, candidate=one) for one, verdict, us in tried])
    page = browse.show(store.database, third.digest[:10])
    assert [(row["kernel"], row["depth"], row["status"], row["us"], row["here"]) for row in page["lineage"]] == [
        (first.digest, 0, "correct", 30.0, False),
        (second.digest, 1, "correct", 20.0, False),
        (third.digest, 2, "correct", 10.0, True),
        (other.digest, 1, "wrong", 9.0, False),
    ]  # fmt: skip
    assert [(step["from"], step["to"], step["note"]) for step in page["steps"]] == [
        (first.digest, second.digest, "larger"), (second.digest, third.digest, "persistent"),
    ]  # fmt: skip
    assert [line for line in page["steps"][1]["diff"].splitlines() if line[:1] in "+-"][2:] == ["-c", "+C"]
    alone = browse.show(store.database, other.digest[:10])
    assert [row["kernel"] for row in alone["lineage"]] == [row["kernel"] for row in page["lineage"]]


def test_parents_that_are_not_there_or_go_in_a_circle_end_a_lineage(store: Store) -> None:
    """A digest can't be its own ancestor's; a damaged base can say so."""
    one = Candidate(source="1\n", task=TASK.identity, parent="0" * 64)
    two = Candidate(source="2\n", task=TASK.identity, parent=one.digest)
    store.record([trial(1, 5.0, candidate=one), trial(1, 6.0, candidate=two)])
    assert [row["depth"] for row in browse.show(store.database, two.digest)["lineage"]] == [0, 1]
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE candidates SET parent = '{two.digest}' WHERE digest = '{one.digest}'")
    assert {row["kernel"] for row in browse.show(store.database, two.digest)["lineage"]} <= {one.digest, two.digest}


def test_a_run_says_how_it_came_to_its_times(store: Store) -> None:
    store.start_run(RunRecord("r1", "gelu", "h200", "cpu", "synthesizer", "running"))
    bad = Candidate(source="bad\n", task=TASK.identity)
    tried = [
        trial(1, 9.0),
        trial(2, None, pruned="its price"),
        trial(3, 8.5),
        trial(1, 3.0, candidate=bad),
        trial(4, 8.7),
    ]
    for one in tried:
        store.record([one], run="r1", move="search")
    assert browse.curves(store.database, "r1")[0]["points"] == []  # nothing that is right yet
    store.record([trial(3, 8.5, RIGHT)], run="r1", move="fresh")
    store.record([trial(1, 3.0, failed(Status.WRONG, "tail", "y"), candidate=bad)], run="r1", move="fresh")
    store.record([trial(5, 7.0)], run="r1", move="search")
    (curve,) = browse.curves(store.database, "r1")
    assert (curve["task"], curve["kind"], curve["shape"]) == ("gelu", "modelled", {"M": 64, "N": 32})
    assert (curve["evaluations"], curve["points"]) == (5, [(1, 9.0), (2, 8.5), (5, 7.0)])
    store.record([trial(4, None, RIGHT, measurements=(time(40.0, "measured"),))], run="r1", move="fresh")
    (curve,) = browse.show(store.database, "r1")["curves"]
    assert (curve["kind"], curve["points"]) == ("measured", [(4, 40.0)])  # a clock's times alone, once there are any


def test_show_takes_names_before_ids_and_says_which_of_several(store: Store) -> None:
    assert browse.show(store.database, "H200")["is"] == "chip"
    assert browse.show(store.database, "b200")["chip"] == "b200"  # which might begin an id, too
    store.record_tasks([everyday("add")])
    assert browse.show(store.database, "add")["task"] == "add"
    twin = dataclasses.replace(everyday("layernorm"), name="gelu")
    store.record_tasks([twin])
    with pytest.raises(UserError, match=r"'gelu' names several things: task \w{12} \(gelu in bf16, ieee\), task"):
        browse.show(store.database, "gelu")
    assert browse.show(store.database, twin.identity[:12])["identity"] == twin.identity
    with pytest.raises(UserError) as raised:
        browse.show(store.database, "layernrm")
    assert "agent kb" in raised.value.mend


def test_a_chip_says_what_is_known_of_it(store: Store) -> None:
    store.start_run(RunRecord("r1", "gelu", "h200", "cpu", "synthesizer", "running"))
    won = trial(1, 5.0, RIGHT)
    store.record([won], run="r1")
    store.record_winner("r1", won)
    page = browse.show(store.database, "h200")
    assert {"sm_count", "l2_bytes"} <= {fact["name"] for fact in page["facts"]}
    assert {rule["chip"] for rule in page["rules"]} == {"h200"}
    assert [(task["task"], task["best"][0]["us"]) for task in page["tasks"]] == [("gelu", 5.0)]
    assert browse.show(store.database, "b200")["tasks"] == []
