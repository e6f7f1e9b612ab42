"""x wᵀ + b, a tile a block: the honest kernel that tests break in one place at a time."""

import cuda.tile as ct

AXES = {"TM": [64], "TN": [64], "TK": [64]}


@ct.kernel
def tile(x, w, b, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.full((TM, TN), 0.0, ct.float32)
    for k in range(ct.cdiv(x.shape[1], TK)):
        left = ct.load(x, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(w, (j, k), (TN, TK), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(left, ct.transpose(right), acc)
    bias = ct.load(b, (j,), (TN,), padding_mode=ct.PaddingMode.ZERO)
    acc = acc + bias.astype(ct.float32)[None, :]
    ct.store(y, (i, j), acc.astype(y.dtype))


def launch(stream, x, w, b, y, *, TM=64, TN=64, TK=64):
    grid = (ct.cdiv(x.shape[0], TM), ct.cdiv(w.shape[0], TN))
    ct.launch(stream, grid, tile, (x, w, b, y, TM, TN, TK))
