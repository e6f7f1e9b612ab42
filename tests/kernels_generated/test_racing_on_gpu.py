"""What is timed on a card while a model is compiled."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels_generated.patching import racing
from kernels_generated.patching.racing import Race, is_faster, race

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(racing, "_raced", {})


def test_the_faster_one_wins_and_is_remembered() -> None:
    x = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
    assert is_faster("key", [x], lambda x: x @ x, lambda x: x @ x @ x)
    (once,) = racing._raced.values()
    assert once.ours is not None
    assert once.theirs is not None
    assert 1.5 * once.ours < once.theirs < 3 * once.ours
    assert is_faster("key", [x], pytest.fail, pytest.fail)
    assert not is_faster("other", [x], lambda x: x @ x @ x, lambda x: x @ x)


def test_a_few_microseconds_are_told_apart() -> None:
    """A launch takes the CPU as long as such a kernel the card: that does not count."""
    x = torch.empty(128, 768, device="cuda", dtype=torch.bfloat16)
    found = race(x.device, [x], F.gelu, lambda x: F.gelu(F.gelu(F.gelu(x))))
    assert found.ours is not None
    assert found.theirs is not None
    assert found.ours < 5
    assert 1.5 * found.ours < found.theirs


def test_without_memory_nothing_is_taken() -> None:
    def large(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**44, device=x.device)

    x = torch.ones(3, device="cuda")
    assert race(x.device, [x], large, large) == Race(None, None)
    assert x.sum().item() == 3
