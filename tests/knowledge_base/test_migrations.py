"""Bases of earlier schemas: what they held is there after the migration, and is shown in the order in which it came."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from knowledge_base import browse
from knowledge_base.content import content_key
from knowledge_base.store import _RECORDS, Store, _rows
from knowledge_base.tables import CANDIDATES, TALLIES, TASKS, TRIALS

TASK, OTHER, SOURCE = "1f" * 32, "2f" * 32, "AXES = {}\n"
DIGEST = hashlib.sha256(SOURCE.encode()).hexdigest()
SHAPE = {"M": 64, "N": 64}
SECOND = "2026-11-21T10:00:00"
FIGURES = {
    "normal": {"y": {"rms_ratio": 1.0, "sizes": [{"M": 65, "N": 64}, {"M": 7, "N": 128}]}},
    "zeros": {"y": {"rms_ratio": None, "sizes": [{"M": 65, "N": 64}]}},
}
CORRECT = {
    "status": "correct",
    "stage": "done",
    "error_class": "",
    "message": "",
    "hint": "",
    "line": None,
    "source": "",
}
CORRECT |= {"numbers": FIGURES, "findings": [], "evidence": []}
WRONG = CORRECT | {"status": "wrong", "stage": "compare", "error_class": "tail", "message": "y[3] is 1", "numbers": {}}
WRONG |= {"numbers": {"output": "y", "index": [3], "sizes": {"M": 65}}}
LIMITED = CORRECT | {"message": "correct where feasible; launch refuses M=65, N=7; M=1, N=1"}
SPILLS = {"arch": "sm_120", "kernel": "ab" * 32, "symbol": "k", "registers": 255, "stack_bytes": 8, "spill_bytes": 8}
SPILLS |= {"shared_bytes": 1024}
OTHER_KERNEL = SPILLS | {"kernel": "cd" * 32, "spill_bytes": 0}


def key(number: int) -> str:
    return content_key("evaluation", TASK, DIGEST, {"TM": number}, "rtx5070", SHAPE, "v1")


def evaluation(number: int, verdict: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    verdict_columns = ("status", "stage", "error_class", "message")
    said = {name: verdict[name] for name in verdict_columns} if verdict else dict.fromkeys(verdict_columns, "")
    row = {"id": number, "key": key(number), "task_id": 2, "candidate_id": 5, "configuration": {"TM": number}}
    row |= {"chip": "rtx5070", "shape": SHAPE, "evaluator": "v1", "verdict": verdict, "evidence": []}
    row |= {**said, "seed": 7, "seconds": 1.5, "run_id": "r1", "created_at": f"{SECOND}.000Z"}
    return row | ({} if verdict else {"status": "compiled"}) | changes


def measurement(number: int, evaluation: int, kind: str, us: float, **changes: Any) -> dict[str, Any]:
    row = {"id": number, "key": f"m{number}", "evaluation_id": evaluation, "kind": kind, "chip": "rtx5070", "us": us}
    row |= {
        "floor_us": 1.0,
        "status": "stable",
        "terms": {"memory": us},
        "samples": [us],
        "context": {},
        "run_id": "r1",
    }
    return row | {"created_at": f"{SECOND}.000Z"} | changes


AT = {"created_at": f"{SECOND}.000Z"}
ROWS: dict[str, list[dict[str, Any]]] = {
    "runs": [
        {"id": "r1", "target": "gelu", "chip": "rtx5070", "device": "cpu", "proposer": "synthesizer", "status": "done",
         "started_at": SECOND, "ended_at": SECOND, "host": "h", "pid": 1, "exit_code": 0, "options": {"seed": 0},
         "versions": {}, "summary": {"status": "done"}},
    ],
    "tasks": [
        {"id": 1, "key": OTHER, "name": "add", "ops": ",add,", "dtype": "bf16", "precision": "ieee", "snf": "…", **AT},
        {"id": 2, "key": TASK, "name": "gelu", "ops": ",gelu,", "dtype": "bf16", "precision": "ieee", "snf": "…", **AT},
    ],
    "candidates": [
        {"id": 5, "key": content_key("candidate", TASK, DIGEST), "digest": DIGEST, "task_id": 2, "source": SOURCE,
         "parent": "", "proposer": "manual", "prompt": "", "note": "a note", "run_id": "r1", **AT},
    ],
    # All in the same millisecond: only the integer ids of the first schema know their order.
    "evaluations": [
        evaluation(11, CORRECT | {"evidence": [SPILLS]}),
        evaluation(12, LIMITED | {"evidence": [SPILLS, OTHER_KERNEL]}, seconds=2.5, evidence=[SPILLS]),
        evaluation(13, WRONG),
        evaluation(14, None, evidence=[SPILLS]),
    ],
    "measurements": [
        measurement(1, 11, "modelled", 5.0),
        measurement(2, 11, "measured", 9.0),
        measurement(3, 12, "modelled", 4.0),
        measurement(4, 14, "modelled", 3.0),
        measurement(5, 13, "modelled", 2.0, status="quarantined"),
    ],
    "attempts": [
        {"id": n, "key": f"a{n}", "run_id": "r1", "task_id": 2, "evaluation_id": e, "move": move, "reused": False, **AT}
        for n, e, move in ((1, 14, "search"), (2, 13, "fresh"), (3, 11, "fresh"))
    ],
    "winners": [
        {"id": n, "key": f"w{n}", "run_id": "r1", "task_id": 2, "candidate_id": 5, "evaluation_id": e,
         "chip": "rtx5070", "shape": {"M": 64, "N": 64}, "kind": kind, "us": us, "floor_us": 1.0, "general": general,
         "guards": [], "folder": "winners/gelu", "promoted_at": promoted, **AT}
        for n, e, kind, us, general, promoted in (
            (1, 11, "measured", 9.0, True, SECOND), (2, 12, "modelled", 4.0, False, ""),
        )
    ],
    "rules": [
        {"id": 3, "key": "u3", "statement": "persistent is faster", "status": "supported", "op": "linear", "chip": "",
         "form": {}, "claimed": {}, "effect": -0.1, "effect_low": -0.2, "effect_high": -0.05, "source": "mine",
         "origin": "user", "superseded_by": "", "created_at": SECOND, "updated_at": SECOND},
    ],
    "rule_evidence": [
        {"id": 1, "key": "e1", "rule_id": 3, "kind": "measured", "with_id": 11, "without_id": None, "log_ratio": -0.1,
         "note": "", **AT},
    ],
    "llm_calls": [
        {"id": 1, "key": "l1", "run_id": "r1", "task_id": 2, "model": "m", "prompt": "p", "request": {"a": 1},
         "response": {}, "status": "ok", "tokens_in": 1, "tokens_out": 2, "cost_usd": 0.5, "seconds": 1.0, **AT},
    ],
}  # fmt: skip


def base_of_the_first_schema(path: Path) -> None:
    import sqlalchemy as sa
    from alembic import command
    from alembic.config import Config

    import knowledge_base.migrations as migrations

    engine = sa.create_engine(f"sqlite:///{path}")
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        tables = sa.MetaData()
        tables.reflect(connection)
        for name, rows in ROWS.items():
            connection.execute(tables.tables[name].insert(), rows)
    engine.dispose()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    base_of_the_first_schema(tmp_path / "kb.db")
    with Store.open(str(tmp_path / "kb.db")) as opened:
        yield opened


def test_a_trial_of_the_first_schema_is_whole(store: Store) -> None:
    with store.database.read() as connection:
        trials = {t.configuration["TM"]: t for t, _ in _rows(connection, _RECORDS.where(TRIALS.c.evaluator == "v1"))}
    assert {tm: trial.key for tm, trial in trials.items()} == {tm: key(tm) for tm in (11, 12, 13, 14)}
    assert {tm: trial.time and trial.time.us for tm, trial in trials.items()} == {11: 9.0, 12: 4.0, 13: None, 14: 3.0}
    correct = trials[11]
    assert (correct.time.us, correct.general, correct.seed, correct.seconds) == (9.0, True, 7, 1.5)
    assert correct.judged == ({"M": 65, "N": 64}, {"M": 7, "N": 128})
    assert [(m.kind, m.us, m.samples) for m in correct.measurements] == [
        ("modelled", 5.0, (5.0,)),
        ("measured", 9.0, (9.0,)),
    ]
    assert (correct.candidate.source, correct.candidate.note) == (SOURCE, "a note")
    # Its verdict has no seal: it is shown, and not relied on.
    known = store.of_candidate(TASK, DIGEST, "rtx5070", SHAPE, "v1")
    assert {t.key for t in known} == {t.key for t in trials.values()}
    assert [t for t in known if t.verdict is not None] == []


def test_what_was_shown_is_shown_in_the_same_order(store: Store) -> None:
    base = store.database
    assert [a["configuration"]["TM"] for a in browse.attempts(base)] == [14, 13, 12, 11]
    assert [a["status"] for a in browse.attempts(base)] == ["compiled", "wrong", "correct", "correct"]
    assert [(a["kind"], a["us"]) for a in browse.attempts(base)] == [
        ("modelled", 3.0), (None, None), ("modelled", 4.0), ("measured", 9.0),
    ]  # fmt: skip
    assert [(a["move"], a["error_class"]) for a in browse.attempts(base, run="r1")] == [
        ("search", ""), ("fresh", "tail"), ("fresh", ""),
    ]  # fmt: skip
    (kernel,) = browse.kernels(base)  # of one candidate at one shape the measured one
    assert (kernel["us"], kernel["floor_us"], kernel["folder"]) == (9.0, 1.0, "winners/gelu")
    assert len(browse.kernels(base, status="promoted")) == 1
    winners = browse.show(base, "gelu")["winners"]
    assert [(w["us"], w["general"]) for w in winners] == [(9.0, True), (4.0, False)]  # measured, then modelled
    task = next(t for t in browse.tasks(base) if t["task"] == "gelu")
    assert (task["trials"], task["correct"]) == (4, 2)
    assert browse.show(base, "r1")["attempts"] == 3
    assert browse.show(base, key(12))["infeasible"] == [{"M": 65, "N": 7}, {"M": 1, "N": 1}]
    shown = {tm: browse.show(base, key(tm)) for tm in (11, 12, 13, 14)}
    evidence = {tm: [e["kernel"] for e in row["evidence"]] for tm, row in shown.items()}
    elsewhere = {tm: [e["kernel"] for e in row["evidence_elsewhere"]] for tm, row in shown.items()}
    spills, other = SPILLS["kernel"], OTHER_KERNEL["kernel"]
    assert evidence == {11: [spills], 12: [spills], 13: [], 14: [spills]}  # of verdict and trial, once
    assert elsewhere == {11: [], 12: [other], 13: [], 14: []}
    assert "evidence" not in browse.show(base, key(12))["verdict"]
    rule = next(r for r in browse.rules(base) if r["key"] == "u3")
    assert (rule["evidence"], rule["status"], rule["effect"]) == (1, "supported", -0.1)
    assert browse.show(base, "u3")["evidence"][0]["with_trial"] == key(11)


def test_trials_are_counted_by_shape_and_standing(store: Store) -> None:
    """As the store counts: what it records of the same trials in a new base is the same."""
    with store.database.read() as connection:
        trials = [trial for trial, _ in _rows(connection, _RECORDS)]
    with Store.open("sqlite://") as anew:
        with store.database.read() as old, anew.database.write() as new:
            for table in (TASKS, CANDIDATES):
                new.execute(table.insert(), [dict(row) for row in old.execute(table.select()).mappings()])
        anew.record(trials)
        counts, columns = [], []
        for base in (store.database, anew.database):
            with base.read() as connection:
                counts.append(sorted(connection.execute(TALLIES.select()).all()))
                same = select(TRIALS.c.key, TRIALS.c.shape, TRIALS.c.standing).order_by(TRIALS.c.key)
                columns.append(connection.execute(same).all())
    assert counts[0] == counts[1] != []
    assert columns[0] == columns[1]
    assert {row.standing for row in columns[0]} == {"spills", "failed"}


def test_the_table_of_model_calls_is_made_anew_and_foreign_keys_hold(store: Store) -> None:
    """No version wrote that table before its last form."""
    with store.database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM llm_calls").scalar() == 0
        assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []


def test_a_migrated_base_goes_on(store: Store) -> None:
    (known,) = store.best(TASK, "rtx5070")
    store.record([known.fuller(evaluator="v2", verdict=None)], run="r2", move="search")
    assert browse.attempts(store.database)[0]["trial"] == known.fuller(evaluator="v2").key
    assert len(browse.attempts(store.database)) == 5
