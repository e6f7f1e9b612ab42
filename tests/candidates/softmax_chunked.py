# task: softmax
"""Rows of any length: one pass keeps the running maximum and sum, a second one writes."""

import cuda.tile as ct

AXES = {"TN": [128, 256, 1024]}


@ct.kernel
def rows(x, y, TN: ct.Constant[int]):
    row = ct.bid(0)
    chunks = ct.cdiv(x.shape[1], TN)
    top = ct.full((1, 1), -3.0e38, dtype=ct.float32)
    total = ct.zeros((1, 1), dtype=ct.float32)
    for j in range(chunks):
        v = ct.load(x, index=(row, j), shape=(1, TN), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        new = ct.maximum(top, ct.max(v, axis=1, keepdims=True))
        total = total * ct.exp(top - new) + ct.sum(ct.exp(v - new), axis=1, keepdims=True)
        top = new
    for j in range(chunks):
        v = ct.load(x, index=(row, j), shape=(1, TN), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        ct.store(y, index=(row, j), tile=(ct.exp(v - top) / total).astype(y.dtype))


def launch(stream, x, y, *, TN=128):
    ct.launch(stream, (x.size(0),), rows, (x, y, TN))
