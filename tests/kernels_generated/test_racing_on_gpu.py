"""What is timed on a card while a model is compiled."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels_generated.patching import racing
from kernels_generated.patching.racing import Race, race

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(racing, "_raced", {})


def test_the_faster_one_wins_and_is_remembered() -> None:
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    once = race("key", x.device, lambda: x @ x, lambda: x @ x @ x)
    assert once.ours is not None
    assert once.theirs is not None
    assert 1.5 * once.ours < once.theirs < 3 * once.ours
    assert once.won
    assert race("key", x.device, pytest.fail, pytest.fail) is once
    assert not race("other", x.device, lambda: x @ x @ x, lambda: x @ x).won


def test_a_few_microseconds_are_told_apart() -> None:
    """A launch takes the CPU as long as such a kernel the card: that does not count."""
    x = torch.randn(128, 768, device="cuda", dtype=torch.bfloat16)
    found = race("small", x.device, lambda: F.gelu(x), lambda: F.gelu(F.gelu(F.gelu(x))))
    assert found.ours is not None
    assert found.theirs is not None
    assert found.ours < 5
    assert 1.5 * found.ours < found.theirs


def test_without_memory_nothing_is_taken() -> None:
    def large() -> torch.Tensor:
        return torch.empty(2**44, device="cuda")

    device = torch.device("cuda", 0)
    assert race("large", device, large, large) == Race(None, None)
    assert torch.ones(3, device="cuda").sum().item() == 3
