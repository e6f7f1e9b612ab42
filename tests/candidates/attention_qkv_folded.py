# task: attention_qkv
"""Causal attention on separate q, k, v: batch and heads folded into one axis, a block of queries at a time."""

import cuda.tile as ct

AXES = {"TQ": [32, 64], "TK": [64, 32]}


@ct.kernel
def heads(q, k, v, y, D: ct.Constant[int], TQ: ct.Constant[int], TK: ct.Constant[int], TD: ct.Constant[int]):
    block, head = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    scale = 1.0 / D**0.5
    qt = ct.load(q, index=(head, block, 0), shape=(1, TQ, TD), padding_mode=zero).reshape((TQ, TD))
    rows = block * TQ + ct.arange(TQ, dtype=ct.int32)[:, None]
    top = ct.full((TQ, 1), -1.0e30, dtype=ct.float32)
    total = ct.zeros((TQ, 1), dtype=ct.float32)
    acc = ct.zeros((TQ, TD), dtype=ct.float32)
    for j in range(ct.cdiv(ct.minimum((block + 1) * TQ, q.shape[1]), TK)):
        kt = ct.load(k, index=(head, j, 0), shape=(1, TK, TD), padding_mode=zero).reshape((TK, TD))
        vt = ct.load(v, index=(head, j, 0), shape=(1, TK, TD), padding_mode=zero).reshape((TK, TD))
        s = ct.mma(qt, ct.transpose(kt), ct.zeros((TQ, TK), dtype=ct.float32)) * scale
        s = ct.where(j * TK + ct.arange(TK, dtype=ct.int32)[None, :] <= rows, s, -1.0e30)
        new = ct.maximum(top, ct.max(s, axis=1, keepdims=True))
        p = ct.exp(s - new)
        shrink = ct.exp(top - new)
        total = total * shrink + ct.sum(p, axis=1, keepdims=True)
        acc = ct.mma(p.astype(v.dtype), vt, acc * shrink)
        top = new
    ct.store(y, index=(head, block, 0), tile=(acc / total).astype(y.dtype).reshape((1, TQ, TD)))


def launch(stream, q, k, v, y, *, TQ=32, TK=64):
    T, D = q.shape[-2:]
    wide = 1
    while wide < D:
        wide *= 2
    q, k, v, y = (x.flatten(0, 1) for x in (q, k, v, y))
    ct.launch(stream, (ct.cdiv(T, TQ), q.shape[0]), heads, (q, k, v, y, D, TQ, TK, wide))
