"""`agent run` from end to end with real parts (tracer, assembler, emulator, judge, SQLite) on a small target."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processes import below, gone, running

from agent.cli import invoke
from agent.progress import Lines

ROOT = Path(__file__).parents[2]
SNF = """\
# a squared-ReLU step with RMSNorm, at sizes that no tile divides
B, T, C = 2, 37, 24
x: bf16[B, T, C]
n = RMSNorm(x, θ.norm)
y = x + ReLU(n) * ReLU(n)
s = Softmax(y)
"""

# The command in a process of its own, which looks at few configurations of a file: all of them go the same way.
COMMAND = "from agent.loop import task_work\ntask_work.LIMIT = 3\nfrom agent.cli import main\nmain()"


def agent(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that a signal to its group does not reach the tests
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """(exit code, the JSON document on standard output, standard error)."""
    out, err = process.communicate(timeout=240)
    assert out.count("\n") == 1, (out, err)
    return process.returncode, json.loads(out), err


def counts(folder: Path) -> dict[str, int]:
    with sqlite3.connect(folder / "runs" / "knowledge.db") as connection:
        tables = ("runs", "tasks", "candidates", "trials", "artifacts", "attempts", "winners")
        return {t: connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, dict[str, Any], str]]]:
    """A folder in which the target was run twice at the same time, on one new knowledge base."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "my.snf").write_text(SNF)
    command = ("run", "--target", "my.snf", "--gpu", "b200", "--json", "--search-seconds", "5")
    both = [agent(folder, *command) for _ in range(2)]
    return folder, [finish(process) for process in both]


def test_two_runs_at_once_on_one_database_both_find_every_kernel(ran: Any) -> None:
    _, runs = ran
    for code, document, _ in runs:
        assert code == 0
        assert document["status"] == "done"
        assert document["chip"] == "b200"
        assert {t["status"] for t in document["tasks"]} == {"correct"}
        assert {t["kind"] for t in document["tasks"]} == {"modelled"}
        assert document["composed"]["status"] == "correct"
        assert sum(t["share"] for t in document["tasks"]) == pytest.approx(1.0)
        assert all(t["us"] >= t["floor_us"] > 0 for t in document["tasks"])
    assert runs[0][1]["id"] != runs[1][1]["id"]


def test_the_run_folder_holds_what_happened(ran: Any) -> None:
    folder, runs = ran
    for _, document, _ in runs:
        where = folder / document["folder"]
        assert "every size" in (where / "report.md").read_text() or "plan 1:" in (where / "report.md").read_text()
        assert (where / "log.txt").read_text().count("correct") >= len(document["tasks"])
        assert {p.name for p in (where / "plans").iterdir()} == {"v1.json", "v2.json"}
        assert len(list((where / "prompts").glob("*.snf"))) == len(document["tasks"])
        for task in document["tasks"]:
            manifest = json.loads((where / task["folder"] / "manifest.json").read_text())
            winners = {w["kernel"]: w for w in manifest["winners"]}
            assert any(w["general"] for w in winners.values())
            assert (where / task["folder"] / winners[task["kernel"]]["source"]).is_file()


def test_a_later_run_starts_from_what_is_known_and_counts_nothing_twice(ran: Any) -> None:
    folder, runs = ran
    known = min(document["total_us"] for _, document, _ in runs)
    for _ in range(6):
        # A busy machine leaves configurations for later runs, the best of which may be another.
        before = counts(folder)
        code, document, _ = finish(agent(folder, "run", "--target", "my.snf", "--gpu", "b200", "--json"))
        assert code == 0
        assert document["total_us"] <= known
        if all(task["effort"]["reused"] for task in document["tasks"]):
            break
    assert all(task["effort"]["reused"] for task in document["tasks"])
    after = counts(folder)
    for table in ("tasks", "candidates", "trials", "artifacts"):
        assert after[table] == before[table], table
    assert after["runs"] == before["runs"] + 1
    assert after["attempts"] > before["attempts"]


def test_the_knowledge_base_shows_it_all(
    ran: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, runs = ran
    monkeypatch.chdir(folder)
    for what in ("kernels", "runs", "attempts", "tasks"):
        assert invoke(["kb", what]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert len(lines) > 2
        assert max(map(len, lines)) <= 80
        assert invoke(["kb", what, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)
    run = runs[0][1]["id"]
    assert invoke(["kb", "attempts", "--run", run, "--json"]) == 0
    attempts = json.loads(capfd.readouterr().out)
    assert {"correct"} <= {a["status"] for a in attempts}
    assert invoke(["kb", "show", run, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["summary"]["status"] == "done"
    kernel = runs[0][1]["tasks"][0]["kernel"]
    assert invoke(["kb", "show", kernel[:10]]) == 0
    assert "import cuda.tile as ct" in capfd.readouterr().out


def test_winners_are_promoted_from_the_run(
    ran: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, runs = ran
    monkeypatch.chdir(folder)
    run = runs[0][1]["id"]
    assert invoke(["promote", run, "--to", str(tmp_path), "--json"]) == 0
    promoted = json.loads(capfd.readouterr().out)["promoted"]
    assert {p["task"] for p in promoted} == {p.name for p in tmp_path.iterdir()}
    assert invoke(["promote", run, "no_such_task", "--to", str(tmp_path)]) == 2
    assert invoke(["kb", "kernels", "--status", "promoted", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)) >= 1


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    """Reads standard error until a line has ``word``."""
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"it ended before it said {word!r}")


def test_an_interrupted_run_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "my.snf").write_text("x: bf16[5, 33]\ny = GELU(x)\n")
    process = agent(tmp_path, "run", "--target", "my.snf")
    wait_for(process, "then the whole target")
    os.killpg(process.pid, signal.SIGSTOP)  # it is still at work when the signal comes, however slow the machine is
    (run,) = [p.name for p in (tmp_path / "runs").iterdir() if p.is_dir()]
    running = subprocess.run(
        [sys.executable, "-m", "agent", "run", "--resume", run],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert running.returncode == 2
    assert "still going on" in running.stderr
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - start < 20
    assert f"agent run --resume {run}" in err
    assert "Traceback" not in err
    (tmp_path / "my.snf").write_text("nonsense: the run goes on with the text it began with")
    code, document, _ = finish(agent(tmp_path, "run", "--resume", run, "--json"))
    assert code == 0
    assert document["id"] == run
    assert counts(tmp_path)["runs"] == 1


def test_a_killed_run_leaves_no_process_and_can_go_on(tmp_path: Path) -> None:
    process = agent(tmp_path, "run", "--target", "gpt2-block")
    wait_for(process, "then the whole target")
    deadline = time.monotonic() + 30
    while len(children := below(process.pid)) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)  # until there are a warden, a judge process, its own warden and its oracle
    assert len(children) >= 4
    process.kill()
    process.wait()
    assert gone(children, 15), running(children)
    (run,) = [p.name for p in (tmp_path / "runs").iterdir() if p.is_dir()]
    listed = subprocess.run(
        [sys.executable, "-m", "agent", "kb", "runs"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "killed" in listed.stdout
    code, document, _ = finish(agent(tmp_path, "run", "--resume", run, "--budget-minutes", "0", "--json"))
    assert (code, document["id"], document["status"]) == (1, run, "incomplete")


def test_a_budget_that_is_over_leaves_a_run_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["run", "--target", "gelu", "--budget-minutes", "0", "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["status"] == "incomplete"
    assert {t["status"] for t in document["tasks"]} == {"unfinished"}
    assert "--resume" in " ".join(document["notes"])


def test_a_run_that_is_done_is_not_run_again(ran: Any) -> None:
    folder, runs = ran
    document = runs[0][1]
    before = counts(folder)
    code, again, err = finish(agent(folder, "run", "--resume", document["id"], "--json"))
    assert (code, again) == (0, document)
    assert f"run {document['id']} is already done" in err
    assert f"{document['folder']}/report.md" in err
    assert counts(folder) == before


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("--gpu h200", "--gpu h200: the run is for b200"),
        ("--gpu nonsense", "nonsense"),
        ("--seed 4", "--seed 4: --resume goes on with the run's own"),
        ("--proposer openai", "--proposer openai: --resume goes on"),
        ("--shape B=1,T=3", "--shape B=1,T=3: --resume goes on"),
        ("--target gelu", "--target gelu: --resume goes on"),
    ],
)
def test_what_a_run_has_of_its_own_is_not_asked_for_anew(
    ran: Any, typed: str, says: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, runs = ran
    monkeypatch.chdir(folder)
    (folder / "runs" / "bench").mkdir(exist_ok=True)  # pictures lie there: it is no run
    before = counts(folder)
    assert invoke(["run", "--resume", runs[0][1]["id"], *typed.split()]) == 2
    assert says in capfd.readouterr().err
    assert invoke(["run", "--resume", "b"]) == 2
    assert "no run 'b'" in capfd.readouterr().err
    assert counts(folder) == before


def test_lines_fit_80_columns_and_a_task_at_work_is_heard_of(capfd: pytest.CaptureFixture[str]) -> None:
    lines = Lines(every=0.1)
    lines.begin([*(f"linear_residual K={k}" for k in range(12)), "the whole target"])
    lines.step("linear_residual K=3", 0.1, 1.0, "searching 5/48")
    time.sleep(0.3)
    lines.end("linear_residual K=3", True, "correct")
    said = capfd.readouterr().err
    assert "12 tasks: linear_residual K=0" in said
    assert "linear_residual K=3: searching 5/48" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_short_budget_is_not_eaten_by_searching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.snf").write_text("M, N = 64, 96\nx: bf16[M, N]\ny = Softmax(x + x)\n")
    monkeypatch.chdir(tmp_path)
    assert invoke(["run", "--target", "one.snf", "--budget-minutes", "0.25", "--json"]) in (0, 1)
    document = json.loads(capfd.readouterr().out)
    assert {t["status"] for t in document["tasks"]} == {"correct"}
    assert all(t["effort"]["searched"] > 0 for t in document["tasks"])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--target", "gpt2-blok"], 2, "gpt2-block"),
        (["--target", "no/such/file.snf"], 2, "no/such/file.snf"),
        (["--target", "bad.snf"], 2, "bad.snf:2"),
        (["--target", "gelu", "--shape", "Z=3"], 2, "Z"),
        (["--target", "gelu", "--shape", "M=x"], 2, "whole number"),
        (["--target", "gelu", "--gpu", "rtx6000"], 2, "rtx5070"),
        (["--target", "gelu", "--proposer", "openai"], 2, "synthesizer"),
        (["--target", "gelu", "--proposer", "synthesiser"], 2, "synthesizer"),
        (["--target", "gelu", "--device", "gpu"], 2, "cuda"),
        (["--target", "gelu", "--device", "cuda"], 3, "--device cpu"),
        (["--target", "gelu", "--db", "/proc/nowhere/kb.db"], 3, "--db"),
        (["--resume", "no-such-run"], 2, "no run"),
        ([], 2, "--target"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    arguments: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.snf").write_text("x: bf16[4, 8]\ny = Sofmax(x)\n")
    assert invoke(["run", *arguments]) == code
    captured = capfd.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert not list(Path("runs").glob("*/"))  # no run was begun
    if Path("runs/knowledge.db").exists():
        assert counts(tmp_path)["runs"] == counts(tmp_path)["tasks"] == 0


def test_a_missing_toolchain_is_said_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from kernels_generated.runtime import assembler

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembler, "search_path", lambda: (tmp_path,))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoke(["run", "--target", "gelu"]) == 3
    assert "pip install" in capfd.readouterr().err
    assert not Path("runs").exists()


WRONG = """\
import cuda.tile as ct
@ct.kernel
def kernel(a, b, y):
    i, j = ct.bid(0), ct.bid(1)
    x = ct.load(a, index=(i, j), shape=(16, 16)) {op} ct.load(b, index=(i, j), shape=(16, 16))
    ct.store(y, index=(i, j), tile=x.astype(y.dtype))
def launch(stream, a, b, y):
    ct.launch(stream, (ct.cdiv(y.shape[0], 16), ct.cdiv(y.shape[1], 16)), kernel, (a, b, y))
"""


def test_a_person_is_the_proposer_and_hears_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    heard: list[str] = []

    def person() -> None:
        deadline = time.monotonic() + 200
        while not (prompts := list(tmp_path.glob("runs/*/prompts/*/prompt.md"))):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        folder = prompts[0].parent
        heard.append(prompts[0].read_text())
        (folder / "answer.py").write_text(WRONG.format(op="-"))
        heard.append(verdict(folder, deadline))
        (folder / "answer.py").write_text(WRONG.format(op="+"))

    def verdict(folder: Path, deadline: float) -> str:
        while not (file := folder / "verdict.md").exists() or (text := file.read_text()).startswith("# taken"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return text

    thread = threading.Thread(target=person, daemon=True)
    thread.start()
    assert invoke(["run", "--target", "add", "--shape", "M=20,N=20", "--proposer", "manual", "--json"]) == 0
    thread.join(5)
    document = json.loads(capfd.readouterr().out)
    (task,) = document["tasks"]
    assert (task["proposer"], [r["status"] for r in task["rejected"]]) == ("manual", ["wrong"])
    assert "add(a[M,N], b[M,N]) -> y[M,N]" in heard[0]
    check = re.search(r"agent (check .*answer.py --task .*\.snf --gpu \w+)", heard[0])
    assert check is not None
    assert heard[1].startswith("# wrong")
    (last,) = tmp_path.glob("runs/*/prompts/*/verdict.md")
    assert re.match(r"# right, [\d.]+ µs \(modelled\)\n", last.read_text())
    assert invoke(check[1].split()) == 0  # the line that the prompt gives


def test_check_judges_one_file_and_records_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("right.py").write_text(WRONG.format(op="+"))
    Path("wrong.py").write_text(WRONG.format(op="-"))
    Path("broken.py").write_text("def launch(:\n")
    shape = ["--task", "add", "--shape", "M=20,N=20"]
    assert invoke(["check", "right.py", *shape, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["verdict"]["status"] == "correct"
    assert invoke(["check", "wrong.py", *shape]) == 1
    assert "wrong" in capfd.readouterr().err
    assert invoke(["check", "broken.py", *shape, "--json"]) == 1
    verdict = json.loads(capfd.readouterr().out)["verdict"]
    assert (verdict["status"], verdict["line"]) == ("invalid", 1)
    assert invoke(["kb", "attempts", "--json"]) == 0
    assert [a["status"] for a in json.loads(capfd.readouterr().out)] == ["invalid", "wrong", "correct"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py", "--task", "add"], "no file"),
        (["right.py", "--task", "ad"], "add"),
        (["right.py", "--task", "add", "--axes", "TM=64"], "no axis"),
        (["right.py", "--task", "add", "--shape", "K=3"], "K"),
        (["data.bin", "--task", "add"], "UTF-8"),
    ],
)
def test_check_refuses_what_makes_no_sense_with_exit_2(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("right.py").write_text(WRONG.format(op="+"))
    Path("data.bin").write_bytes(b"\xff\xfe\x00")
    assert invoke(["check", *arguments]) == 2
    captured = capfd.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err


def test_emulate_runs_one_shape_and_search_ranks_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("right.py").write_text(WRONG.format(op="+"))
    shape = ["--task", "add", "--shape", "M=20,N=20", "--json"]
    assert invoke(["emulate", "right.py", *shape]) == 0
    assert json.loads(capfd.readouterr().out)["outputs"]["y"]["elements"] == 400
    Path("wrong.py").write_text(WRONG.format(op="-"))
    assert invoke(["emulate", "wrong.py", *shape]) == 1
    assert json.loads(capfd.readouterr().out)["outputs"]["y"]["wrong"] is True
    assert invoke(["emulate", "wrong.py", *shape[:-1]]) == 1
    assert "y is beyond 2 ×: agent check would call this wrong" in capfd.readouterr().err
    racing = WRONG.format(op="+").replace("ct.store(y, index=(i,", "ct.store(y, index=(0,")
    Path("racing.py").write_text(racing)
    assert invoke(["emulate", "racing.py", "--task", "add", "--shape", "M=200,N=20"]) == 1
    said = capfd.readouterr().err
    assert "ct.store(y, index=(0, j)" in said  # the text of its line
    assert said.count("write the same tile of 'y'") == 1, said
    assert invoke(["search", "right.py", *shape]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [(r["standing"], r["status"], r["kind"]) for r in found["rows"]] == [("ranked", "compiled", "modelled")]
    assert invoke(["search", "right.py", *shape[:-1]]) == 0
    assert "correctness is not judged here" in " ".join(capfd.readouterr().err.split())
