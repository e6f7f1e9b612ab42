"""The knowledge base on a real SQLite file: what is recorded is there, once, whatever happens to the process."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from knowledge_base import browse, seed
from knowledge_base.errors import UserError
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Stage, Status, Verdict
from knowledge_base.snf.graph import Graph, Node, Tensor
from knowledge_base.snf.task import Task
from knowledge_base.store import Evaluation, RunRecord, Store, Winner

TASK = Task(
    name="gelu",
    identity="1f" * 32,
    graph=Graph(
        dims=(("M", 64), ("N", 32)),
        inputs=(Tensor("x", "bf16", ("M", "N")),),
        nodes=(Node("y", "gelu", ("x",), (("approximate", "tanh"),), ("M", "N"), "bf16"),),
        outputs=("y",),
    ),
)
CANDIDATE = Candidate(source="AXES = {}\n", task=TASK.identity, proposer="synthesizer")
CORRECT = Verdict(status=Status.CORRECT, stage=Stage.DONE, numbers={"normal": {"worst": float("nan")}})


def modelled(us: float, chip: str = "rtx5070") -> Measurement:
    return Measurement(kind="modelled", chip=chip, us=us, floor_us=1.0, terms={"memory": us})


def evaluation(tm: int = 128, **changes: object) -> Evaluation:
    whole = Evaluation(
        task=TASK.identity,
        candidate=CANDIDATE.digest,
        configuration={"TM": tm},
        chip="rtx5070",
        shape={"M": 64, "N": 32},
        evaluator="v1",
        verdict=CORRECT,
        measurements=(modelled(float(tm)),),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(str(tmp_path / "kb.db")) as opened:
        opened.record_tasks([TASK])
        yield opened


def count(store: Store, table: str) -> int:
    with store.database.read() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() or 0)


def run_record(run_id: str = "r1") -> RunRecord:
    return RunRecord(run_id, "gelu", "rtx5070", "cpu", "synthesizer", "running", options={"seed": 0})


def test_an_evaluation_comes_back_as_it_was_recorded(store: Store) -> None:
    evidence = CompileEvidence(
        arch="sm_120", kernel="ab" * 32, symbol="k", registers=40, stack_bytes=0, spill_bytes=0, shared_bytes=1024
    )
    verdict = Verdict(status=Status.WRONG, stage=Stage.COMPARE, error_class="tail", message="rows 60 to 63", line=7)
    given = evaluation(verdict=verdict, evidence=(evidence,), measurements=(modelled(2.5),), seed=7, seconds=1.5)
    store.record(CANDIDATE, [given])
    (known,) = store.known([given.key, "0" * 64]).values()
    assert known.evaluation == given
    assert known.candidate == CANDIDATE


def test_numbers_that_json_lacks_survive(store: Store) -> None:
    store.record(CANDIDATE, [evaluation()])
    (known,) = store.known([evaluation().key]).values()
    assert known.evaluation.verdict is not None
    assert known.evaluation.verdict.numbers == {"normal": {"worst": "nan"}}


def test_recording_again_changes_nothing(store: Store) -> None:
    store.start_run(run_record())
    for _ in range(3):
        store.record(CANDIDATE, [evaluation(64), evaluation(128)], run="r1", move="fresh")
    assert [count(store, t) for t in ("candidates", "evaluations", "measurements", "attempts")] == [1, 2, 2, 2]


def test_what_tells_evaluations_apart_is_candidate_configuration_chip_shape_and_evaluator(store: Store) -> None:
    other = CANDIDATE.model_copy(update={"source": "AXES = {}  # other\n"})
    different = [
        evaluation(),
        evaluation(64),
        evaluation(chip="h200"),
        evaluation(shape={"M": 65, "N": 32}),
        evaluation(evaluator="v2"),
    ]
    store.record(CANDIDATE, different)
    store.record(other, [evaluation(candidate=other.digest)])
    assert count(store, "evaluations") == 6
    # the order in which axes and dimensions are written has no part in it
    assert evaluation(shape={"N": 32, "M": 64}).key == evaluation().key


def test_a_judgement_completes_a_compiled_configuration_and_nothing_undoes_it(store: Store) -> None:
    compiled = evaluation(verdict=None)
    store.record(CANDIDATE, [compiled])
    store.record(CANDIDATE, [evaluation(measurements=())])
    store.record(CANDIDATE, [compiled])
    (known,) = store.known([compiled.key]).values()
    assert known.evaluation.status == "correct"
    assert known.evaluation.measurements == compiled.measurements
    assert count(store, "evaluations") == 1


def test_a_definite_verdict_replaces_a_timeout(store: Store) -> None:
    late = Verdict(status=Status.TIMEOUT, stage=Stage.TRACE)
    store.record(CANDIDATE, [evaluation(verdict=late)])
    store.record(CANDIDATE, [evaluation()])
    store.record(CANDIDATE, [evaluation(verdict=late)])
    (known,) = store.known([evaluation().key]).values()
    assert known.evaluation.status == "correct"


def test_the_best_known_kernels_come_fastest_first_and_one_configuration_each(store: Store) -> None:
    other = CANDIDATE.model_copy(update={"source": "AXES = {}  # other\n"})
    wrong = Verdict(status=Status.WRONG, stage=Stage.COMPARE)
    store.record(CANDIDATE, [evaluation(64), evaluation(32), evaluation(1, verdict=wrong)])
    store.record(other, [evaluation(16, candidate=other.digest), evaluation(8, candidate=other.digest, chip="h200")])
    assert [(k.candidate.digest, k.best_us) for k in store.best(TASK.identity, "rtx5070")] == [
        (other.digest, 16.0),
        (CANDIDATE.digest, 32.0),
    ]
    # a chip never seen starts from what other chips know
    assert [k.evaluation.chip for k in store.best(TASK.identity, "b200", limit=1)] == ["h200"]


def test_a_measured_time_ranks_before_a_smaller_modelled_one(store: Store) -> None:
    measured = Measurement(kind="measured", chip="rtx5070", us=50.0, floor_us=1.0, samples=(49.0, 51.0))
    store.record(CANDIDATE, [evaluation(64, measurements=(modelled(9.0),)), evaluation(32, measurements=(measured,))])
    assert store.best(TASK.identity, "rtx5070")[0].evaluation.configuration == {"TM": 32}


def test_a_winner_is_one_per_run_task_chip_and_shape(store: Store) -> None:
    store.start_run(run_record())
    store.record(CANDIDATE, [evaluation(64), evaluation(32)], run="r1", move="fresh")
    store.record_winner("r1", Winner(evaluation(64), modelled(64.0), folder="winners/gelu"))
    store.record_winner("r1", Winner(evaluation(32), modelled(32.0), folder="winners/gelu"))
    (kernel,) = browse.kernels(store.database)
    assert (kernel["us"], kernel["configuration"], kernel["kind"]) == (32.0, {"TM": 32}, "modelled")
    store.mark_promoted("r1", TASK.identity)
    assert [k["id"] for k in browse.kernels(store.database, status="promoted")] == [CANDIDATE.digest]


def test_a_run_can_be_taken_over_and_an_unknown_one_names_the_latest(store: Store) -> None:
    store.start_run(run_record())
    store.finish_run("r1", "interrupted", 130, {"why": "Ctrl-C"})
    assert store.resume_run("r1").options == {"seed": 0}
    with pytest.raises(UserError, match="r1"):
        store.resume_run("r2")
    with pytest.raises(UserError, match="exists already"):
        store.start_run(run_record())


def test_the_seed_is_planted_once_and_says_where_each_figure_comes_from(tmp_path: Path) -> None:
    for _ in range(2):
        with Store.open(str(tmp_path / "kb.db")) as store:
            facts, rules = browse.facts(store.database), browse.rules(store.database)
    assert len(facts) == len(seed.facts()) == len({f["key"] for f in facts})
    assert all(f["source"] for f in facts)
    assert {f["chip"] for f in facts} >= {"rtx5070", "rtx5090", "b200", "gb300", "gb10", "h200"}
    assert len(rules) == len(seed.rules()) >= 5
    assert {r["status"] for r in rules} == {"hypothesised"}
    assert all(r["form"]["scope"] and r["evidence"] == 0 for r in rules)


def test_planting_again_keeps_what_was_found_out_about_a_rule(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "kb.db")) as store, store.database.write() as connection:
        connection.exec_driver_sql("UPDATE rules SET status = 'refuted' WHERE op = 'linear_gelu'")
        connection.exec_driver_sql("DELETE FROM facts WHERE subject = 'h200'")
        connection.exec_driver_sql("UPDATE meta SET value = 'an older seed' WHERE name = 'seed'")
    with Store.open(str(tmp_path / "kb.db")) as store:
        assert [r["op"] for r in browse.rules(store.database, status="refuted")] == ["linear_gelu"]
        assert len(browse.facts(store.database)) == len(seed.facts())


WRITER = """
import sys
from knowledge_base.store import Store
sys.path.insert(0, {folder!r})
from test_store import CANDIDATE, TASK, evaluation
with Store.open({url!r}) as store:
    store.record_tasks([TASK])
    i = 0
    while i < {count}:
        candidate = CANDIDATE.model_copy(update={{"source": f"# {name} {{i}}\\n"}})
        store.record(candidate, [evaluation(tm, candidate=candidate.digest) for tm in (16, 32)])
        print(candidate.digest, flush=True)  # reported: from here on it must survive
        i += 1
"""


def writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    code = WRITER.format(folder=str(Path(__file__).parent), url=url, name=name, count=count)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def test_two_processes_write_to_one_new_base_at_once_and_both_finish(tmp_path: Path) -> None:
    url = str(tmp_path / "kb.db")
    writers = [writer(url, name, 40) for name in ("a", "b")]
    reported = [w.communicate(timeout=120)[0].split() for w in writers]
    assert [w.returncode for w in writers] == [0, 0]
    with Store.open(url) as store:
        assert count(store, "evaluations") == 160
        assert count(store, "candidates") == len(set(reported[0] + reported[1])) == 80


def test_a_kill_loses_nothing_that_was_reported_and_stores_nothing_half(tmp_path: Path) -> None:
    url = str(tmp_path / "kb.db")
    process = writer(url, "a", 1_000_000)
    assert process.stdout is not None
    reported = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    reported += [line for line in process.stdout.read().split() if len(line) == 64]  # the last may be cut off
    process.wait()
    with Store.open(url) as store:
        with store.database.read() as connection:
            stored = {row[0] for row in connection.exec_driver_sql("SELECT digest FROM candidates")}
            pairs = connection.exec_driver_sql(
                "SELECT count(*) FROM evaluations GROUP BY candidate_id HAVING count(*) != 2"
            ).all()
        assert all(len(digest) == 64 for digest in reported)
        assert set(reported) <= stored
        assert pairs == []
        assert count(store, "measurements") == count(store, "evaluations")


def test_threads_share_a_store(store: Store) -> None:
    def work(start: int) -> None:
        for i in range(start, start + 20):
            store.record(CANDIDATE, [evaluation(i)])
            assert store.known([evaluation(i).key])

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(store, "evaluations") == 40


def test_a_base_in_memory_works_across_threads() -> None:
    with Store.open("sqlite://") as store:
        thread = threading.Thread(target=store.record_tasks, args=([TASK],))
        thread.start()
        thread.join()
        assert count(store, "tasks") == 1


def test_browsing_filters_by_op_gpu_and_status(store: Store) -> None:
    store.record(CANDIDATE, [evaluation(64), evaluation(64, chip="h200")])
    store.record(CANDIDATE, [evaluation(8, verdict=Verdict(status=Status.UNSAFE, stage=Stage.EMULATE))])
    assert len(browse.attempts(store.database, op="gelu")) == 3
    assert browse.attempts(store.database, op="softmax") == []
    assert [a["chip"] for a in browse.attempts(store.database, gpu="h200")] == ["h200"]
    (unsafe,) = browse.attempts(store.database, status="unsafe")
    assert (unsafe["configuration"], unsafe["us"], unsafe["kind"]) == ({"TM": 8}, 8.0, "modelled")
    (task,) = browse.tasks(store.database)
    assert (task["evaluations"], task["correct"]) == (3, 2)


def test_a_measured_time_hides_a_modelled_one_in_attempts(store: Store) -> None:
    measured = Measurement(kind="measured", chip="rtx5070", us=80.0, floor_us=1.0, samples=(80.0,))
    store.record(CANDIDATE, [evaluation(64, measurements=(modelled(64.0), measured))])
    (attempt,) = browse.attempts(store.database)
    assert (attempt["us"], attempt["kind"]) == (80.0, "measured")


def test_show_takes_a_prefix_of_any_id_and_refuses_an_ambiguous_one(store: Store) -> None:
    store.start_run(run_record("20260101-gelu-aaaa"))
    store.record(CANDIDATE, [evaluation(64)], run="20260101-gelu-aaaa")
    assert browse.show(store.database, CANDIDATE.digest[:10])["source"] == CANDIDATE.source
    assert browse.show(store.database, evaluation(64).key[:12])["measurements"][0]["us"] == 64.0
    assert browse.show(store.database, "gelu")["is"] == "task"
    assert browse.show(store.database, "20260101")["attempts"] == 1
    with pytest.raises(UserError, match="begins several"):
        browse.show(store.database, "")
    with pytest.raises(UserError, match="nothing has an id"):
        browse.show(store.database, "zzzz")


def test_rows_are_json(store: Store) -> None:
    store.start_run(run_record())
    store.record(CANDIDATE, [evaluation(64)], run="r1")
    store.record_winner("r1", Winner(evaluation(64), modelled(64.0)))
    listings = (browse.facts, browse.rules, browse.kernels, browse.runs, browse.attempts, browse.tasks)
    for rows in (listing(store.database) for listing in listings):
        assert rows
        json.dumps(rows, allow_nan=False)


def test_queries_use_an_index(store: Store) -> None:
    with sqlite3.connect(store.database.engine.url.database or "") as connection:
        for query in (
            "SELECT * FROM evaluations WHERE key = 'x'",
            "SELECT * FROM evaluations WHERE task_id = 1 AND chip = 'h200' AND status = 'correct'",
            "SELECT * FROM evaluations WHERE status = 'wrong' ORDER BY id DESC LIMIT 50",
            "SELECT task_id, count(*) FROM evaluations GROUP BY task_id",
            "SELECT * FROM measurements WHERE evaluation_id = 3",
            "SELECT * FROM winners WHERE task_id = 1 AND chip = 'h200' ORDER BY us",
            "SELECT * FROM candidates WHERE digest >= 'ab' AND digest < 'ac'",
            "SELECT * FROM runs ORDER BY started_at DESC LIMIT 50",
        ):
            plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))
            assert "INDEX" in plan, (query, plan)


def test_opening_a_current_base_is_quick_and_leaves_alembic_alone(store: Store) -> None:
    url = store.database.engine.url.database
    code = f"""
import sys, time
from knowledge_base.store import Store
import knowledge_base.tables
start = time.perf_counter()
Store.open({url!r}).close()
assert "alembic" not in sys.modules
print(time.perf_counter() - start)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.3  # takes 0.02
