"""``agent compare``: a model of a user's on generated kernels beside itself, on the emulator; and what is no model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent.cli import invoke
from agent.models.sources import given
from agent.models.versus import versus
from knowledge_base.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1]))
from processes import below, gone

ROOT = Path(__file__).parents[2]

MLP = """
import torch
from torch import nn

print("words of the file")

class MLP(nn.Module):
    def __init__(self, n=32):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(n), nn.Linear(n, 96), nn.GELU("tanh"), nn.Linear(96, n)

    def forward(self, x, scale=1.0):
        return {"y": x + scale * self.down(self.act(self.up(self.norm(x))))}

def model():
    return MLP().to(torch.bfloat16)

example = {"x": torch.randn(2, 5, 32, dtype=torch.bfloat16), "scale": 0.5}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))


def written(text: str, name: str = "mine.py") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_a_file_is_compared_with_itself(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["compare", written(MLP), "--gpu", "h200", "--json"]) == 0
    said = capfd.readouterr()
    document: dict[str, Any] = json.loads(said.out)
    assert "words of the file" in said.err
    assert (document["model"], document["of"], document["parameters"]) == ("MLP", "mine.py", 6336)
    assert (document["device"], document["emulated"], document["card"]) == ("cpu", "h200", None)
    assert document["named"] == {"x": "bfloat16[2, 5, 32]", "scale": "0.5"}
    operators = {one["name"]: one["operator"] for one in document["modules"]}
    assert operators == {"norm": "layernorm", "up": "linear", "act": "gelu", "down": "linear"}
    assert list(document["errors"]) == ["['y']"]
    # Kernels and PyTorch round to bfloat16 alike: both are as far from float32, and not the same.
    assert 0 < document["errors"]["['y']"] < document["limit"] == 5e-2
    eager, patched = document["float32"]["eager"], document["float32"]["patched"]
    assert 0.5 < patched / eager < 2
    assert 1e-4 < eager < 1e-2
    assert document["times"] == []
    assert "GPU" in document["lacking"]["times"]


def test_what_is_printed_fits_80_columns_and_no_time_is_claimed(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["compare", written(MLP), "--gpu", "h200"]) == 0
    said = capfd.readouterr()
    assert all(len(line) <= 80 for line in said.out.splitlines())
    assert "MLP: 4 of 4 modules have generated kernels in their place" in said.out
    assert "the CPU, as h200 emulated" in said.out
    assert "no times: nothing is timed without a GPU" in said.err
    assert " ms" not in said.out


def test_a_model_that_then_computes_something_else_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    text = """
import torch

class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.calls = torch.nn.Linear(16, 16), 0

    def forward(self, x):
        self.calls += 1
        return self.calls * self.part(x)

model, example = M().bfloat16(), torch.ones(2, 16, dtype=torch.bfloat16)
"""
    assert invoke(["compare", written(text), "--gpu", "h200", "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert "differs by" in document["refused"]
    assert "nothing is patched" in document["refused"]
    assert document["modules"] == document["times"] == []
    assert invoke(["compare", "mine.py", "--gpu", "h200"]) == 1
    assert "nothing is patched" in " ".join(capfd.readouterr().err.split())


def test_dtypes_are_changed_on_demand(capfd: pytest.CaptureFixture[str]) -> None:
    text = "import torch\nmodel = torch.nn.Linear(16, 32)\nexample = (torch.randn(4, 16),)\n"
    assert invoke(["compare", written(text), "--gpu", "h200", "--dtype", "f16", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["dtypes"], document["example"]) == (["float16"], ["float16[4, 16]"])
    assert [one["operator"] for one in document["modules"]] == ["linear"]
    assert invoke(["compare", "mine.py", "--gpu", "h200", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["float32"] is None
    assert "float32 itself" in document["lacking"]["float32"]


HEAD = "import torch\nfrom torch import nn\n"
WRONG = {
    "no model": ("x = 1\n", "mine.py defines no model and no example"),
    "no example": (f"{HEAD}model = nn.Linear(4, 4)\n", "mine.py defines no example"),
    "another thing": (f"{HEAD}model = 3\nexample = torch.ones(4)\n", "model is a int, no torch.nn.Module"),
    "another shape": (
        f"{HEAD}model = nn.Linear(4, 4)\nexample = torch.ones(2, 5)\n",
        "does not take its example: it raised RuntimeError: mat1 and mat2",
    ),
    "a name": (f"{HEAD}\nmodel = nn.Linaer(4, 4)\n", "mine.py, line 4: running it raised AttributeError"),
    "no Python": ("model = (\n", "mine.py, line 1: running it raised SyntaxError"),
    "an exit": ("import sys\nsys.exit('enough')\n", "mine.py, line 2: running it raised SystemExit: enough"),
    "a function's": (
        f"{HEAD}example = torch.ones(4)\ndef model():\n    raise ValueError('no weights')\n",
        "mine.py, line 5: calling model raised ValueError: no weights",
    ),
    "input": (f"{HEAD}model = input()\n", "mine.py, line 3: running it raised EOFError"),
    "no tensors": (
        f"{HEAD}class M(nn.Module):\n    def forward(self, x): return 'text'\n"
        "model, example = M(), torch.ones(4)\n",
        "returns no floating-point tensors",
    ),
    "no numbers": (
        f"{HEAD}model, example = nn.Linear(4, 4), torch.full((2, 4), float('nan'))\n",
        "the model's outputs on this example are not finite",
    ),
    "a script": (
        f"{HEAD}model, example = torch.jit.script(nn.Linear(4, 4)), torch.ones(4)\n",
        "a ScriptModule runs no Python",
    ),
}  # fmt: skip


IN_A_PROCESS = ("an exit", "input", "no tensors", "a script")  # what only the process that has the model sees


@pytest.mark.parametrize("what", IN_A_PROCESS)
def test_what_is_wrong_with_a_file_is_said_with_its_line(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    text, said = WRONG[what]
    assert invoke(["compare", written(text)]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("what", [what for what in WRONG if what not in IN_A_PROCESS])
def test_a_file_that_gives_no_model_is_refused_with_its_line(what: str) -> None:
    """By what that process does, in this one: another would load torch for it."""
    text, said = WRONG[what]
    with pytest.raises(UserError) as caught:
        versus(given(written(text), "cpu", None, {}), "cpu", "h200", "none", lambda _: None)
    assert said in caught.value.what
    assert ("take its example" in said) == ("take its example" in caught.value.what)


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("gone.py", {}, "there is no file gone.py"),
        (".", {}, "has no config.json"),
        ("notes.txt", {}, "is a file, and no Python"),
        ("mine.py", {"B": 1}, "mine.py has an example of its own"),
    ],
)
def test_what_is_no_model_is_refused(name: str, sizes: dict[str, int], said: str) -> None:
    written(MLP)
    written("no model", "notes.txt")
    with pytest.raises(UserError) as caught:
        given(name, "cpu", None, sizes)
    assert said in caught.value.what


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt22"], "Did you mean gpt2"),
        (["mine.py", "--dtype", "f8"], "There are bf16, f16, f32"),
        (["mine.py", "--mode", "fast"], "There are default, reduce-overhead"),
        (["mine.py", "--gpu", "h300"], "h300"),
        ([], "MODEL"),
    ],
)
def test_wrong_words(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    written(MLP)
    assert invoke(["compare", *arguments]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("end", "said"), [("os._exit(0)", "ended with code 0"), ("os.kill(os.getpid(), 9)", "ended by SIGKILL")]
)
def test_a_process_that_ends_without_an_answer(end: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["compare", written(f"import os\n{end}\n"), "--json"]) == 3
    assert said in json.loads(capfd.readouterr().out)["error"]["what"]


def test_ctrl_c_ends_the_models_process_too() -> None:
    written("import time\nopen('begun', 'w').close()\ntime.sleep(60)\n")
    asked = [sys.executable, "-m", "agent", "compare", "mine.py"]
    process = subprocess.Popen(asked, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 60
    while not Path("begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    started = below(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert started
    assert gone(started, within_s=10)


def test_a_folder_of_transformers_and_a_name(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=65, n_positions=64)
    config.save_pretrained(tmp_path / "bare")
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "whole")
    for folder, about in (("bare", "bare, random weights"), ("whole", "whole")):
        assert invoke(["compare", folder, "--gpu", "h200", "--dtype", "bf16", "--shape", "T=9", "--json"]) == 0
        document = json.loads(capfd.readouterr().out)
        assert (document["model"], document["of"]) == ("GPT2LMHeadModel", about)
        assert document["named"]["input_ids"] == "int64[1, 9]"
        found = {one["kind"]: one["operator"] for one in document["modules"] if one["operator"]}
        assert found["GPT2Attention"] == "attention"
        assert document["float32"]["patched"] < 2 * document["float32"]["eager"]
    assert invoke(["compare", "bare", "--shape", "T=65"]) == 2
    assert "looks at 64 tokens at most" in capfd.readouterr().err
