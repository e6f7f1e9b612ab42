"""How fast the emulator is: cuTile kernels on the CPU against the same tile arithmetic as batched float32 torch calls.

Prints one JSON line a case: emulated seconds, with and without sanitizer, torch seconds, ratios, peak memory in MiB.
The reference runs the kernel's own tiling (k loop over batched tiles, online softmax over batched tiles), with all
tiles of the grid in one torch call, on float32 copies made beforehand; times are the best of several repetitions.

    python benchmarks/emulator.py [--repeat 9] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable

import cuda.tile as ct
import torch
from torch import Tensor

from evaluator import emulator
from evaluator.tileir import Sanitizer


@ct.kernel
def linear_gelu(x, w, b, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.full((TM, TN), 0.0, ct.float32)
    for k in range(ct.num_tiles(x, 1, (TM, TK))):
        left = ct.load(x, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(w, (k, j), (TK, TN), order=(1, 0), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(left, right, acc)
    z = acc + ct.load(b, (j,), (TN,)).astype(ct.float32)
    inner = 0.7978845608028654 * (z + 0.044715 * z * z * z)
    ct.store(y, (i, j), (0.5 * z * (1.0 + ct.tanh(inner))).astype(y.dtype))


@ct.kernel
def attention(q, k, v, o, scale: float, TQ: ct.Constant[int], TK: ct.Constant[int], D: ct.Constant[int]):
    i, h, b = ct.bid(0), ct.bid(1), ct.bid(2)
    query = ct.load(q, (b, h, i, 0), (1, 1, TQ, D)).reshape((TQ, D))
    rows = i * TQ + ct.arange(TQ, dtype=ct.int32)[:, None]
    columns = ct.arange(TK, dtype=ct.int32)[None, :]
    m = ct.full((TQ, 1), -math.inf, ct.float32)
    total = ct.full((TQ, 1), 0.0, ct.float32)
    acc = ct.full((TQ, D), 0.0, ct.float32)
    for j in range(ct.cdiv((i + 1) * TQ, TK)):
        key = ct.load(k, (b, h, 0, j), (1, 1, D, TK), order=(0, 1, 3, 2)).reshape((D, TK))
        s = ct.mma(query, key, ct.full((TQ, TK), 0.0, ct.float32)) * scale
        s = ct.where(rows >= j * TK + columns, s, -math.inf)
        largest = ct.maximum(m, ct.max(s, axis=1, keepdims=True))
        p = ct.exp2(s - largest, flush_to_zero=True)
        shrink = ct.exp2(m - largest, flush_to_zero=True)
        total = total * shrink + ct.sum(p, axis=1, keepdims=True)
        value = ct.load(v, (b, h, j, 0), (1, 1, TK, D)).reshape((TK, D))
        acc = ct.mma(p.astype(value.dtype), value, acc * shrink)
        m = largest
    ct.store(o, (b, h, i, 0), (acc / total).reshape((1, 1, TQ, D)).astype(o.dtype))


def straight_linear_gelu(x: Tensor, w: Tensor, b: Tensor, tm: int, tn: int, tk: int) -> Tensor:
    """The kernel's tiles as batched torch calls over all blocks; float32 in, float32 [M, N] out."""
    (m, k), n = x.shape, w.shape[0]
    left = x.view(m // tm, tm, k // tk, tk).permute(2, 0, 1, 3)
    right = w.view(n // tn, tn, k // tk, tk).permute(2, 0, 3, 1)
    blocks = (m // tm) * (n // tn)
    acc = torch.zeros(blocks, tm, tn)
    for step in range(k // tk):
        a = left[step][:, None].expand(-1, n // tn, -1, -1).reshape(blocks, tm, tk)
        c = right[step][None].expand(m // tm, -1, -1, -1).reshape(blocks, tk, tn)
        acc = torch.baddbmm(acc, a, c)
    z = acc + b.view(n // tn, 1, tn).repeat(m // tm, 1, 1)
    inner = 0.7978845608028654 * (z + 0.044715 * z * z * z)
    out = 0.5 * z * (1.0 + torch.tanh(inner))
    return out.view(m // tm, n // tn, tm, tn).transpose(1, 2).reshape(m, n)


def straight_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, tq: int, tk: int) -> Tensor:
    """Online softmax over key tiles; one batched call for all query tiles that reach this far.  [B·H, T, D] float32."""
    heads, t, d = q.shape
    out = torch.empty_like(q)
    tiles = q.view(heads, t // tq, tq, d)
    m = torch.full((heads, t // tq, tq, 1), -math.inf)
    total = torch.zeros_like(m)
    acc = torch.zeros_like(tiles)
    rows = torch.arange(t).view(t // tq, tq, 1)
    for j in range(t // tk):
        first = j * tk // tq
        key, value = k[:, None, j * tk : (j + 1) * tk], v[:, None, j * tk : (j + 1) * tk]
        s = tiles[:, first:] @ key.transpose(-1, -2) * scale
        s = torch.where(rows[first:] >= j * tk + torch.arange(tk), s, -math.inf)
        largest = torch.maximum(m[:, first:], s.amax(-1, keepdim=True))
        p, shrink = torch.exp2(s - largest), torch.exp2(m[:, first:] - largest)
        total[:, first:] = total[:, first:] * shrink + p.sum(-1, keepdim=True)
        acc[:, first:] = acc[:, first:] * shrink + p @ value
        m[:, first:] = largest
    out[:] = (acc / total).view(heads, t, d)
    return out


def best(functions: list[Callable[[], object]], repeat: int) -> list[float]:
    """Seconds of the fastest of ``repeat`` calls of each function, in turns so that all meet the same neighbours."""
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(repeat + 1):
        for function, seconds in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            if turn:  # the first turn warms up: export, caches, threads
                seconds.append(time.perf_counter() - start)
    return [min(seconds) for seconds in times]


def report(
    case: str, emulate: Callable[[Sanitizer | None], object], straight: Callable[[], Tensor], got: Tensor, repeat: int
) -> None:
    """Times a case, checks that both ways agree, prints the line."""
    seconds, sanitized, reference = best([lambda: emulate(None), lambda: emulate(Sanitizer()), straight], repeat)
    error = (got.float() - straight().reshape(got.shape)).abs().max().item()
    line = {
        "case": case, "emulated_s": round(seconds, 4), "sanitized_s": round(sanitized, 4),
        "torch_s": round(reference, 4), "ratio": round(seconds / reference, 2),
        "sanitizer_ratio": round(sanitized / seconds, 2), "max_abs_difference": error,
        "threads": torch.get_num_threads(), "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    m, n, k = 512, 3072, 768
    x, w, b = (torch.randn(*s).to(torch.bfloat16) for s in ((m, k), (n, k), (n,)))
    y = torch.empty(m, n, dtype=torch.bfloat16)
    xf, wf, bf = x.float(), w.float(), b.float()
    for tm, tn, tk in ((128, 128, 64), (64, 64, 64)):
        args, grid = (x, w, b, y, tm, tn, tk), (m // tm, n // tn)
        report(
            f"linear_gelu {m}x{n}x{k} bf16 tiles {tm}x{tn}x{tk}",
            lambda s, grid=grid, args=args: emulator.launch(grid, linear_gelu, args, sanitizer=s),
            lambda tm=tm, tn=tn, tk=tk: straight_linear_gelu(xf, wf, bf, tm, tn, tk), y, options.repeat,
        )  # fmt: skip
    batch, heads, t, d = 1, 12, 512, 64
    q, key, v = (torch.randn(batch, heads, t, d).to(torch.bfloat16) for _ in range(3))
    o = torch.empty_like(q)
    qf, kf, vf = (a.float().view(batch * heads, t, d) for a in (q, key, v))
    scale = 1.4426950408889634 / math.sqrt(d)
    for tile in (64, 128):
        args, grid = (q, key, v, o, scale, tile, tile, d), (t // tile, heads, batch)
        report(
            f"causal attention B={batch} H={heads} T={t} D={d} bf16 tiles {tile}x{tile}",
            lambda s, grid=grid, args=args: emulator.launch(grid, attention, args, sanitizer=s),
            lambda tile=tile: straight_attention(qf, kf, vf, scale, tile, tile), o, options.repeat,
        )  # fmt: skip


if __name__ == "__main__":
    main()
