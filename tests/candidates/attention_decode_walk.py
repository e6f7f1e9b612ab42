# task: attention_decode
"""One query on cached keys and values: a block is a head and walks over the keys that may be seen."""

import cuda.tile as ct

AXES = {"TK": [32, 64]}


@ct.kernel
def walk(q, k, v, last, y, D: ct.Constant[int], TK: ct.Constant[int], TD: ct.Constant[int]):
    head, item = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    place = ct.load(last, index=(item,), shape=(1,)).item()
    seen = ct.astype(min(max(place, -1), k.shape[2] - 1), ct.int32) + 1
    qt = ct.load(q, index=(item, head, 0), shape=(1, 1, TD), padding_mode=zero).reshape((1, TD)).astype(ct.float32)
    top = ct.full((1, 1), -1.0e30, dtype=ct.float32)
    total = ct.zeros((1, 1), dtype=ct.float32)
    acc = ct.zeros((1, TD), dtype=ct.float32)
    for j in range(ct.cdiv(seen, TK)):
        kt = ct.load(k, index=(item, head, j, 0), shape=(1, 1, TK, TD), padding_mode=zero).reshape((TK, TD))
        vt = ct.load(v, index=(item, head, j, 0), shape=(1, 1, TK, TD), padding_mode=zero).reshape((TK, TD))
        s = ct.sum(kt.astype(ct.float32) * qt, axis=1, keepdims=True) * (1.0 / D**0.5)
        s = ct.where(j * TK + ct.arange(TK, dtype=ct.int32)[:, None] < seen, s, -1.0e30)
        new = ct.maximum(top, ct.max(s, axis=0, keepdims=True))
        p = ct.exp(s - new)
        shrink = ct.exp(top - new)
        total = total * shrink + ct.sum(p, axis=0, keepdims=True)
        acc = acc * shrink + ct.sum(p * vt.astype(ct.float32), axis=0, keepdims=True)
        top = new
    ct.store(y, index=(item, head, 0), tile=(acc / total).astype(y.dtype).reshape((1, 1, TD)))


def launch(stream, q, k, v, last, y, *, TK=32):
    B, H, _, D = k.shape
    wide = 1
    while wide < D:
        wide *= 2
    q, y, last = q.view(B, H, D), y.view(B, H, D), last.view(B)
    ct.launch(stream, (H, B), walk, (q, k, v, last, y, D, TK, wide))
