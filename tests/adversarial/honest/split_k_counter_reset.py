# task: linear
"""Split K: the last block sums the parts, and sets its counter back for a launch that may follow."""

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
    ct.store(part, (tile, s, 0, 0), acc.reshape((1, 1, TM, TN)))
    arrived = ct.atomic_add(count, tile, 1, memory_order=ct.MemoryOrder.ACQ_REL)
    if arrived == SPLITS - 1:
        total = ct.full((TM, TN), 0.0, ct.float32)
        for k in range(SPLITS):
            total = total + ct.load(part, (tile, k, 0, 0), (1, 1, TM, TN)).reshape((TM, TN))
        bias = ct.load(b, (j,), (TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        ct.store(y, (i, j), (total + bias[None, :]).astype(y.dtype))
        ct.atomic_xchg(count, tile, 0, memory_order=ct.MemoryOrder.RELAXED)


def launch(stream, x, w, b, y, *, TM=32, TN=32, TK=32, SPLITS=4):
    M, N = y.shape
    rows, columns = ct.cdiv(M, TM), ct.cdiv(N, TN)
    part = torch.empty((rows * columns, SPLITS, TM, TN), dtype=torch.float32, device=x.device)
    count = torch.zeros((rows * columns,), dtype=torch.int32, device=x.device)
    grid = (rows, columns, SPLITS)
    ct.launch(stream, grid, split, (x, w, b, part, count, y, TM, TN, TK, SPLITS))
