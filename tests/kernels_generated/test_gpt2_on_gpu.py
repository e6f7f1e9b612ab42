"""GPT-2 on a GPU: generated kernels alone, as right as PyTorch's."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from plain_gpt2 import PlainGPT2

from kernels_generated import gpt2, ops

pytestmark = pytest.mark.gpu
OURS = {launch.symbol for one in ops.operators().values() for manifest in one.manifests
        for winner in manifest.winners for plan in winner.plans for launch in manifest.plan(plan).launches}  # fmt: skip


def kernels(call) -> list[str]:  # type: ignore[no-untyped-def]
    """The names of the kernels that a call launches."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    done = [one.name for one in profile.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    return [name for name in done if "memset" not in name.lower()]  # a plan that adds up in parts fills first


def ours(names: list[str]) -> list[str]:
    return [name for name in names if any(symbol in name for symbol in OURS)]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_forward_and_decoding_run_generated_kernels(dtype: torch.dtype) -> None:
    config = gpt2.GPTConfig(2, 12, 768)
    model = gpt2.GPT(config, device="cuda", dtype=dtype)
    idx = torch.randint(50257, (1, 100), device="cuda")
    a_token = 3 + 7 * config.n_layer
    names = kernels(lambda: model(idx))
    assert len(names) == len(ours(names)) == a_token, names
    cache = gpt2.KVCache(config, 1, 128, model.wte.weight)
    model._blocks(idx[:, :-10], cache)
    token = idx[:, -1:].clone()  # a kernel reads from an aligned address
    names = kernels(lambda: model._next(token, cache))
    assert len(ours(names)) == a_token, names
    # PyTorch counts, takes the position's row, and puts a layer's keys and values into the cache
    assert len(names) - len(ours(names)) == config.n_layer + 2, names


@torch.no_grad()
def test_the_rows_of_many_logits_begin_aligned() -> None:
    """Beside generated kernels PyTorch makes the weight longer: zeros, and a copy."""
    model = gpt2.GPT(gpt2.GPTConfig(1, 12, 768, tied=False), device="cuda", dtype=torch.bfloat16)
    idx = torch.randint(50257, (3, 1024), device="cuda")
    names = kernels(lambda: model(idx))
    assert len(names) - len(ours(names)) == 2, names
    logits = model(idx)
    assert logits.stride() == (1024 * 50304, 50304, 1)
    one_by_one = torch.cat([model(row[None]) for row in idx])
    assert one_by_one.is_contiguous()
    torch.testing.assert_close(logits, one_by_one, rtol=2e-2, atol=2e-2)


def test_recorded_tokens_are_those_of_the_forward_pass() -> None:
    """Beyond what the model looks at, too, and from four threads at once."""
    model = gpt2.GPT(gpt2.GPTConfig(2, 4, 256, 128, 300), device="cuda")
    texts = torch.randint(300, (4, 2, 40), device="cuda")
    expected = texts
    with torch.no_grad():
        for _ in range(100):
            logits = model(expected.flatten(0, 1)[:, -128:])[:, -1].view(4, 2, -1)
            expected = torch.cat([expected, logits.argmax(-1, keepdim=True)], dim=2)
    assert torch.equal(model.generate(texts[0], 100, temperature=0), expected[0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: model.generate(text, 100, temperature=0), texts))
    assert torch.equal(torch.stack(found), expected)


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
