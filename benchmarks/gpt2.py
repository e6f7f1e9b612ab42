"""GPT-2 on generated kernels beside PyTorch, on a GPU: the forward pass, and tokens a second.

    python benchmarks/gpt2.py [--model gpt2] [--mode reduce-overhead]

Forward passes are bfloat16, each a CUDA graph (torch.compile's as its mode has it), timed in turns; decoding is eager
on both sides, one text after a prompt of 64 tokens, so that what the processor does counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels_generated import gpt2

ROUNDS, CALLS = 7, 10


def plain(model: gpt2.GPT, idx: torch.Tensor, past: list[torch.Tensor] | None = None, start: int = 0) -> torch.Tensor:
    """The same model through PyTorch's own operators.  past: [2, B, H, room, D] a layer, which it fills."""
    (B, T), C, H = idx.shape, model.config.n_embd, model.config.n_head
    x = F.embedding(idx, model.wte.weight) + model.wpe.weight[start : start + T]
    for number, block in enumerate(model.h):
        h = F.layer_norm(x, (C,), block.ln_1.weight, block.ln_1.bias)
        qkv = F.linear(h, block.attn["c_attn"].weight, block.attn["c_attn"].bias).view(B, T, 3, H, C // H)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if past is not None:
            past[number][:, :, :, start : start + T] = qkv[:, :, 1:].permute(2, 0, 3, 1, 4)
            k, v = past[number][:, :, :, : start + T]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=start == 0).transpose(1, 2).reshape(B, T, C)
        x = x + F.linear(y, block.attn["c_proj"].weight, block.attn["c_proj"].bias)
        h = F.layer_norm(x, (C,), block.ln_2.weight, block.ln_2.bias)
        h = F.gelu(F.linear(h, block.mlp["c_fc"].weight, block.mlp["c_fc"].bias), approximate="tanh")
        x = x + F.linear(h, block.mlp["c_proj"].weight, block.mlp["c_proj"].bias)
    return F.linear(F.layer_norm(x, (C,), model.ln_f.weight, model.ln_f.bias), model.lm_head.weight)


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


def tokens_a_second(step: Callable[[torch.Tensor, int], torch.Tensor], idx: torch.Tensor, count: int) -> float:
    with torch.no_grad():
        token = step(idx, 0)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for place in range(idx.shape[1], idx.shape[1] + count):
            token = step(token, place)
        torch.cuda.synchronize()
    return count / (time.perf_counter() - begin)


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
    idx = torch.randint(model.config.vocab_size, (1, 64), device="cuda")
    cache = gpt2.KVCache(model.config, 1, 320, model.wte.weight)
    past = list(gpt2.KVCache(model.config, 1, 320, model.wte.weight).kv)

    def ours(token: torch.Tensor, place: int) -> torch.Tensor:
        return model._logits(model._blocks(token, cache)[:, -1]).argmax(-1, keepdim=True)

    def theirs(token: torch.Tensor, place: int) -> torch.Tensor:
        return plain(model, token, past, place)[:, -1].argmax(-1, keepdim=True)

    for _ in range(2):  # the second time all has been chosen and built that a length wants
        cache.length, cache.last = 0, cache.last.fill_(-1)
        fast, slow = tokens_a_second(ours, idx, 200), tokens_a_second(theirs, idx, 200)
    print(f"decoding B=1, eager: ours {fast:.0f} tokens/s, PyTorch {slow:.0f} ({fast / slow:.2f})")


if __name__ == "__main__":
    main()
