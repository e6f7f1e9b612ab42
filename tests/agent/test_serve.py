"""`agent kb serve`: a real Datasette on a real base, asked over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.cli import invoke
from agent.commands.serve_command import QUERIES
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf import everyday
from knowledge_base.store import RunRecord, Store

ROOT = Path(__file__).resolve().parents[2]
TASK = everyday("layernorm")
BASE = "my+base"  # as Datasette spells a blank in an address


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("serve") / "my base.db"
    cubin = CompileEvidence(arch="sm_90", kernel="ab" * 32, symbol="k", registers=90, stack_bytes=0, spill_bytes=48,
                            shared_bytes=1024, tma=True)  # fmt: skip
    trial = Trial(
        candidate=Candidate(source="# <b>persistent</b> rows\n", task=TASK.identity), configuration={"ROWS": 4},
        chip="h200", shape=TASK.sizes, evaluator="v1", verdict=Verdict(status=Status.CORRECT, stage=Stage.DONE),
        measurements=(Measurement(kind="modelled", chip="h200", us=20.0, floor_us=8.0),), evidence=(cubin,),
    )  # fmt: skip
    with Store.open(str(file)) as store:
        store.record_tasks([TASK])
        store.start_run(RunRecord("r1", "layernorm", "h200", "cpu", "synthesizer", "running"))
        store.record([trial], run="r1", move="search")
        store.record_winner("r1", trial)
    return file


@contextmanager
def serving(base: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "agent", "kb", "serve", "--port", "0", "--db", str(base)]
    started = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stderr is not None
    try:
        said = ""
        while not (found := re.search(r"running on (http://127\.0\.0\.1:\d+)", said)):
            line = started.stderr.readline()
            assert line, said
            said += line
        yield found[1], started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with serving(base) as found:
        yield found


def asked(server: tuple[str, Any], path: str, **given: str) -> Any:
    query = urllib.parse.urlencode({"_shape": "array", **given})
    with urllib.request.urlopen(f"{server[0]}/{path}.json?{query}", timeout=20) as answer:
        return json.load(answer)


FILLED_IN = {
    "fastest_configurations": {"task": "layernorm", "chip": "h200"},
    "words": {"words": "persistent"},
    "attempts_of_a_run": {"run": "r1"},
}


@pytest.mark.parametrize("name", QUERIES)
def test_each_question_has_an_answer(server: tuple[str, Any], name: str) -> None:
    rows = asked(server, f"{BASE}/{name}", **FILLED_IN.get(name, {}))
    if name == "what_models_cost":
        assert rows == []
        return
    assert rows
    match name:
        case "best_kernels":
            assert (rows[0]["task"], rows[0]["us"], rows[0]["configuration"]) == ("layernorm", 20.0, '{"ROWS":4}')
        case "fastest_configurations":
            assert (rows[0]["spill_bytes"], rows[0]["tma"]) == (48, 1)
        case "what_became_of_trials":
            assert rows == [
                {"task": "layernorm", "chip": "h200", "standing": "spills", "status": "correct", "trials": 1}
            ]
        case "words":
            assert "→persistent" in rows[0]["text"]
        case "attempts_of_a_run":
            assert [(row["move"], row["status"]) for row in rows] == [("search", "correct")]
        case "rules_by_effect":
            assert max(abs(row["effect"]) for row in rows) == abs(rows[0]["effect"])


def test_nothing_can_be_written(server: tuple[str, Any], base: Path) -> None:
    before = base.read_bytes()
    for sql in ("DELETE FROM trials", "INSERT INTO meta VALUES ('a', 'b')", "PRAGMA journal_mode=DELETE"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(server, BASE, sql=sql)
        assert refused.value.code == 400
    with pytest.raises(urllib.error.HTTPError):
        asked(server, "my+base~2Edb")  # the file itself
    assert base.read_bytes() == before


@pytest.mark.parametrize(("told", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_with_its_command(base: Path, told: signal.Signals, code: int) -> None:
    with serving(base) as (url, started):
        started.send_signal(told)
        assert started.wait(20) == code
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(url, timeout=5)


def test_a_source_is_text_on_its_page(server: tuple[str, Any]) -> None:
    with urllib.request.urlopen(f"{server[0]}/{BASE}/candidates", timeout=20) as answer:
        page = answer.read().decode()
    assert "&lt;b&gt;persistent" in page
    assert "<b>persistent" not in page


def test_what_can_not_be_served_is_said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke(["kb", "serve", "--db", "postgresql+psycopg://me@host/base"]) == 2
    assert "agent kb report" in capfd.readouterr().err
    assert invoke(["kb", "serve", "--db", "nowhere/kb.db"]) == 2
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert invoke(["kb", "serve"]) == 3
    assert "pip install datasette" in capfd.readouterr().err
