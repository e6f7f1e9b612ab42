"""Softmax of rows through a workspace of row maxima: two launches."""

import cuda.tile as ct
import torch

AXES = {"TN": [64]}


@ct.kernel
def maxima(x, top, TN: ct.Constant[int]):
    row = ct.bid(0)
    best = ct.full((1, TN), -1e30, ct.float32)
    for j in range(ct.cdiv(x.shape[1], TN)):
        part = ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        best = ct.maximum(best, part)
    ct.store(top, (row,), ct.max(best, axis=1))


@ct.kernel
def rows(x, top, y, TN: ct.Constant[int]):
    row = ct.bid(0)
    best = ct.load(top, (row,), (1,))[:, None]
    total = ct.full((1, TN), 0.0, ct.float32)
    for j in range(ct.cdiv(x.shape[1], TN)):
        part = ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        total = total + ct.exp(part - best)
    scale = 1.0 / ct.sum(total, axis=1, keepdims=True)
    for j in range(ct.cdiv(x.shape[1], TN)):
        part = ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        ct.store(y, (row, j), (ct.exp(part - best) * scale).astype(y.dtype))


def launch(stream, x, y, *, TN=64):
    top = torch.empty((x.shape[0],), dtype=torch.float32, device=x.device)
    ct.launch(stream, (x.shape[0],), maxima, (x, top, TN))
    ct.launch(stream, (x.shape[0],), rows, (x, top, y, TN))
