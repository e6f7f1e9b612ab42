# task: linear
"""Output tiles over a loop in K; few rows get flatter tiles."""

import cuda.tile as ct

AXES = {"TM": [64, 128], "TN": [64, 128], "TK": [32, 64], "occupancy": [1, 2]}


@ct.kernel
def tiles(x, w, b, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), dtype=ct.float32)
    for k in range(ct.cdiv(x.shape[1], TK)):
        xt = ct.load(x, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
        wt = ct.load(w, index=(j, k), shape=(TN, TK), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(xt, ct.transpose(wt), acc)
    bias = ct.load(b, index=(j,), shape=(TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(y, index=(i, j), tile=(acc + bias[None, :]).astype(y.dtype))


def launch(stream, x, w, b, y, *, TM=64, TN=64, TK=32, occupancy=1):
    M, N = y.shape
    if M < 32:
        TM = 16
    grid = (ct.cdiv(M, TM), ct.cdiv(N, TN))
    ct.launch(stream, grid, tiles.replace_hints(occupancy=occupancy), (x, w, b, y, TM, TN, TK))
