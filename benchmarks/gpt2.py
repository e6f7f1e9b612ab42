"""GPT-2 on generated kernels beside PyTorch, on a GPU: the forward pass, and tokens a second.

    python benchmarks/gpt2.py [--model gpt2] [--mode reduce-overhead]

Forward passes are bfloat16, each a CUDA graph (torch.compile's as its mode has it), timed in turns.  Decoding is one
text, the likeliest token each time, after a prompt of 64: ours as ``stream`` does it; PyTorch's eagerly, with keys and
values cut off at the token's place, and with torch.compile, where all of the cache is looked at under a mask.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from kernels_generated import gpt2

ROUNDS, CALLS = 7, 10


def plain(model: gpt2.GPT, idx: torch.Tensor) -> torch.Tensor:
    """The same model through PyTorch's own operators."""
    return _plain(model, idx, model.wpe.weight[: idx.shape[1]], lambda layer, q, k, v: (k, v, {"is_causal": True}))


Kept = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]


def _plain(model: gpt2.GPT, idx: torch.Tensor, positions: torch.Tensor, kept: Kept) -> torch.Tensor:
    """kept: what keys and values are, of a layer's q, k and v, and how attention treats them."""
    (B, T), C, H = idx.shape, model.config.n_embd, model.config.n_head
    x = F.embedding(idx, model.wte.weight) + positions
    for number, block in enumerate(model.h):
        h = F.layer_norm(x, (C,), block.ln_1.weight, block.ln_1.bias)
        qkv = F.linear(h, block.attn["c_attn"].weight, block.attn["c_attn"].bias).view(B, T, 3, H, C // H)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        k, v, how = kept(number, q, k, v)
        y = F.scaled_dot_product_attention(q, k, v, **how).transpose(1, 2).reshape(B, T, C)
        x = x + F.linear(y, block.attn["c_proj"].weight, block.attn["c_proj"].bias)
        h = F.layer_norm(x, (C,), block.ln_2.weight, block.ln_2.bias)
        h = F.gelu(F.linear(h, block.mlp["c_fc"].weight, block.mlp["c_fc"].bias), approximate="tanh")
        x = x + F.linear(h, block.mlp["c_proj"].weight, block.mlp["c_proj"].bias)
    return F.linear(F.layer_norm(x, (C,), model.ln_f.weight, model.ln_f.bias), model.lm_head.weight)


def plain_next(model: gpt2.GPT, token: torch.Tensor, kv: torch.Tensor, place: int) -> torch.Tensor:
    """token[B, 1] at ``place`` → the next one, [B, 1]; kv: [n_layer, 2, B, H, room, D]."""

    def kept(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        kv[layer, 0, :, :, place : place + 1], kv[layer, 1, :, :, place : place + 1] = k, v
        return kv[layer, 0, :, :, : place + 1], kv[layer, 1, :, :, : place + 1], {}

    return _plain(model, token, model.wpe.weight[place : place + 1], kept)[:, -1].argmax(-1, keepdim=True)


def masked_next(model: gpt2.GPT, token: torch.Tensor, kv: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """The same for a place [1] on the device, so that one recording serves all places."""
    seen = (torch.arange(kv.shape[4], device=place.device) <= place)[None, None, None, :]

    def kept(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        kv[layer, 0].index_copy_(2, place, k)
        kv[layer, 1].index_copy_(2, place, v)
        return kv[layer, 0], kv[layer, 1], {"attn_mask": seen}

    return _plain(model, token, model.wpe.weight[place], kept)[:, -1].argmax(-1, keepdim=True)


def graph(call: Callable[[], torch.Tensor]) -> Callable[[], None]:
    call()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        call()
    return recorded.replay


def milliseconds(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / CALLS


def in_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median of each, of rounds in which all take turns."""
    for call in calls.values():
        call()
    rounds = [{name: milliseconds(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    return {name: sorted(one[name] for one in rounds)[ROUNDS // 2] for name in calls}


def decoding(model: gpt2.GPT, mode: str, prompt: int = 64, count: int = 200) -> dict[str, float]:
    """Tokens a second after the prompt, the best of three times."""
    idx = torch.randint(model.config.vocab_size, (1, prompt), device="cuda")

    def empty() -> torch.Tensor:
        kv = gpt2.KVCache(model.config, 1, prompt + count + 1, model.wte.weight).kv
        torch._dynamo.mark_static_address(kv)  # as a module's buffer would be: else nothing of it is a CUDA graph
        return kv

    def cut() -> Iterator[torch.Tensor]:
        kv, token = empty(), idx[:, :1]
        for place in range(prompt, prompt + count + 1):
            yield token
            token = plain_next(model, token, kv, place)

    masked = torch.compile(masked_next, mode=mode) if mode != "none" else masked_next

    def compiled() -> Iterator[torch.Tensor]:
        kv, token = empty(), idx[:, :1]
        place = torch.full((1,), prompt, device="cuda")
        for _ in range(count + 1):
            yield token
            token = masked(model, token, kv, place).clone()
            place += 1

    ours = partial(model.stream, idx, count + 1, temperature=0)
    ways: dict[str, Callable[[], Iterator[torch.Tensor]]] = {"ours": ours, "eager": cut}
    if mode != "none":
        ways[mode] = compiled
    found: dict[str, float] = dict.fromkeys(ways, 0.0)
    for _ in range(3):
        for name, way in ways.items():
            tokens = way()
            next(tokens)  # the prompt
            for _ in range(3):  # the first tokens prepare what the others need
                next(tokens)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            left = sum(1 for _ in tokens)
            torch.cuda.synchronize()
            found[name] = max(found[name], left / (time.perf_counter() - begin))
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2", choices=gpt2.PRESETS)
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile; none: leave it out")
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = gpt2.GPT(gpt2.PRESETS[asked.model], device="cuda", dtype=torch.bfloat16)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {asked.model}, bfloat16")
    for B, T in ((8, 1024), (8, 128), (1, 128)):
        idx = torch.randint(model.config.vocab_size, (B, T), device="cuda")
        calls: dict[str, Callable[[], object]] = {
            "ours": graph(lambda: model(idx)),  # noqa: B023  # recorded in this turn
            "eager": graph(lambda: plain(model, idx)),  # noqa: B023
        }
        if asked.mode != "none":
            compiled = torch.compile(plain, mode=asked.mode)
            calls[asked.mode] = lambda: compiled(model, idx)  # noqa: B023
        times = in_turns(calls)
        shown = ", ".join(f"{name} {ms:.3f} ms ({ms / times['ours']:.2f})" for name, ms in times.items())
        print(f"forward B={B} T={T}: {shown}")
    rates = decoding(model, asked.mode)
    shown = ", ".join(f"{name} {rate:.0f} tokens/s ({rates['ours'] / rate:.2f})" for name, rate in rates.items())
    print(f"decoding B=1: {shown}")


if __name__ == "__main__":
    main()
