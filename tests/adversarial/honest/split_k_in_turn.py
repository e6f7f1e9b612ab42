# task: linear
"""Split K: blocks add to one part in turn, each waiting for the one before it; the last makes the result."""

import cuda.tile as ct
import torch

AXES = {"TM": [32], "TN": [32], "TK": [32], "SPLITS": [4]}


@ct.kernel
def split(
    x, w, b, part, count, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int], SPLITS: ct.Constant[int]
):
    i, j, s = ct.bid(0), ct.bid(1), ct.bid(2)
    tile = i * ct.num_blocks(1) + j
    acc = ct.full((TM, TN), 0.0, ct.float32)
    for k in range(s, ct.cdiv(x.shape[1], TK), SPLITS):
        left = ct.load(x, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(w, (j, k), (TN, TK), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(left, ct.transpose(right), acc)
    while ct.atomic_add(count, tile, 0, memory_order=ct.MemoryOrder.ACQUIRE) != s:
        pass
    if s > 0:
        acc = acc + ct.load(part, (i, j), (TM, TN))
    if s < SPLITS - 1:
        ct.store(part, (i, j), acc)
    else:
        bias = ct.load(b, (j,), (TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        ct.store(y, (i, j), (acc + bias[None, :]).astype(y.dtype))
    ct.atomic_add(count, tile, 1, memory_order=ct.MemoryOrder.RELEASE)


def launch(stream, x, w, b, y, *, TM=32, TN=32, TK=32, SPLITS=4):
    M, N = y.shape
    rows, columns = ct.cdiv(M, TM), ct.cdiv(N, TN)
    part = torch.empty((rows * TM, columns * TN), dtype=torch.float32, device=x.device)
    count = torch.zeros((rows * columns,), dtype=torch.int32, device=x.device)
    grid = (rows, columns, SPLITS)
    ct.launch(stream, grid, split, (x, w, b, part, count, y, TM, TN, TK, SPLITS))
