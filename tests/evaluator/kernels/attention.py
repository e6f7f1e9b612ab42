"""Causal attention on q, k, v [B, H, T, D]: a block of queries a block, online softmax over blocks of keys."""

import math

import cuda.tile as ct

AXES = {"TQ": [32], "TS": [32]}


@ct.kernel
def attend(q, k, v, y, scale, heads, TQ: ct.Constant[int], TS: ct.Constant[int], TD: ct.Constant[int]):
    block, pair = ct.bid(0), ct.bid(1)
    b, h = pair // heads, pair % heads
    rows = q.shape[2]
    query = ct.load(q, (b, h, block, 0), (1, 1, TQ, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TQ, TD))
    at = block * TQ + ct.arange(TQ, dtype=ct.int32)[:, None]
    best = ct.full((TQ, 1), -1e30, ct.float32)
    total = ct.full((TQ, 1), 0.0, ct.float32)
    acc = ct.full((TQ, TD), 0.0, ct.float32)
    for s in range(ct.cdiv(ct.minimum(rows, (block + 1) * TQ), TS)):
        key = ct.load(k, (b, h, s, 0), (1, 1, TS, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TS, TD))
        scores = ct.mma(query, ct.transpose(key), ct.full((TQ, TS), 0.0, ct.float32)) * scale
        keys = s * TS + ct.arange(TS, dtype=ct.int32)[None, :]
        scores = ct.where((keys <= at) & (keys < rows), scores, -1e30)
        new = ct.maximum(best, ct.max(scores, axis=1, keepdims=True))
        p = ct.exp(scores - new)
        old = ct.exp(best - new)
        total = total * old + ct.sum(p, axis=1, keepdims=True)
        value = ct.load(v, (b, h, s, 0), (1, 1, TS, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TS, TD))
        acc = ct.mma(p.astype(v.dtype), value, acc * old)
        best = new
    out = (acc / total).astype(y.dtype)
    ct.store(y, (b, h, block, 0), out.reshape((1, 1, TQ, TD)))


def launch(stream, q, k, v, y, *, TQ=32, TS=32):
    batch, heads, rows, width = q.shape
    wide = 1 << (width - 1).bit_length()
    grid = (ct.cdiv(rows, TQ), batch * heads)
    ct.launch(stream, grid, attend, (q, k, v, y, 1 / math.sqrt(width), heads, TQ, TS, wide))
