# task: linear
"""K in several parts, each with a workspace of its own in float32; a second kernel adds the parts and the bias."""

import cuda.tile as ct
import torch

AXES = {"TM": [64, 32], "TN": [64], "TK": [32], "PARTS": [4, 2]}


@ct.kernel
def parts(x, w, partial, per_part, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j, part = ct.bid(0), ct.bid(1), ct.bid(2)
    acc = ct.zeros((TM, TN), dtype=ct.float32)
    for k in range(part * per_part, ct.minimum((part + 1) * per_part, ct.cdiv(x.shape[1], TK))):
        xt = ct.load(x, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
        wt = ct.load(w, index=(j, k), shape=(TN, TK), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(xt, ct.transpose(wt), acc)
    ct.store(partial, index=(part, i, j), tile=acc[None, :, :])


@ct.kernel
def add(partial, b, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), dtype=ct.float32)
    for part in range(partial.shape[0]):
        acc += ct.load(partial, index=(part, i, j), shape=(1, TM, TN), padding_mode=ct.PaddingMode.ZERO).reshape(
            (TM, TN)
        )
    bias = ct.load(b, index=(j,), shape=(TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(y, index=(i, j), tile=(acc + bias[None, :]).astype(y.dtype))


def launch(stream, x, w, b, y, *, TM=64, TN=64, TK=32, PARTS=4):
    (M, K), N = x.shape, w.shape[0]
    count = max(1, min(PARTS, K // TK))
    per_part = ct.cdiv(ct.cdiv(K, TK), count)
    partial = torch.empty((count, M, N), dtype=torch.float32, device=x.device)
    grid = (ct.cdiv(M, TM), ct.cdiv(N, TN))
    ct.launch(stream, (*grid, count), parts, (x, w, partial, per_part, TM, TN, TK))
    ct.launch(stream, grid, add, (partial, b, y, TM, TN))
