"""``agent compare`` on a card: every form is timed, and the patched ones run generated kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.cli import invoke
from kernels_generated.ops.gpu import gpu

pytestmark = pytest.mark.gpu

TEXT = """
import torch
from torch import nn

class MLP(nn.Module):
    def __init__(self, n=768):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(n), nn.GELU("tanh")
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))

model, example = nn.Sequential(MLP(), MLP()).to(torch.bfloat16), torch.randn(8, 1024, 768, dtype=torch.bfloat16)
"""


@pytest.mark.parametrize("mode", ["reduce-overhead", "none"])
def test_forms_are_timed(
    mode: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = gpu(0)
    if isinstance(card, str):
        pytest.skip(card)
    if card.arch != "sm_90":
        pytest.skip(f"the cubins that ship are for sm_90, this is {card.arch}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TEXT)
    assert invoke(["compare", "mine.py", "--mode", mode, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["lacking"] == {}
    rows = {row["name"]: row for row in document["times"]}
    assert list(rows) == ["eager", "patched", *(["torch.compile", "tilewright"] if mode != "none" else [])]
    assert all(0 < row["low"] <= row["ms"] <= row["high"] for row in rows.values())
    assert rows["patched"]["ratio"] == 1
    assert rows["eager"]["generated"] == 0
    assert rows["patched"]["generated"] == 8
    if mode != "none":
        assert rows["torch.compile"]["generated"] == 0
        # Products with GELU, and with the residual sum, which takes about as long as PyTorch's: each is raced.
        assert rows["tilewright"]["generated"] in (2, 4)
        assert rows["tilewright"]["busy_ms"] < rows["torch.compile"]["busy_ms"]
    assert rows["eager"]["error"] == 0
    assert all(row["error"] < 1e-2 for row in rows.values())
