"""The knowledge base on a real SQLite file: what is recorded is there, once, whatever happens to the process."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from knowledge_base import browse, seed
from knowledge_base.errors import UserError
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf.graph import Graph, Node, Tensor
from knowledge_base.snf.task import Task
from knowledge_base.store import RunRecord, Store

pytestmark = pytest.mark.usefixtures("copied_bases")  # opening, migrating and seeding have tests of their own

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


def trial(tm: int = 128, **changes: object) -> Trial:
    whole = Trial(
        candidate=CANDIDATE,
        configuration={"TM": tm},
        chip="rtx5070",
        shape={"M": 64, "N": 32},
        evaluator="v1",
        verdict=CORRECT,
        measurements=(modelled(float(tm)),),
    )
    return whole.fuller(**changes)


def stored(store: Store, wanted: Trial) -> Trial:
    """The one stored trial with the key of ``wanted``."""
    known = store.of_candidate(wanted.task, wanted.candidate.digest, wanted.chip, wanted.shape, wanted.evaluator)
    (found,) = [t for t in known if t.key == wanted.key]
    return found


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


def test_a_trial_comes_back_as_it_was_recorded(store: Store) -> None:
    evidence = CompileEvidence(
        arch="sm_120", kernel="ab" * 32, symbol="k", registers=40, stack_bytes=0, spill_bytes=0, shared_bytes=1024
    )
    verdict = Verdict(status=Status.WRONG, stage=Stage.COMPARE, error_class="tail", message="rows 60 to 63", line=7)
    sizes = ({"M": 65, "N": 7}, {"M": 1, "N": 1})
    given = trial(
        verdict=verdict, evidence=(evidence,), measurements=(modelled(2.5),), plans=("cd" * 32,), judged=sizes,
        infeasible=sizes[:1], seed=7, seconds=1.5,
    )  # fmt: skip
    store.record([given])
    assert stored(store, given) == given


def test_numbers_that_json_lacks_survive(store: Store) -> None:
    store.record([trial()])
    known = stored(store, trial())
    assert known.verdict is not None
    assert known.verdict.numbers == {"normal": {"worst": "nan"}}


def test_recording_again_changes_nothing(store: Store) -> None:
    store.start_run(run_record())
    for _ in range(3):
        store.record([trial(64), trial(128)], run="r1", move="fresh", artifacts={"ab" * 32: b"plan"})
    assert [count(store, t) for t in ("candidates", "trials", "attempts", "artifacts")] == [1, 2, 2, 1]
    assert len(stored(store, trial(64)).measurements) == 1


def test_what_tells_trials_apart_is_candidate_configuration_chip_shape_and_evaluator(store: Store) -> None:
    other = CANDIDATE.model_copy(update={"source": "AXES = {}  # other\n"})
    different = [
        trial(),
        trial(64),
        trial(chip="h200"),
        trial(shape={"M": 65, "N": 32}),
        trial(evaluator="v2"),
        trial(candidate=other),
    ]
    store.record(different)
    assert count(store, "trials") == 6
    # the order in which axes and dimensions are written has no part in it
    assert trial(shape={"N": 32, "M": 64}).key == trial().key


def test_a_judgement_completes_a_compiled_configuration_and_nothing_undoes_it(store: Store) -> None:
    compiled = trial(verdict=None, plans=("ab" * 32,))
    store.record([compiled])
    store.record([trial(measurements=(), judged=({"M": 65, "N": 7},))])
    store.record([compiled])
    known = stored(store, compiled)
    assert known.status == "correct"
    assert known.judged == ({"M": 65, "N": 7},)
    assert known.measurements == compiled.measurements
    assert known.plans == compiled.plans
    assert count(store, "trials") == 1


def test_a_definite_verdict_replaces_a_timeout(store: Store) -> None:
    late = Verdict(status=Status.TIMEOUT, stage=Stage.TRACE)
    store.record([trial(verdict=late)])
    store.record([trial()])
    store.record([trial(verdict=late)])
    assert stored(store, trial()).status == "correct"


def test_one_model_gives_one_time_and_a_gpu_gives_new_samples_every_time(store: Store) -> None:
    def measured(us: float) -> Measurement:
        return Measurement(kind="measured", chip="rtx5070", us=us, floor_us=1.0, samples=(us,))

    store.record([trial(64)])
    store.record([trial(64, measurements=(modelled(63.0), measured(70.0)))])
    store.record([trial(64, measurements=(measured(70.0), measured(69.0)))])
    known = stored(store, trial(64))
    assert [(m.kind, m.us) for m in known.measurements] == [("modelled", 64.0), ("measured", 70.0), ("measured", 69.0)]
    assert known.time.us == 69.0


def test_the_time_of_another_plan_than_the_judged_one_is_not_believed(store: Store) -> None:
    store.record([trial(64, plans=("ab" * 32, "cd" * 32), measurements=())])
    store.record([trial(64, verdict=None, plans=("ef" * 32,), measurements=(modelled(1.0),))])
    assert stored(store, trial(64)).measurements == ()
    store.record([trial(64, verdict=None, plans=("ab" * 32,), measurements=(modelled(9.0),))])
    known = stored(store, trial(64))
    assert (known.time.us, known.plans) == (9.0, ("ab" * 32, "cd" * 32))


def test_the_best_known_kernels_come_fastest_first_and_one_configuration_each(store: Store) -> None:
    other = CANDIDATE.model_copy(update={"source": "AXES = {}  # other\n"})
    wrong = Verdict(status=Status.WRONG, stage=Stage.COMPARE)
    store.record([trial(64), trial(32), trial(1, verdict=wrong)])
    store.record([trial(16, candidate=other), trial(8, candidate=other, chip="h200")])
    assert [(t.candidate.digest, t.time.us) for t in store.best(TASK.identity, "rtx5070")] == [
        (other.digest, 16.0),
        (CANDIDATE.digest, 32.0),
    ]
    # a chip never seen starts from what other chips know
    assert [t.chip for t in store.best(TASK.identity, "b200", limit=1)] == ["h200"]


def test_one_candidate_with_many_fast_configurations_hides_no_other(store: Store) -> None:
    other = CANDIDATE.model_copy(update={"source": "AXES = {}  # other\n"})
    store.record([*(trial(tm) for tm in range(1, 200)), trial(500, candidate=other)])
    assert [t.time.us for t in store.best(TASK.identity, "rtx5070", limit=2)] == [1.0, 500.0]


def test_a_measured_time_ranks_before_a_smaller_modelled_one(store: Store) -> None:
    measured = Measurement(kind="measured", chip="rtx5070", us=50.0, floor_us=1.0, samples=(49.0, 51.0))
    store.record([trial(64, measurements=(modelled(9.0),)), trial(32, measurements=(measured,))])
    (best,) = store.best(TASK.identity, "rtx5070")
    assert best.configuration == {"TM": 32}


def test_artifacts_come_back_by_their_hash_and_a_damaged_one_is_as_good_as_none(store: Store) -> None:
    good, bad = sha256(b"plan").hexdigest(), sha256(b"kernel").hexdigest()
    store.record([trial()], artifacts={good: b"plan", bad: b"kernel"})
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE artifacts SET content = x'00' WHERE key = '{bad}'")
    assert store.artifacts([good, bad, "0" * 64]) == {good: b"plan"}
    store.record([trial()], artifacts={good: b"plan", bad: b"kernel"})  # judged again, as it could not be read back
    assert store.artifacts([good, bad]) == {good: b"plan", bad: b"kernel"}


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ("""'{"chip": "rtx5070"}'""", "configuration: Field required"),
        ("json_set(record, '$.chip', 7)", "chip: Input should be a valid string"),
        ("json_set(record, '$.of_a_later_version', 1)", "of_a_later_version: Extra inputs are not permitted"),
        ("'[]'", "no object"),
    ],
)
def test_a_trial_that_this_version_can_not_read_is_named(store: Store, stored: str, why: str) -> None:
    store.record([trial()])
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE trials SET record = {stored}")
    with pytest.raises(UserError) as caught:
        browse.attempts(store.database)
    assert caught.value.what == f"this version can't read trial {trial().key}: {why}"


def test_one_source_may_be_tried_on_several_tasks_at_once(store: Store) -> None:
    other = Task(name="gelu_2", identity="2f" * 32, graph=TASK.graph)
    store.record_tasks([other])
    store.record([trial(), trial(candidate=CANDIDATE.model_copy(update={"task": other.identity}))])
    assert (count(store, "candidates"), count(store, "trials")) == (2, 2)


def test_a_winner_is_one_per_run_task_chip_and_shape(store: Store) -> None:
    store.start_run(run_record())
    store.record([trial(64), trial(32)], run="r1", move="fresh")
    store.record_winner("r1", trial(64), "winners/gelu")
    store.record_winner("r1", trial(32), "winners/gelu")
    (kernel,) = browse.kernels(store.database)
    assert (kernel["us"], kernel["configuration"], kernel["kind"]) == (32.0, {"TM": 32}, "modelled")
    store.mark_promoted("r1", TASK.identity)
    assert [k["kernel"] for k in browse.kernels(store.database, status="promoted")] == [CANDIDATE.digest]


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
    believed, mined = ([r for r in rules if r["origin"] == origin] for origin in ("seed", "mined"))
    assert len(believed) == len(seed.rules()) >= 5
    assert len(mined) == len(seed.mined()) > 50
    assert {(r["status"], r["evidence"] > 0) for r in believed} == {("hypothesised", False)}
    assert {(r["status"], r["evidence"] > 0) for r in mined} == {("supported", True)}
    assert all(r["form"]["scope"] for r in rules)


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
from test_store import CANDIDATE, TASK, trial
with Store.open({url!r}) as store:
    store.record_tasks([TASK])
    i = 0
    while i < {count}:
        candidate = CANDIDATE.model_copy(update={{"source": f"# {name} {{i}}\\n"}})
        store.record([trial(tm, candidate=candidate) for tm in (16, 32)])
        print(candidate.digest, flush=True)  # reported: from here on it must survive
        i += 1
"""


def writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    code = WRITER.format(folder=str(Path(__file__).parent), url=url, name=name, count=count)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def test_two_processes_write_to_one_new_base_at_once_and_both_finish(new_url: str) -> None:
    writers = [writer(new_url, name, 40) for name in ("a", "b")]
    reported = [w.communicate(timeout=120)[0].split() for w in writers]
    assert [w.returncode for w in writers] == [0, 0]
    with Store.open(new_url) as store:
        assert count(store, "trials") == 160
        assert sum(task["trials"] for task in browse.tasks(store.database)) == 160
        assert count(store, "candidates") == len(set(reported[0] + reported[1])) == 80


def test_a_kill_loses_nothing_that_was_reported_and_stores_nothing_half(new_url: str) -> None:
    process = writer(new_url, "a", 1_000_000)
    assert process.stdout is not None
    reported = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    reported += [line for line in process.stdout.read().split() if len(line) == 64]  # the last may be cut off
    process.wait()
    with Store.open(new_url) as store:
        with store.database.read() as connection:
            stored = {row[0] for row in connection.exec_driver_sql("SELECT digest FROM candidates")}
            pairs = connection.exec_driver_sql(
                "SELECT count(*) FROM trials GROUP BY candidate HAVING count(*) != 2"
            ).all()
        assert all(len(digest) == 64 for digest in reported)
        assert set(reported) <= stored
        assert pairs == []


def test_threads_share_a_store(store: Store) -> None:
    def work(start: int) -> None:
        for i in range(start, start + 20):
            store.record([trial(i)])
            assert stored(store, trial(i)).time.us == i

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(store, "trials") == 40


def test_a_base_in_memory_works_across_threads() -> None:
    with Store.open("sqlite://") as store:
        thread = threading.Thread(target=store.record_tasks, args=([TASK],))
        thread.start()
        thread.join()
        assert count(store, "tasks") == 1


def test_browsing_filters_by_op_gpu_and_status(store: Store) -> None:
    store.record([trial(64), trial(64, chip="h200")])
    store.record([trial(8, verdict=Verdict(status=Status.UNSAFE, stage=Stage.EMULATE))])
    assert len(browse.attempts(store.database, op="gelu")) == 3
    assert browse.attempts(store.database, op="softmax") == []
    assert [a["chip"] for a in browse.attempts(store.database, gpu="h200")] == ["h200"]
    (unsafe,) = browse.attempts(store.database, status="unsafe")
    assert (unsafe["configuration"], unsafe["us"], unsafe["kind"]) == ({"TM": 8}, 8.0, "modelled")
    (task,) = browse.tasks(store.database)
    assert (task["trials"], task["correct"]) == (3, 2)


def test_a_measured_time_hides_a_modelled_one_in_attempts(store: Store) -> None:
    measured = Measurement(kind="measured", chip="rtx5070", us=80.0, floor_us=1.0, samples=(80.0,))
    store.record([trial(64, measurements=(modelled(64.0), measured))])
    (attempt,) = browse.attempts(store.database)
    assert (attempt["us"], attempt["kind"]) == (80.0, "measured")


def test_show_takes_a_prefix_of_any_id_and_refuses_an_ambiguous_one(store: Store) -> None:
    store.start_run(run_record("20260101-gelu-aaaa"))
    store.record([trial(64)], run="20260101-gelu-aaaa")
    assert browse.show(store.database, CANDIDATE.digest[:10])["source"] == CANDIDATE.source
    assert browse.show(store.database, trial(64).key[:12])["measurements"][0]["us"] == 64.0
    assert browse.show(store.database, "gelu")["is"] == "task"
    assert browse.show(store.database, "20260101")["attempts"] == 1
    with pytest.raises(UserError, match="names several things"):
        browse.show(store.database, "")
    with pytest.raises(UserError, match="nothing has an id"):
        browse.show(store.database, "zzzz")


def test_rows_are_json(store: Store) -> None:
    store.start_run(run_record())
    store.record([trial(64)], run="r1")
    store.record_winner("r1", trial(64))
    listings = (browse.facts, browse.rules, browse.kernels, browse.runs, browse.attempts, browse.tasks)
    for rows in (listing(store.database) for listing in listings):
        assert rows
        json.dumps(rows, allow_nan=False)


def test_queries_use_an_index(store: Store) -> None:
    with sqlite3.connect(store.database.engine.url.database or "") as connection:
        for query in (
            "SELECT * FROM trials WHERE key = 'x'",
            "SELECT * FROM trials WHERE task = 'x' AND chip = 'h200' AND status = 'correct'",
            "SELECT * FROM trials WHERE candidate = 'x' AND chip = 'h200' AND evaluator = 'v1'",
            "SELECT * FROM trials WHERE status = 'wrong' ORDER BY created_at DESC LIMIT 50",
            "SELECT key FROM trials ORDER BY created_at DESC LIMIT 50",
            "SELECT task, count(*) FROM trials GROUP BY task",
            "SELECT * FROM winners WHERE trial = 'x'",
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


# ---------------------------------------------------------------------------------------------------- seals

JUDGED = trial(verdict=CORRECT, judged=({"M": 65, "N": 7},), seed=7, seconds=1.5, plans=("ab" * 32,))


def believed(store: Store) -> Trial:
    return stored(store, JUDGED)


def test_a_verdict_of_ours_comes_back(store: Store) -> None:
    store.record([JUDGED])
    assert believed(store).correct
    assert believed(store) == JUDGED.fuller(verdict=believed(store).verdict)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("plans", ["cd" * 32]),
        ("judged", [{"M": 65, "N": 7}, {"M": 1, "N": 1}]),
        ("infeasible", [{"M": 1, "N": 1}]),
        ("verdict", {"status": "correct", "stage": "done", "message": "as good as new"}),
    ],
)
def test_what_was_changed_since_is_not_believed(store: Store, field: str, value: object) -> None:
    store.record([JUDGED])
    with store.database.write() as connection:
        (text,) = connection.exec_driver_sql("SELECT record FROM trials").one()
        changed = json.dumps(json.loads(text) | {field: value})
        connection.exec_driver_sql("UPDATE trials SET record = ?", (changed,))
    got = believed(store)
    assert (got.verdict, got.judged, got.infeasible, got.time) == (None, (), (), JUDGED.time)


def test_a_verdict_that_was_written_past_the_judge_is_not_believed(store: Store) -> None:
    store.record([trial(verdict=None), JUDGED.fuller(configuration={"TM": 1})])
    with store.database.write() as connection:  # the seal of another trial, and a word for it
        connection.exec_driver_sql(
            "UPDATE trials SET status = 'correct', seal = (SELECT max(seal) FROM trials), "
            'record = json_set(record, \'$.verdict\', json(\'{"status": "correct", "stage": "done"}\'))'
        )
    assert not believed(store).correct
    (first, *_) = store.best(TASK.identity, "rtx5070")  # still a candidate, to be judged
    assert first.verdict is None


def test_another_users_verdict_is_kept_but_not_relied_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "theirs"))
    store.record([JUDGED])
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "mine"))
    assert believed(store).verdict is None
    slower = modelled(500.0).model_copy(update={"kind": "measured"})
    store.record([trial(verdict=None, measurements=(slower,), plans=JUDGED.plans)])  # a time is no verdict
    assert believed(store).verdict is None
    with store.database.read() as connection:
        assert connection.exec_driver_sql("SELECT status FROM trials").scalar() == "correct"  # as people see it
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "theirs"))
    assert believed(store).correct
    assert len(believed(store).measurements) == 2
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "mine"))
    store.record([JUDGED.fuller(seed=8)])  # judged by ours
    assert (believed(store).correct, believed(store).seed) == (True, 8)


def test_a_rejection_stays_ours_when_a_search_adds_its_plan(store: Store) -> None:
    rejected = Verdict(status=Status.WRONG, stage=Stage.COMPARE, message="no")
    store.record([trial(verdict=rejected, measurements=())])
    store.record([trial(verdict=None, plans=("ab" * 32,))])
    got = believed(store)
    assert (got.verdict, got.plans, got.time.us) == (rejected, ("ab" * 32,), 128.0)
