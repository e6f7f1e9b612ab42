"""GPT-2 on a GPU: generated kernels alone, as right as PyTorch's."""

from __future__ import annotations

import copy

import pytest
import torch
from plain_gpt2 import PlainGPT2

from kernels_generated import gpt2

pytestmark = pytest.mark.gpu
OURS = ("map_kernel", "rows_kernel", "matmul_kernel", "attention_kernel")


def kernels(call) -> list[str]:  # type: ignore[no-untyped-def]
    """The names of the kernels that a call launches."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [one.name for one in profile.events() if "memset" not in one.name.lower()]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_forward_and_decoding_run_generated_kernels(dtype: torch.dtype) -> None:
    config = gpt2.GPTConfig(2, 12, 768)
    model = gpt2.GPT(config, device="cuda", dtype=dtype)
    idx = torch.randint(50257, (1, 100), device="cuda")
    a_token = 3 + 7 * config.n_layer
    names = kernels(lambda: model(idx))
    assert len(names) == a_token
    assert all(name.startswith(OURS) for name in names), names
    cache = gpt2.KVCache(config, 1, 128, model.wte.weight)
    model._blocks(idx[:, :-1], cache)

    def decode() -> None:
        cache.length = 99
        cache.last.fill_(98)
        model._logits(model._blocks(idx[:, -1:], cache)[:, -1])

    names = kernels(decode)
    ours = [name for name in names if name.startswith(OURS)]
    assert len(ours) == a_token
    # PyTorch puts a layer's keys and values into the cache, and counts
    assert len(names) - len(ours) == config.n_layer + 2, names


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dialect", ["transformers", "mingpt"])
def test_logits_are_as_right_as_pytorchs(dialect: str, dtype: torch.dtype) -> None:
    plain = PlainGPT2(dialect, 3, 4, 256, 128, 300).to("cuda", dtype)
    idx = torch.randint(300, (3, 77), device="cuda")
    exact = copy.deepcopy(plain).double()(idx)
    model = gpt2.load(plain)
    found, theirs = ((one(idx).double() - exact).square().mean().sqrt() for one in (model, plain))
    assert found <= 1.2 * theirs
    decoded = model.generate(idx[:, :40], 30, temperature=0)
    assert decoded.shape == (3, 70)
