"""`agent kb report`: one page of HTML that needs nothing else, and in which whatever a base holds is text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agent.cli import invoke
from agent.overview import gather, html
from knowledge_base.database import Database
from knowledge_base.records import Candidate, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf import everyday
from knowledge_base.store import RunRecord, Store
from knowledge_base.tables import RULES, RUNS

TASK = everyday("layernorm")
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Holds the page to closing what it opens, and collects its texts, ids and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [
            value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "style") and value
        ]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def trial(rows: int, us: float, right: bool = False, kind: str = "modelled") -> Trial:
    candidate = Candidate(source="AXES = {}\n", task=TASK.identity)
    time = Measurement(kind=kind, chip="h200", us=us, floor_us=8.0)  # type: ignore[arg-type]
    verdict = Verdict(status=Status.CORRECT, stage=Stage.DONE) if right else None
    return Trial(
        candidate=candidate, configuration={"ROWS": rows}, chip="h200", shape=TASK.sizes, evaluator="v1",
        verdict=verdict, measurements=(time,),
    )  # fmt: skip


def run(store: Store, name: str, *tried: Trial) -> None:
    store.start_run(RunRecord(name, "layernorm", "h200", "cpu", "synthesizer", "running"))
    for one in tried:
        store.record([one], run=name, move="search")
    store.record_winner(name, min(tried, key=lambda t: t.time.us if t.time else 0.0))
    store.finish_run(name, "done", 0, {})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with Store.open(str(tmp_path / "runs/knowledge.db")) as opened:
        opened.record_tasks([TASK])
        yield opened


def test_curves_of_several_runs_stand_beside_the_first_time_of_the_first(store: Store) -> None:
    run(store, "first", trial(1, 40.0, True), trial(2, 20.0))
    run(store, "second", trial(2, 20.0, True), trial(3, 16.0), trial(4, 30.0), trial(5, 10.0, True))
    gathered = gather(store.database)
    (place,) = gathered["places"]
    assert [curve["run"] for curve in place["curves"]] == ["first", "second"]
    assert place["start_us"] == 40.0
    assert place["curves"][0]["speedups"] == [(1, 1.0), (2, 2.0)]
    assert place["curves"][1]["speedups"] == [(1, 2.0), (2, 2.5), (4, 4.0)]
    (chip,) = gathered["chips"]
    (kernel,) = chip["kernels"]
    assert (chip["name"], kernel["us"], kernel["bytes"]) == ("h200", 10.0, 2 * (2 * 8192 * 768 + 2 * 768))
    assert gather(store.database, gpu="b200")["chips"] == []
    assert gather(store.database, op="attention")["places"] == []


def test_the_page_is_one_file_of_well_formed_html_with_its_pictures_inside(store: Store) -> None:
    run(store, "first", trial(1, 40.0, True), trial(2, 20.0))
    text = html(gather(store.database))
    page = Page(text)
    assert page.tags >= {"svg", "table", "nav"}
    assert "script" not in page.tags
    assert [one for one in page.references if re.search(r"//|url\((?!#)", one)] == []
    pictures = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert len(pictures) == 3  # roofline, learning curves, rules
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert "~20.0" in text
    assert "2.50" in text  # times the speed of light
    assert all(
        rule["statement"] in text for rule in gather(store.database)["rules"][:5] if "<" not in rule["statement"]
    )


def test_whatever_a_base_holds_is_text(store: Store) -> None:
    evil = "<script>alert(1)</script>\"'&{{ 7*7 }}"
    run(store, "first", trial(1, 40.0, True), trial(2, 20.0))
    with store.database.write() as connection:
        connection.execute(RULES.update().values(statement=evil, source=evil, status="supported"))
        connection.execute(RUNS.update().values(target=evil, proposer="</td>"))
    text = html(gather(store.database))
    assert "script" not in Page(text).tags
    assert "<script" not in text
    assert "49" not in re.findall(r"alert\(1\)[^{]*(.{9})", text)


def test_a_base_with_nothing_in_it_has_a_page(store: Store) -> None:
    with store.database.write() as connection:
        connection.execute(RULES.update().values(effect=None))
    text = html(gather(store.database))
    Page(text)
    assert "agent run --target gpt2-block" in text
    assert "No run has found anything right yet." in text


def test_the_command_writes_it_where_it_is_told(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    run(store, "first", trial(1, 40.0, True, "measured"), trial(2, 20.0, True, "measured"))
    assert invoke(["kb", "report"]) == 0
    assert capfd.readouterr().out == "runs/knowledge.html\n"
    assert "What is known" in Path("runs/knowledge.html").read_text()
    assert invoke(["kb", "report", "--gpu", "h200", "--op", "layernorm", "--out", "a b/page.html", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["file"], document["chips"][0]["name"]) == ("a b/page.html", "h200")
    assert "<title>tilewright: layernorm on h200</title>" in Path("a b/page.html").read_text()
    assert invoke(["kb", "report", "--gpu", "h2000"]) == 2
    assert invoke(["kb", "report", "--out", "/proc/page.html"]) == 3
    assert "--out" in capfd.readouterr().err


def test_a_password_in_the_bases_address_is_not_on_the_page(store: Store) -> None:
    database = Database("postgresql+psycopg://me:hunter2@host/base", store.database.engine)
    page = html(gather(database))
    assert "me:***@host/base" in page
    assert "hunter2" not in page
