"""The command line as people meet it: exit codes, messages, JSON, and tables that fit."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from agent.cli import app, invoke
from agent.commands import options
from agent.proposers.choice import choose
from evaluator.confinement.barriers import Containment
from evaluator.confinement.confine import containment
from knowledge_base import rules
from knowledge_base.errors import UserError
from knowledge_base.records import Level
from knowledge_base.seed import mined

sys.path.insert(0, str(Path(__file__).parents[1]))
from house import MODULES, tree

LISTINGS = ("facts", "rules", "kernels", "runs", "attempts", "tasks")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in an empty folder: runs/ is made there."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def json_of(capfd: pytest.CaptureFixture[str]) -> object:
    """Standard output as the one JSON document it must be."""
    out = capfd.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["kb"], ["kb", "--help"]])
def test_help_is_help(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 0
    assert "Usage" in capfd.readouterr().out


def test_help_comes_at_once() -> None:
    def seconds() -> float:
        """Of the processor, whatever else the machine does."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "agent", "--help"], cwd=ROOT, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5


ROOT = Path(__file__).parents[2]


def test_the_contract_of_run_stands_in_its_help(capfd: pytest.CaptureFixture[str]) -> None:
    invoke(["run", "--help"])
    text = capfd.readouterr().out
    for option in (
        "--target", "--gpu", "--device", "--proposer", "--model", "--rounds", "--budget-minutes",
        "--budget-tokens", "--budget-usd", "--prices", "--shape", "--db",
        "--resume", "--seed", "--jobs", "--search-seconds", "--json",
    ):  # fmt: skip
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rum"], "rum"),
        (["kb", "rulez"], "rules"),
        (["kb", "rules", "--status", "suported"], "supported"),
        (["kb", "facts", "--gpu", "rtx5071"], "rtx5070"),
        (["kb", "show", "no-such-thing"], "nothing has an id"),
        (["kb", "show", "h20"], "h200"),
        (["kb", "search"], "WORD"),
        (["kb", "search", "tma", "--kind", "kernle"], "kernel"),
        (["kb", "show", "h200", "--gpu", "h2000"], "h200"),
        (["kb", "why", "liner"], "linear"),
        (["kb", "why", "linear_residual", "--target", "gpt2-block"], "several of that name"),
        (["kb", "why", "linear", "--tokens", "0"], "--tokens"),
        (["promote", "no-such-run"], "no run"),
        (["promote", ""], "no run ''"),
        (["kb", "facts", "--nonsense"], "--nonsense"),
        (["check"], "FILE.py"),
    ],
)
def test_a_wrong_word_is_exit_2_and_says_what_would_be_right(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == 2
    captured = capfd.readouterr()
    assert says in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) >= 2  # what, and what to do


def test_with_json_an_error_is_a_document_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["kb", "rules", "--status", "suported", "--json"]) == 2
    assert json_of(capfd)["error"]["exit_code"] == 2  # type: ignore[index]


@pytest.mark.parametrize("what", LISTINGS)
def test_a_knowledge_base_that_is_not_there_is_exit_2(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["kb", what, "--db", "nowhere/kb.db"]) == 2
    assert "there is no knowledge base at nowhere/kb.db" in capfd.readouterr().err


def test_looking_creates_nothing(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (["kb", "kernels"], ["kb", "facts"], ["doctor"]):
        assert invoke(arguments) == 0
    capfd.readouterr()
    assert list(elsewhere.iterdir()) == []


def test_looking_works_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/proc")
    assert invoke(["kb", "facts"]) == 0
    assert invoke(["doctor"]) == 3  # a run has nowhere to go
    captured = capfd.readouterr()
    assert "Missing: runs, database." in captured.out
    assert "Ready" not in captured.out
    assert "Traceback" not in captured.err


def test_an_unwritable_database_is_exit_3(capfd: pytest.CaptureFixture[str]) -> None:
    code = invoke(["doctor", "--db", "/proc/nowhere/kb.db"])
    assert code == 3
    captured = capfd.readouterr()
    assert "/proc/nowhere" in captured.err + captured.out
    assert "Traceback" not in captured.err


def test_a_file_where_runs_are_kept_is_what_doctor_misses(capfd: pytest.CaptureFixture[str]) -> None:
    Path("runs").touch()
    assert invoke(["doctor", "--json"]) == 3
    missing = {f["name"]: f["says"] for f in json_of(capfd)["findings"] if f["state"] == "missing"}  # type: ignore[index]
    assert set(missing) == {"runs", "database"}
    assert all("runs is no folder" in said for said in missing.values())


def test_ctrl_c_is_said_whatever_it_ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def stopped(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("agent.commands.doctor.doctor", stopped)
    assert invoke(["doctor", "--json"]) == 130
    captured = capfd.readouterr()
    assert captured.err == "agent: interrupted\n"
    assert json.loads(captured.out)["error"]["exit_code"] == 130


@pytest.mark.parametrize("what", ["kernels", "runs", "attempts", "tasks"])
def test_an_empty_base_says_how_to_fill_it(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["kb", what]) == 0
    assert "agent run --target" in capfd.readouterr().out
    assert invoke(["kb", what, "--json"]) == 0
    assert json_of(capfd) == []


@pytest.mark.parametrize(
    "arguments",
    [["kb", what] for what in ("facts", "rules")] + [["kb", "why", "attention"], ["kb", "search", "tma"], ["doctor"]],
)
def test_tables_fit_80_columns(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) > 5
    assert max(len(line) for line in lines) <= 80


def test_facts_and_rules_filter(capfd: pytest.CaptureFixture[str]) -> None:
    invoke(["kb", "facts", "--gpu", "rtx5070", "--json"])
    assert {f["chip"] for f in json_of(capfd)} == {"rtx5070"}  # type: ignore[attr-defined]
    invoke(["kb", "rules", "--op", "linear-gelu", "--json"])
    assert {r["op"] for r in json_of(capfd)} == {"linear_gelu"}  # type: ignore[attr-defined]
    invoke(["kb", "rules", "--gpu", "h200", "--json"])
    assert "rtx5070" not in {r["chip"] for r in json_of(capfd)}  # type: ignore[attr-defined]


def test_why_is_what_a_prompt_says_and_what_it_has_no_room_for(capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["linear_gelu", "--gpu", "h200"]
    assert invoke(["kb", "why", *asked, "--json"]) == 0
    whole: Any = json_of(capfd)
    assert (whole["task"], whole["chip"], whole["tilegym"]) == (
        "linear_gelu", "h200", "matmul.py: _static_persistent_matmul_kernel"
    )  # fmt: skip
    worth = [item["worth"] for item in whole["items"]]
    assert worth == sorted(worth, reverse=True)
    for item in whole["items"]:
        assert item["worth"] == pytest.approx(item["match"] * item["effect"] * item["new"], abs=1e-5)
    assert invoke(["prompt", "--task", *asked]) == 0
    said = capfd.readouterr().out.replace("\n", " ")
    assert sum(not item["told"] for item in whole["items"]) > 0
    for item in whole["items"]:
        assert (item["text"] in said) == item["told"], item
    assert invoke(["kb", "why", *asked, "--tokens", "300", "--json"]) == 0
    less: Any = json_of(capfd)
    told, before = (sum(item["told"] for item in one["items"]) for one in (less, whole))
    assert 3 < told < before
    assert invoke(["kb", "why", *asked, "--tokens", "300"]) == 0
    text = " ".join(capfd.readouterr().out.split())
    assert f"{len(worth) - told} in brackets are not told: they do not fit 300 tokens." in text
    assert "0.72 (linear is in it, on this GPU)" in text


def test_mining_says_what_it_looked_at_and_what_became_of_rules(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what ships nothing is new; of a part of it some rules are, in a table of 80 columns."""
    assert invoke(["kb", "mine", "--json"]) == 0
    document: Any = json_of(capfd)
    assert (document["own"], document["changes"]) == (0, [])
    assert document["configurations"] > 10_000
    assert document["rules"]["supported"] == len(mined())
    rows = [row for row in rules.shipped() if row.session == "h200_product"]
    monkeypatch.setattr("knowledge_base.rules.rows.shipped", lambda: iter(rows))
    assert invoke(["kb", "mine"]) == 0
    out = capfd.readouterr().out
    assert f"{len(rows)} configurations (0 of this base) in 8 spaces." in out.replace("\n", " ")
    assert "new: supported" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    invoke(["kb", "rules", "--json"])
    listed: Any = json_of(capfd)
    assert sum(rule["status"] == "supported" for rule in listed) > len(mined())


def test_doctor_says_what_there_is_and_what_holds_a_candidate(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--json"]) == 0
    document = json_of(capfd)
    names = {f["name"]: f for f in document["findings"]}  # type: ignore[index]
    assert {"Python", "torch", "cuda-tile", "tileiras", "ptxas", "TileGym", "GPU", "proposer", "database"} <= set(names)
    assert names["cuda-tile"]["state"] == "ok"
    assert names["containment"]["says"].startswith(containment().level.value)
    assert document["notice"] == containment().says  # type: ignore[index]


@pytest.mark.parametrize(
    "command",
    [["run", "--target", "gpt2-block"], *([c, "gelu.py", "--task", "gelu"] for c in ("check", "search", "emulate"))],
)
def test_a_level_that_is_not_reached_ends_with_3_before_anything_is_done(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        options, "containment", lambda: Containment(why="this kernel has no seccomp filters", mend="another kernel")
    )
    assert invoke([*command, "--require-sandbox", "filtered"]) == 3
    said = capfd.readouterr().err
    assert "candidates are contained at level limited, not filtered: this kernel has no seccomp filters" in said
    assert "another kernel" in said
    assert invoke([*command, "--require-sandbox", "filterd", "--json"]) == 2
    assert "Levels: full, filtered, limited." in capfd.readouterr().out


def test_a_level_that_is_reached_is_no_obstacle(capfd: pytest.CaptureFixture[str]) -> None:
    for level in Level:
        wanted = ["check", "none.py", "--task", "gelu", "--require-sandbox", level.value]
        assert invoke(wanted) == (2 if containment().level.reaches(level) else 3)


def test_doctor_names_the_command_that_mends_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from kernels_generated.runtime import assembler

    monkeypatch.setattr(assembler, "search_path", lambda: (tmp_path,))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoke(["doctor", "--json"]) == 3
    findings = {f["name"]: f for f in json_of(capfd)["findings"]}  # type: ignore[index]
    assert findings["tileiras"]["state"] == "missing"
    assert "pip install" in findings["tileiras"]["mend"]


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """What bash makes of ``script``, where ``agent`` is ours."""
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = f'agent() {{ "{sys.executable}" -m agent "$@"; }}\n{script}'
    variables = os.environ | {"PYTHONPATH": search} | environment
    return subprocess.run(["bash", "-c", script], capture_output=True, env=variables, timeout=120)


@pytest.mark.parametrize(
    "command",
    [
        "kb facts",
        "targets",
        "kb facts --json",
        f"check {ROOT}/tests/candidates/gelu_tiles.py --task gelu --shape M=33,N=70 2>&1",
    ],
)
def test_a_reader_that_stops_early_ends_the_command_quietly_as_sigpipe_does(command: str) -> None:
    # `true` reads nothing at all: with `head`, a short output may have been read whole.
    assert shell(f"agent {command} | true; echo ${{PIPESTATUS[0]}} >&2").stderr == b"141\n"


CHECK = f"check {ROOT}/tests/candidates/gelu_tiles.py --task gelu --shape M=33,N=70"


@pytest.mark.parametrize(
    ("command", "closed"),
    [("targets", ">&-"), ("targets", ">&- 2>&-"), ("targets", "<&- >&- 2>&-"), (f"{CHECK} --json", ">&-")],
)
def test_a_closed_standard_stream_changes_nothing_but_what_is_seen(command: str, closed: str) -> None:
    done = shell(f"agent {command} {closed}")
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["targets", "kb facts --json", "--version", "--help"])
def test_a_full_standard_output_is_one_line_and_exit_3(command: str) -> None:
    done = shell(f"agent {command} > /dev/full")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1:] == [b"agent: can't print: No space left on device"]
    assert b"Traceback" not in done.stderr
    assert shell(f"agent {command} > /dev/full 2> /dev/full").returncode == 3


def test_what_an_encoding_has_not_is_spelled_out() -> None:
    done = shell("agent targets --json", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_a_file_name_that_is_no_utf8_is_judged_stored_and_shown(elsewhere: Path) -> None:
    candidate = (ROOT / "tests" / "candidates" / "gelu_tiles.py").read_bytes()
    (elsewhere / os.fsdecode(b"g\xe9lu.py")).write_bytes(candidate)
    (elsewhere / os.fsdecode(b"s\xe9lect.snf")).write_text("M, N = 4, 40\nx: f32[M, N]\ny = GELU(x)")
    done = shell("agent check g$'\\xe9'lu.py --task gelu --shape M=33,N=70 --json")
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "correct"), done.stderr
    done = shell("agent run --target s$'\\xe9'lect.snf --proposer synthesizer --search-seconds 1 --json")
    assert (done.returncode, json.loads(done.stdout)["target"]) == (0, r"s\xe9lect.snf"), done.stderr
    assert b"-s-xe9lect-" in shell("agent kb runs").stdout
    assert shell("agent kb show s$'\\xe9'lect.snf").returncode == 2


def test_a_candidate_may_begin_with_a_byte_order_mark(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "tests" / "candidates" / "gelu_tiles.py").read_bytes()
    (elsewhere / "marked.py").write_bytes(b"\xef\xbb\xbf" + text)
    assert invoke(["emulate", "marked.py", "--task", "gelu", "--shape", "M=33,N=70"]) == 0


def test_the_version_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capfd.readouterr().out.startswith("agent (tilewright) ")


def test_the_candidate_in_the_documentation_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "candidate.md").read_text()
    (tmp_path / "my_gelu.py").write_text(text.split("```python\n")[1].split("```")[0])
    shape = ["--shape", "M=33,N=70,K=40", "--gpu", "rtx5070", "--json"]
    assert invoke(["emulate", "my_gelu.py", "--task", "linear_gelu", *shape]) == 0
    assert json_of(capfd)["outputs"]["y"]["rms_ratio"] < 2  # type: ignore[index]


def test_targets_lists_argument_orders_targets_and_chips(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["targets"]) == 0
    out = capfd.readouterr().out
    assert "linear_gelu(x[M,K], w[N,K], b[N]) -> y[M,N]" in out
    assert "gpt2-block" in out
    assert "rtx5070" in out
    assert max(map(len, out.splitlines())) <= 80


def test_targets_of_a_file_says_what_launch_gets_for_each_task(
    elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "my.snf").write_text(
        "T, A, C = 8, 16, 4\nq: f32[T, A]\nk: f32[T, A]\nr: f32[T, C]\ny = (q @ k.T + r @ r.T) / sqrt(A + C)"
    )
    assert invoke(["targets", "my.snf", "--json"]) == 0
    rows = json_of(capfd)
    assert [(r["option"], r["launch"]) for r in rows] == [  # type: ignore[attr-defined]
        ("--target", ["x[M,K]", "x2[N,K]", "y[M,N]"]),
        ("--target", ["x[N,K]", "r[N,N]", "y[N,N]", "N2"]),
        ("--task", ["x[N,K]", "x2[N,K2]", "x3[N,K2]", "y[N,N]"]),
    ]
    assert invoke(["targets", "my.snf"]) == 0
    out = capfd.readouterr().out
    assert "launch(stream, x[N,K], r[N,N], y[N,N], N2, *, …)" in out
    assert max(map(len, out.splitlines())) <= 80
    assert invoke(["targets", "gpt2-blok"]) == 2
    assert "did you mean gpt2-block" in capfd.readouterr().err


def test_sizes_and_axes_are_read_as_they_are_written() -> None:
    assert options.sizes(["B=2, T=128"]) == options.sizes(["B=2", "T=128"]) == {"B": 2, "T": 128}
    assert options.sizes(None) == {}
    assert options.axes(["TM=64,fast=True", "mode=x"]) == {"TM": 64, "fast": True, "mode": "x"}


@pytest.mark.parametrize("text", ["B", "B=", "=2", "B=two", "B=0", "B=-1", "B=1,B=2", "2=B"])
def test_a_shape_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--shape"):
        options.sizes([text])


def test_auto_picks_openai_only_with_an_endpoint_and_a_model_and_says_why() -> None:
    assert "OPENAI_API_KEY" in choose("auto", None, {}).why
    assert "names a model" in choose("auto", None, {"OPENAI_API_KEY": "k"}).why
    with pytest.raises(UserError, match="--model m: neither OPENAI_API_KEY nor OPENAI_BASE_URL is set"):
        choose("auto", "m", {})
    assert "names a model" in choose("auto", None, {"OPENAI_BASE_URL": "http://localhost"}).why
    both = choose("auto", "some-model", {"OPENAI_API_KEY": "k"})
    assert "some-model" in both.why
    assert "k" not in both.why.split()  # a key is never shown
    assert choose("synthesizer", None, {}).name == "synthesizer"


def test_openai_without_a_key_or_a_model_is_refused_with_what_is_missing() -> None:
    for environment, missing in (({}, "OPENAI_API_KEY"), ({"OPENAI_API_KEY": "k"}, "names a model")):
        with pytest.raises(UserError, match=missing) as caught:
            choose("openai", None, environment)
        assert "OPENAI_API_KEY" in caught.value.mend
    with pytest.raises(UserError, match="OPENAI_BASE_URL"):
        choose("openai", "m", {"OPENAI_BASE_URL": "localhost:8000"})


@pytest.mark.parametrize("name", ["synthesiser", "gpt"])
def test_a_proposer_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(UserError) as caught:
        choose(name, None, {})
    assert "synthesizer" in caught.value.mend


# ---------------------------------------------------------------------------------------------------- advice

# A module of agent.commands → the commands that it speaks for, where that is not its name.
SPEAKS_FOR = {"hardware": ("run", "search"), "recordings": ("run",), "kb": ("kb kernels",), "show": ("kb show",),
              "report": ("kb report",), "serve": ("kb serve",), "verify": ("kb verify",)}  # fmt: skip
OF_OTHERS = (
    "options",
    "targets",
    "task_option",
)  # what is wrong with an option that was given; what other commands are given


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def options_of() -> dict[str, set[str]]:
    """Each command's options."""
    found: dict[str, set[str]] = {}
    todo = [("", typer.main.get_command(app))]
    while todo:
        name, command = todo.pop()
        below = getattr(command, "commands", {})
        todo += [(f"{name} {word}".strip(), one) for word, one in below.items()]
        if not below:
            found[name] = {o for p in command.params for o in p.opts if o.startswith("--")}
    return found


def said(module: str) -> list[str]:
    """The texts in a module's code, an f-string as one with its values left out; docstrings are not among them."""
    texts, inside = [], set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.JoinedStr):
            parts = [v for v in node.values if isinstance(v, ast.Constant)]
            inside |= {id(v) for v in parts}
            texts.append("…".join(str(v.value) for v in parts))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            texts.append(node.value)
    return [text for text in texts if not OPTION.fullmatch(text)]  # alone it is given to another program


def test_a_command_advises_options_that_it_has() -> None:
    options = options_of()
    wrong = []
    for module in (m for m in MODULES if m.startswith("agent.commands.")):
        name = module.removeprefix("agent.commands.").removesuffix("_command")
        for text in (t for t in said(module) if name not in OF_OTHERS and "pip install" not in t):
            of_others = re.match(r"(?s)(.*?)\bagent ([a-z]+)", text)
            own = of_others.group(1) if of_others else text
            for command in SPEAKS_FOR.get(name, (name,)):
                has = options.get(command, set())
                wrong += [f"{module}: {text!r}" for option in OPTION.findall(own) if option not in has]
            if of_others and of_others.group(2) in options:
                has = options[of_others.group(2)]
                wrong += [f"{module}: {text!r}" for o in OPTION.findall(text[len(own) :]) if o not in has]
    assert wrong == []


def test_what_any_command_may_meet_advises_no_option() -> None:
    """The evaluator is used by commands with and without --jobs, and without any."""
    rooms = [m for m in MODULES if m.startswith(("evaluator.", "kernels_generated."))]
    spoken = [(m, call) for m in rooms for call in ast.walk(tree(m)) if isinstance(call, ast.Call)]
    of_errors = [(m, c) for m, c in spoken if getattr(c.func, "id", "") in ("UserError", "EnvironmentLacks")]
    wrong = [
        f"{module}:{call.lineno}"
        for module, call in of_errors
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " --" in node.value
    ]
    assert [w for w in wrong if "toolchain" not in w] == []  # of tileiras --version
    assert len(of_errors) > 10
