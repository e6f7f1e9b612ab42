"""Honest kernels as people write them who know what they do: each is unusual, and right."""

from __future__ import annotations

import re
from pathlib import Path

from cheats import (
    EDGE,
    EXP,
    GELU,
    HALVES,
    LAST,
    NEW,
    NOTE,
    RESETS,
    RSQRT,
    SUMS,
    THERE,
    TILE,
    TURNS,
    Attempt,
    before_the_store,
    changed,
    noting,
    pick,
    rows,
    split_k,
)

CANDIDATES = Path(__file__).parents[1] / "candidates"


def _candidates() -> dict[str, Attempt]:
    """The files of tests/candidates, each of which names its task."""
    found = {}
    for path in sorted(CANDIDATES.glob("*.py")):
        text = path.read_text()
        task = re.search(r"# task: (\w+)", text)
        assert task
        found[path.stem] = Attempt(named=task[1], text=text)
    return found


_LAYERNORM = Attempt("layernorm").source
MOMENTS = _LAYERNORM[_LAYERNORM.index("    total") : _LAYERNORM.index(RSQRT) + len(RSQRT) + 1]
# Mean and variance at once, part by part (Welford's formulas, as Chan et al. combine them).
WELFORD = """\
    mean = ct.full((1, 1), 0.0, ct.float32)
    spread = ct.full((1, 1), 0.0, ct.float32)
    for j in range(ct.cdiv(n, TN)):
        part = ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        inside = j * TN + ct.arange(TN, dtype=ct.int32)[None, :] < n
        count = ct.minimum(n - j * TN, TN).astype(ct.float32)
        here = ct.sum(part, axis=1, keepdims=True) / count
        off = ct.where(inside, part - here, 0.0)
        seen = (j * TN).astype(ct.float32)
        far = here - mean
        spread = spread + ct.sum(off * off, axis=1, keepdims=True) + far * far * (seen * count / (seen + count))
        mean = mean + far * (count / (seen + count))
    scale = ct.rsqrt(spread / n + 1e-5)
"""
TWO_LAUNCHES = """\
import cuda.tile as ct
import torch


@ct.kernel
def moments(x, mean, scale, TM: ct.Constant[int], TN: ct.Constant[int]):
    i = ct.bid(0)
    n = x.shape[1]
    total = ct.full((TM, TN), 0.0, ct.float32)
    for j in range(ct.cdiv(n, TN)):
        total = total + ct.load(x, (i, j), (TM, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    middle = ct.sum(total, axis=1, keepdims=True) / n
    squares = ct.full((TM, TN), 0.0, ct.float32)
    for j in range(ct.cdiv(n, TN)):
        part = ct.load(x, (i, j), (TM, TN)).astype(ct.float32) - middle  # padding is dropped by the mask
        inside = j * TN + ct.arange(TN, dtype=ct.int32)[None, :] < n
        squares = squares + ct.where(inside, part * part, 0.0)
    ct.store(mean, (i,), middle.reshape((TM,)))
    ct.store(scale, (i,), ct.rsqrt(ct.sum(squares, axis=1) / n + 1e-5))


@ct.kernel
def normalise(x, weight, bias, mean, scale, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    part = ct.load(x, (i, j), (TM, TN)).astype(ct.float32)
    middle, by = ct.load(mean, (i,), (TM,))[:, None], ct.load(scale, (i,), (TM,))[:, None]
    w, b = ct.load(weight, (j,), (TN,)).astype(ct.float32), ct.load(bias, (j,), (TN,)).astype(ct.float32)
    ct.store(y, (i, j), ((part - middle) * by * w[None, :] + b[None, :]).astype(y.dtype))


def launch(stream, x, weight, bias, y):
    rows, n = x.shape
    mean = torch.empty((rows,), dtype=torch.float32, device=x.device)
    scale = torch.empty((rows,), dtype=torch.float32, device=x.device)
    ct.launch(stream, (ct.cdiv(rows, 16),), moments, (x, mean, scale, 16, 64))
    ct.launch(stream, (ct.cdiv(rows, 16), ct.cdiv(n, 64)), normalise, (x, weight, bias, mean, scale, y, 16, 64))
"""
# Each block of a fixed grid takes rows by a counter until none is left.
TAKES_WORK = """\
import cuda.tile as ct
import torch


@ct.kernel
def rows(x, y, taken, TN: ct.Constant[int]):
    row = ct.atomic_add(taken, 0, 1, memory_order=ct.MemoryOrder.RELAXED)
    while row < x.shape[0]:
        v = ct.load(x, (row, 0), (1, TN), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        e = ct.exp(v - ct.max(v, axis=1, keepdims=True))
        ct.store(y, (row, 0), (e / ct.sum(e, axis=1, keepdims=True)).astype(y.dtype))
        row = ct.atomic_add(taken, 0, 1, memory_order=ct.MemoryOrder.RELAXED)


def launch(stream, x, y):
    taken = torch.zeros((1,), dtype=torch.int32, device=x.device)
    tile = 1
    while tile < x.shape[1]:
        tile *= 2
    ct.launch(stream, (min(x.shape[0], 48),), rows, (x, y, taken, tile))
"""
# One pass over a row: the sum so far is scaled whenever the maximum grows.
ONE_PASS = """\
import cuda.tile as ct


@ct.kernel
def rows(x, y, TN: ct.Constant[int]):
    row = ct.bid(0)
    best = ct.full((1, 1), -1e30, ct.float32)
    total = ct.full((1, 1), 0.0, ct.float32)
    for j in range(ct.cdiv(x.shape[1], TN)):
        part = ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        new = ct.maximum(best, ct.max(part, axis=1, keepdims=True))
        total = total * ct.exp(best - new) + ct.sum(ct.exp(part - new), axis=1, keepdims=True)
        best = new
    for j in range(ct.cdiv(x.shape[1], TN)):
        part = ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        ct.store(y, (row, j), (ct.exp(part - best) / total).astype(y.dtype))


def launch(stream, x, y):
    ct.launch(stream, (x.shape[0],), rows, (x, y, 64))
"""
# Parts of K lie in a workspace with more places than there are parts; a mask drops those that nobody wrote.
PLACES_LEFT = """\
import cuda.tile as ct
import torch


@ct.kernel
def parts(x, w, part, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j, s = ct.bid(0), ct.bid(1), ct.bid(2)
    acc = ct.full((TM, TN), 0.0, ct.float32)
    for k in range(s, ct.cdiv(x.shape[1], TK), ct.num_blocks(2)):
        left = ct.load(x, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(w, (j, k), (TN, TK))  # its padding meets a zero
        acc = ct.mma(left, ct.transpose(right), acc)
    ct.store(part, (s, i, j), acc[None, :, :])


@ct.kernel
def join(part, b, y, splits, TM: ct.Constant[int], TN: ct.Constant[int], MOST: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    all_ = ct.load(part, (0, i, j), (MOST, TM, TN))
    there = ct.arange(MOST, dtype=ct.int32)[:, None, None] < splits
    acc = ct.sum(ct.where(there, all_, 0.0), axis=0)
    ct.store(y, (i, j), (acc + ct.load(b, (j,), (TN,)).astype(ct.float32)[None, :]).astype(y.dtype))


def launch(stream, x, w, b, y):
    M, N = y.shape
    splits = min(3, ct.cdiv(x.shape[1], 32))
    part = torch.empty((4, M, N), dtype=torch.float32, device=x.device)
    ct.launch(stream, (ct.cdiv(M, 32), ct.cdiv(N, 32), splits), parts, (x, w, part, 32, 32, 32))
    ct.launch(stream, (ct.cdiv(M, 32), ct.cdiv(N, 32)), join, (part, b, y, splits, 32, 32, 4))
"""
# Element by element over the flat arrays, by gather and scatter, as one writes CUDA.
BY_ELEMENT = """\
import cuda.tile as ct


@ct.kernel
def elements(a, b, y, T: ct.Constant[int]):
    at = ct.bid(0) * T + ct.arange(T, dtype=ct.int32)
    left, right = ct.gather(a, at).astype(ct.float32), ct.gather(b, at).astype(ct.float32)
    ct.scatter(y, at, (left + right).astype(y.dtype))


def launch(stream, a, b, y):
    size = y.shape[0] * y.shape[1]
    ct.launch(stream, (ct.cdiv(size, 512),), elements, (a.reshape(-1), b.reshape(-1), y.reshape(-1), 512))
"""
# A tile of tokens at a time, whose last indices are padding; what they pick is not stored.
TOKENS_AT_ONCE = """\
import cuda.tile as ct


@ct.kernel
def rows(tokens, wte, wpe, y, TT: ct.Constant[int], TC: ct.Constant[int]):
    b, i, j = ct.bid(0), ct.bid(1), ct.bid(2)
    t = i * TT + ct.arange(TT, dtype=ct.int32)
    columns = j * TC + ct.arange(TC, dtype=ct.int32)[None, :]
    token = ct.load(tokens, (b, i), (1, TT)).reshape((TT, 1))
    word = ct.gather(wte, (token, columns)).astype(ct.float32)
    place = ct.gather(wpe, (t[:, None], columns)).astype(ct.float32)
    ct.store(y, (b, i, j), (word + place).astype(y.dtype)[None, :, :])


def launch(stream, tokens, wte, wpe, y):
    B, T, C = y.shape
    ct.launch(stream, (B, ct.cdiv(T, 16), ct.cdiv(C, 32)), rows, (tokens, wte, wpe, y, 16, 32))
"""
TRANSPOSED = """\
import cuda.tile as ct


@ct.kernel
def tile(x, w, b, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    even = ct.full((TM, TN), 0.0, ct.float32)
    odd = ct.full((TM, TN), 0.0, ct.float32)
    for k in range(0, ct.cdiv(x.shape[1], TK), 2):  # two sums: one product does not wait for the other
        left = ct.load(x, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        even = ct.mma(left, ct.load(w, (k, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO), even)
        if (k + 1) * TK < x.shape[1]:
            left = ct.load(x, (i, k + 1), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
            odd = ct.mma(left, ct.load(w, (k + 1, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO), odd)
    bias = ct.load(b, (j,), (TN,)).astype(ct.float32)[None, :]
    ct.store(y, (i, j), (even + odd + bias).astype(y.dtype))


def launch(stream, x, w, b, y):
    grid = (ct.cdiv(y.shape[0], 32), ct.cdiv(y.shape[1], 32))
    ct.launch(stream, grid, tile, (x, w.t(), b, y, 32, 32, 32))
"""

HONEST = {
    **_candidates(),
    "Welford's moments": changed("layernorm", MOMENTS, WELFORD),
    "moments by a launch of their own": Attempt("layernorm", text=TWO_LAUNCHES),
    "softmax in one pass": Attempt("softmax", text=ONE_PASS),
    "rows are taken by a counter": Attempt("softmax", text=TAKES_WORK),
    "a workspace with places left": Attempt("linear", text=PLACES_LEFT),
    "element by element": Attempt("add", text=BY_ELEMENT),
    "tokens at once, the last are padding": Attempt("embedding", text=TOKENS_AT_ONCE),
    "a transposed view and two sums": Attempt("linear", text=TRANSPOSED),
    "a workspace that is filled first": Attempt("gelu", (*noting(NOTE, "t = t + note").changes, ("empty", "zeros"))),
    "a maximum that grows rarely": changed(
        "attention", NEW, f"{NEW.replace('new', 'top')}\n        new = ct.where(top > best + 8.0, top, best)"
    ),
    "padding that a mask drops": before_the_store(
        "gelu",
        EDGE,
        "rows = i * TM + ct.arange(TM, dtype=ct.int32)[:, None] < x.shape[0]",
        "columns = (x.shape[1] - 1) // TN * TN + ct.arange(TN, dtype=ct.int32)[None, :] < x.shape[1]",
        "t = ct.where(ct.sum(ct.where(rows & columns, ct.abs(edge), 0.0)) < -1.0, 0.0, t)",
    ),
    "blocks in another order": changed(
        "gelu",
        "i, j = ct.bid(0), ct.bid(1)",
        "p = ct.bid(0) * ct.num_blocks(1) + ct.bid(1)\n    i, j = p % ct.num_blocks(0), p // ct.num_blocks(0)",
    ),
    "split K, the last block sums": split_k(SUMS),
    "split K, the last block sums and resets": split_k(RESETS),
    "split K, the last block finishes": split_k(LAST),
    "split K in turn": split_k(TURNS),
    "sub-tiles of a tile": Attempt("gelu", text=HALVES.format(tile="j // 2", half="j % 2")),
    "quotients by zero that are thrown away": before_the_store(
        "add",
        THERE,
        "far = there // (there - 3)",
        "left = left + ct.where(there == 3, 0, far - far).astype(ct.float32)",
    ),
    "labels out of range pick nothing": pick("v = ct.gather(x, (r, label), mask=label != -100)"),
    "labels of -100 are the first row": rows("row = ct.where(label == -100, 0, label)"),
    "labels below zero are the first row": rows("row = ct.maximum(label, 0)"),
    "inputs that round away are left out": changed(
        "gelu", TILE, f"    t = ct.where(ct.abs(t) < 1e-30, 0.0, t)\n{TILE}"
    ),
    "a tanh that is approximate": changed(
        "gelu", "ct.tanh(inner)", "ct.tanh(inner, rounding_mode=ct.RoundingMode.APPROX)"
    ),
    "gelu by a sigmoid": changed("gelu", GELU, "(t / (1.0 + ct.exp(-2.0 * inner)))"),
    "softmax by powers of two": changed("softmax", EXP, "ct.exp2((part - best) * 1.4426950408889634)"),
    "softmax of halves": changed("softmax", EXP, "(ct.exp((part - best) * 0.5) * ct.exp((part - best) * 0.5))"),
    "attention by powers of two": changed(
        "attention", "p = ct.exp(scores - new)", "p = ct.exp2((scores - new) * 1.4426950408889634)"
    ),
    "a scale by division": changed("layernorm", RSQRT, RSQRT.replace("ct.rsqrt(", "1.0 / ct.sqrt(")),
}
