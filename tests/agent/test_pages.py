"""What `agent kb show` prints of each kind of thing, and that docs/knowledge.md says what its JSON has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from house import ROOT
from sqlalchemy import select

from agent.cli import invoke
from agent.commands.show_command import sparkline
from knowledge_base import browse
from knowledge_base.records import (
    Answered,
    Candidate,
    CompileEvidence,
    Finding,
    LlmCall,
    Measurement,
    Stage,
    Status,
    Trial,
    Verdict,
)
from knowledge_base.snf import everyday
from knowledge_base.store import RunRecord, Store
from knowledge_base.tables import BASES

TASK = everyday("linear_gelu")
FIRST = Candidate(source="AXES = {}\n# first\n", task=TASK.identity, proposer="openai", note="plain tiles")
SECOND = Candidate(
    source="AXES = {}\n# [/bold] second\n",
    task=TASK.identity,
    proposer="openai",
    parent=FIRST.digest,
    note="persistent",
)
RUN = "20261130-120000-linear-gelu-ab12"
CUBIN = CompileEvidence(arch="sm_90", kernel="ab" * 32, symbol="matmul_kernel", registers=168, stack_bytes=0,
                        spill_bytes=0, shared_bytes=66560, mma="wgmma", tma=True, threads=128)  # fmt: skip
NUMBERS = {"normal": {"y": {"rms_ratio": 1.01, "largest_ratio": 1.2}}}
RIGHT = Verdict(status=Status.CORRECT, stage=Stage.DONE, numbers=NUMBERS)
WRONG = Verdict(
    status=Status.WRONG, stage=Stage.COMPARE, error_class="tail", message="y[[3]] is 1, expected 2", hint="Mask it.",
    line=7, source="ct.store(y, (i,), tile)",
    findings=(Finding(kind="out-of-bounds", message="block 3 stores 1 past", line=7),),
)  # fmt: skip


def trial(tm: int, us: float | None, verdict: Verdict | None = None, of: Candidate = SECOND, **changes: Any) -> Trial:
    time = Measurement(
        kind="modelled", chip="h200", us=us or 0.0, floor_us=20.0, terms={"l2": us or 0.0, "occupancy": 1.0}
    )
    whole = Trial(
        candidate=of, configuration={"TM": tm, "TN": 256, "TK": 64, "PERSISTENT": 1, "num_worker_warps": 8},
        chip="h200", shape=TASK.sizes, evaluator="v1", verdict=verdict, measurements=(time,) if us else (),
        evidence=(CUBIN,) if us else (),
    )  # fmt: skip
    return whole.fuller(**changes)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    with Store.open(str(tmp_path / "runs/knowledge.db")) as opened:
        opened.record_tasks([TASK])
        opened.start_run(RunRecord(RUN, "linear_gelu", "h200", "cpu", "openai", "running", options={"seed": 1}))
        best = trial(128, 30.0, RIGHT)
        spills = trial(256, 60.0, evidence=(CUBIN.model_copy(update={"spill_bytes": 496}),))
        pruned = trial(16, None, pruned="an ideal cubin would take 90.5 µs by the model, the fastest so far 30")
        for one in (trial(64, 45.0, RIGHT, FIRST), spills, trial(32, None, WRONG), pruned, best):
            opened.record([one], run=RUN, move="fresh")
        opened.record_winner(RUN, best, "winners/linear_gelu")
        opened.record_call(
            LlmCall(
                run=RUN, task=TASK.identity, shape=TASK.sizes, number=1, model="m", endpoint="e", tokens_in=10,
                tokens_out=20, request={"model": "m", "messages": [{"role": "user", "content": "write [it]"}]},
                text="an answer", status=Answered.ANSWERED, candidate=SECOND.digest, cost_usd=0.01,
            )
        )  # fmt: skip
        opened.finish_run(RUN, "done", 0, {})
        yield opened


def page(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert invoke(["kb", "show", *arguments]) == 0
    shown = capfd.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "{'" not in shown  # no dictionary of Python's
    return shown


def test_the_page_of_a_task(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    shown = page(capfd, "linear-gelu")
    assert "h200 at M=8192 N=3072 K=768" in shown
    assert "5 configurations seen: 2 ranked, 1 spills, 1 pruned, 1 failed" in shown
    assert re.search(r"~30\.0 +best +\w{8} ✓ TM=128", shown)
    assert re.search(r"~60\.0 +2\.00× +\w{8}   TM=256", shown)
    assert "spills 496 B a thread, l2 ~+30 µs" in shown
    assert re.search(r"failed +1 tail: y\[\[3\]\] is 1, expected 2", shown)
    assert re.search(r"pruned +1 an ideal cubin would take 90\.5 µs", shown)
    assert "the best takes 1.50×" in shown
    assert f"{RUN} " in shown  # the winner's
    assert "~ is modelled" in shown
    assert "Not tried yet." in page(capfd, "linear_gelu", "--gpu", "b200")


def test_the_page_of_a_task_whose_floor_is_no_time_at_all(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    tiny = everyday("gelu", M=1, N=3)
    time = Measurement(kind="modelled", chip="h200", us=3.0, floor_us=0.0)
    of = Candidate(source="# tiny\n", task=tiny.identity)
    store.record_tasks([tiny])
    store.record([trial(1, None, RIGHT, of, shape=tiny.sizes, measurements=(time,))])
    shown = page(capfd, "gelu")
    assert "~3.00 best" in " ".join(shown.split())
    assert "speed of light" not in shown


def test_the_page_of_a_kernel(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    shown = page(capfd, SECOND.digest[:12])
    first, second = FIRST.digest[:8], SECOND.digest[:8]
    assert re.search(rf"^  {first}  correct ~45\.0  openai  plain tiles", shown, re.MULTILINE)
    assert re.search(rf"^→ └ {second}  correct ~30\.0  openai  persistent", shown, re.MULTILINE)
    assert f"what changed from {first} to {second}" in shown
    assert "\n-# first\n+# [/bold] second\n" in shown
    assert "agent kb show " in shown  # the call that it answers
    assert "lineage" in page(capfd, FIRST.digest[:12])


def test_the_page_of_a_run(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    shown = page(capfd, RUN)
    assert "done on h200 (cpu) by openai" in shown
    assert "4 attempts, 1 call of a language model" in shown
    assert re.search(r"linear_gelu M=8192 N=3072 K=768 +4 +~45\.0 +~30\.0 +4 █▇?█*▁", shown)


def test_the_page_of_a_trial(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    shown = page(capfd, trial(32, None, WRONG).key[:12])
    assert "line 7: ct.store(y, (i,), tile)\ntail: y[[3]] is 1, expected 2\nMask it." in shown
    assert re.search(r"out-of-bounds +7 block 3 stores 1 past", shown)
    shown = page(capfd, trial(128, 30.0, RIGHT).key[:12])
    assert re.search(r"matmul_kernel +sm_90 +168 +0 +66560 +128 wgmma, TMA", shown)
    assert re.search(r"normal +y +rms_ratio=1\.01 largest_ratio=1\.2", shown)
    assert re.search(r"~30\.0 +20\.0 +modelled +stable", shown)


def test_the_pages_of_a_rule_a_fact_a_chip_and_a_call(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    rule = next(rule for rule in browse.rules(store.database, status="supported") if rule["evidence"] > 3)
    shown = page(capfd, rule["key"][:12])
    assert "evidence" in shown
    assert re.search(r"new|supported", shown)
    assert "measured" in shown
    fact = browse.facts(store.database)[0]
    assert fact["source"][:20] in page(capfd, fact["key"][:12])
    shown = page(capfd, "h200")
    assert re.search(r"linear_gelu +\w{8} h200 +~30\.0 +20\.0", shown)
    assert "sm_count: 132 SMs" in shown
    shown = page(capfd, browse.calls(store.database)[0]["call"][:12])
    assert "user:\nwrite [it]" in shown
    assert "an answer" in shown


@pytest.mark.parametrize(
    ("points", "evaluations", "drawn"),
    [
        ([(1, 9.0)], 1, "█"),
        ([(2, 9.0), (4, 1.0)], 4, " ██▁"),
        ([(1, 8.0), (2, 4.5), (3, 1.0)], 3, "█▄▁"),
        ([(100, 10.0), (200, 5.0)], 200, " " * 7 + "█" * 8 + "▁"),
    ],
)
def test_a_curve_falls_from_its_first_time_to_its_best(
    points: list[tuple[int, float]], evaluations: int, drawn: str
) -> None:
    assert sparkline({"points": points, "evaluations": evaluations}) == drawn


DOCUMENTED = re.compile(r"^\| `(\w[\w ]*)` \| ([^|]+) \|", re.MULTILINE)


def test_the_fields_of_every_json_are_the_documented_ones(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/knowledge.md").read_text(encoding="utf-8")
    section = text[text.index("## JSON") :]
    documented = {what: set(re.findall(r"`(\w+)`", fields)) for what, fields in DOCUMENTED.findall(section)}
    call = browse.calls(store.database)[0]["call"]
    rule = next(rule["key"] for rule in browse.rules(store.database) if rule["evidence"])
    tested = next(r["key"] for r in browse.rules(store.database) if r["statement"].endswith("h200 is faster at TM=128"))
    with store.database.read() as connection:
        base = connection.execute(select(BASES.c.key)).scalar_one()
    asked = {
        "facts": ["facts"], "rules": ["rules"], "kernels": ["kernels"], "runs": ["runs"], "attempts": ["attempts"],
        "attempts of a run": ["attempts", "--run", RUN], "calls": ["calls"], "tasks": ["tasks"],
        "search": ["search", "gelu"], "why": ["why", "linear_gelu"], "mine": ["mine"], "report": ["report"],
        "show task": ["show", "linear_gelu"], "show kernel": ["show", SECOND.digest],
        "show run": ["show", RUN], "show trial": ["show", trial(128, 30.0).key], "show rule": ["show", rule],
        "show fact": ["show", browse.facts(store.database)[0]["key"]], "show chip": ["show", "h200"],
        "show call": ["show", call], "export": ["export", "x.jsonl"], "import": ["import", "x.jsonl"],
        "show base": ["show", base], "verify": ["verify", tested, "--plan"],
    }  # fmt: skip
    found = {}
    for what, arguments in asked.items():
        assert invoke(["kb", *arguments, "--json"]) == 0
        document = json.loads(capfd.readouterr().out)
        found[what] = set(document[0] if isinstance(document, list) else document)
        if what == "verify":
            found["verify place"] = set(document["places"][0])
    parts = json_of(capfd, "linear_gelu")["places"][0]
    found |= {"place": set(parts), "lost": set(parts["lost"][0])}
    found["lineage"] = set(json_of(capfd, SECOND.digest)["lineage"][0])
    found["curve"] = set(json_of(capfd, RUN)["curves"][0])
    assert documented.keys() == found.keys()
    assert {what: documented[what] ^ fields for what, fields in found.items() if documented[what] != fields} == {}


def json_of(capfd: pytest.CaptureFixture[str], what: str) -> dict[str, Any]:
    invoke(["kb", "show", what, "--json"])
    return dict(json.loads(capfd.readouterr().out))
