"""`agent bench`: what is known of a target, timed beside other ways to do the same, on the emulated device."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from card_runs import SMALL, bytecodes, emulated, go
from device_double import DOUBLE
from model_runs import Said
from PIL import Image

from agent import comparison
from agent.cli import invoke
from agent.comparison import outcome
from agent.comparison.outcomes import score
from evaluator.baselines import BASELINES
from evaluator.replay import Runner
from knowledge_base.chips import CHIPS

CLOCK = {"clock": (40.0, 0.001)}
LEFT_OUT = {name: "not today" for name in BASELINES if name != "eager"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where a run has found a kernel for the target."""
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as monkeypatch:
        emulated(monkeypatch)
        assert go(folder, CLOCK, said=Said()).status == "done"
    (folder / "target.snf").write_text(SMALL)
    return folder


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, base: Path) -> Path:
    """A copy of it, which is the folder we work in."""
    emulated(monkeypatch)
    monkeypatch.setattr("agent.comparison.contests.cubins_of", bytecodes)
    monkeypatch.setattr("agent.comparison.contests.PROCESSES", 2)
    for name in ("kb.db", "target.snf"):
        shutil.copy(base / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def on_a_card(monkeypatch: pytest.MonkeyPatch, script: Mapping[str, object]) -> None:
    """A machine with an H200 that does as scripted; a baseline takes long to compile, so most are left out."""
    monkeypatch.setattr("agent.commands.bench_command.device_for", lambda device, chip: "cuda")
    monkeypatch.setattr("agent.commands.bench_command.runner_for", lambda chip: Runner(DOUBLE, {}, script))
    gathered = comparison.gathered

    def fewer(*args: Any) -> Any:
        contests, missing = gathered(*args)
        for one in contests:
            one.lacking |= LEFT_OUT
        return contests, missing

    monkeypatch.setattr("agent.comparison.gathered", fewer)


def asked(capfd: pytest.CaptureFixture[str], *more: str) -> tuple[int, Any, str]:
    capfd.readouterr()
    code = invoke(["bench", "--target", "target.snf", "--gpu", "h200", "--db", "kb.db", *more])
    said = capfd.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def test_ours_and_pytorch_are_timed_shown_and_known_afterwards(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    on_a_card(monkeypatch, {"clock": (30.0, 0.001)})
    code, _, said = asked(capfd)
    assert code == 0
    assert re.search(r"^add +(29|30)\.\d eager +(29|30)\.\d +1\.00× ", said, re.M), said
    assert "compile: not today" in said
    assert re.search(r"^\[ +\d+\.\d\] timing 1 part of target.snf in 5 fresh processes each, or more$", said, re.M), (
        said
    )
    assert max(map(len, said.splitlines())) <= 80
    (folder,) = (bench / "runs" / "bench").iterdir()
    assert folder.name == Path(said.splitlines()[-1]).name

    found = json.loads((folder / "bench.json").read_text())
    (row,) = found["rows"]
    assert (row["kind"], row["calls"], row["best"]) == ("measured", 1, "eager")
    assert row["us"] == pytest.approx(30.0, rel=0.01)
    assert row["interval_us"][0] < row["us"] < row["interval_us"][1]
    (eager,) = row["baselines"]
    assert eager["speedup"] == pytest.approx(1.0, rel=0.01)
    assert eager["speedup_interval"][0] < eager["speedup"] < eager["speedup_interval"][1]
    assert row["score"] == pytest.approx(0.5, abs=0.01)
    assert {name: [len(one) for one in series] for name, series in row["samples"].items()} == {
        "tilewright": [24, 24], "eager": [24, 24],
    }  # fmt: skip
    assert found["card"]["product"] == "emulated"
    assert row["lacking"]["CuPy"] == "not today"
    text = (folder / "bench.md").read_text()
    assert re.search(r"\| add \| \*\*tilewright\*\* \| \*\*(29|30)\.\d\*\* \| (29|30)\.\d to 3\d\.\d \|", text), text
    for name in ("speedup", "roofline", "samples"):
        with Image.open(folder / f"{name}.png") as picture:
            assert min(picture.size) > 100
        ElementTree.parse(folder / f"{name}.svg")

    assert invoke(["kb", "kernels", "--json", "--db", "kb.db"]) == 0
    (kernel,) = [k for k in json.loads(capfd.readouterr().out) if k["kernel"] == row["kernels"][0]]
    assert kernel["us"] == pytest.approx(30.0, rel=0.01)


def test_without_a_gpu_it_says_what_it_could_not_do_and_where(bench: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, found, _ = asked(capfd, "--json", "--device", "cpu")
    assert (code, found["rows"][0]["kind"], found["rows"][0]["baselines"], found["files"]) == (0, "modelled", [], [])
    code, _, said = asked(capfd, "--device", "cpu")
    assert code == 0
    assert "No h200 was used here, so nothing was timed" in " ".join(said.split())
    assert "agent bench --target target.snf --gpu h200 --db kb.db --device cuda" in " ".join(said.split())
    assert not (bench / "runs" / "bench").exists()


def test_a_kernel_that_is_wrong_on_the_card_has_no_time(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    on_a_card(monkeypatch, {"off": 0})
    code, _, said = asked(capfd)
    assert code == 1
    assert re.search("add: on the GPU: y.* should be", " ".join(said.split()))


def test_a_baseline_that_cannot_be_recorded_ends_its_process_and_is_left_out(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    on_a_card(monkeypatch, CLOCK | {"unrecordable": True})
    code, found, _ = asked(capfd, "--json")
    (row,) = found["rows"]
    assert (code, row["kind"], row["baselines"]) == (0, "measured", [])
    said = "cannot be recorded: RuntimeError: scripted: not while a graph is recorded"
    assert row["lacking"]["eager"] == said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--shape", "M=8"], 2, "at these sizes\n  First: agent run --target target.snf --shape M=8"),
        (["--gpu", "b200"], 2, "has no kernel for target.snf on b200"),
        (["--gpu", "b200", "--db", "my kb.db"], 2, "agent run --target target.snf --gpu b200 --db 'my kb.db'"),
        (["--device", "tpu"], 2, "--device tpu: no such device"),
        (["--device", "cuda"], 3, "--device cuda: there is no CUDA driver"),
        (["--target", "gpt2-blok"], 2, "did you mean gpt2-block"),
        (["--target", ""], 2, "--target is missing"),
        (["--out", "/dev/null/x"], 0, ""),  # without a GPU nothing is written
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(
    bench: Path, arguments: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found, _, err = asked(capfd, *arguments)
    assert (found, said in err) == (code, True), err


def test_the_score_is_half_where_both_are_as_fast_and_one_at_the_speed_of_light() -> None:
    assert score(40.0, 40.0, 10.0) == 0.5
    assert score(20.0, 40.0, 10.0) == pytest.approx(0.75)
    assert score(10.001, 40.0, 10.0) == pytest.approx(1.0, abs=0.001)
    assert score(70.0, 40.0, 10.0) == pytest.approx(1 / 3, abs=0.001)
    assert score(9.0, 40.0, 10.0) is None
    assert outcome([], CHIPS["h200"]) == []


@pytest.mark.parametrize(
    ("interval", "said"),
    [((1.03, 1.1), "faster"), ((1.01, 1.1), "even"), ((0.99, 1.01), "even"), ((0.8, 0.9), "slower"), (None, "")],
)
def test_faster_is_what_is_so_by_its_whole_interval(interval: tuple[float, float] | None, said: str) -> None:
    assert comparison.verdict({"speedup_interval": interval}) == said
