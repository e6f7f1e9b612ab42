# task: attention
"""Causal attention with the online softmax, on strided views of the QKV buffer: nothing is copied."""

import math

import cuda.tile as ct

AXES = {"TQ": [64, 32], "TK": [64, 32], "occupancy": [2, 1]}


@ct.kernel
def heads(q, k, v, y, scale, TQ: ct.Constant[int], TK: ct.Constant[int], TD: ct.Constant[int]):
    block, head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
    zero = ct.PaddingMode.ZERO
    qt = ct.load(q, index=(batch, head, block, 0), shape=(1, 1, TQ, TD), padding_mode=zero).reshape((TQ, TD))
    rows = block * TQ + ct.arange(TQ, dtype=ct.int32)[:, None]
    top = ct.full((TQ, 1), -1.0e30, dtype=ct.float32)
    total = ct.zeros((TQ, 1), dtype=ct.float32)
    acc = ct.zeros((TQ, TD), dtype=ct.float32)
    for j in range(ct.cdiv(ct.minimum((block + 1) * TQ, q.shape[2]), TK)):
        kt = ct.load(k, index=(batch, head, j, 0), shape=(1, 1, TK, TD), padding_mode=zero).reshape((TK, TD))
        vt = ct.load(v, index=(batch, head, j, 0), shape=(1, 1, TK, TD), padding_mode=zero).reshape((TK, TD))
        s = ct.mma(qt, ct.transpose(kt), ct.zeros((TQ, TK), dtype=ct.float32)) * scale
        cols = j * TK + ct.arange(TK, dtype=ct.int32)[None, :]
        s = ct.where(cols <= rows, s, -1.0e30)
        new = ct.maximum(top, ct.max(s, axis=1, keepdims=True))
        p = ct.exp(s - new)
        shrink = ct.exp(top - new)
        total = total * shrink + ct.sum(p, axis=1, keepdims=True)
        acc = ct.mma(p.astype(v.dtype), vt, acc * shrink)
        top = new
    out = (acc / total).astype(y.dtype).reshape((1, 1, TQ, TD))
    ct.store(y, index=(batch, head, block, 0), tile=out)


def launch(stream, qkv, y, *, TQ=64, TK=64, occupancy=2):
    B, T, _, H, D = qkv.shape
    q, k, v = (qkv.select(2, i).permute(0, 2, 1, 3) for i in range(3))
    wide = 1 << (D - 1).bit_length()
    args = (q, k, v, y.transpose(1, 2), 1.0 / math.sqrt(D), TQ, TK, wide)
    ct.launch(stream, (ct.cdiv(T, TQ), H, B), heads.replace_hints(occupancy=occupancy), args)
