# task: linear_nobias
"""A block keeps a strip of rows and walks over the columns of the result."""

import cuda.tile as ct

AXES = {"TM": [64, 32], "TN": [64, 128], "TK": [32, 64]}


@ct.kernel
def strip(x, w, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i = ct.bid(0)
    for j in range(ct.cdiv(y.shape[1], TN)):
        acc = ct.zeros((TM, TN), dtype=ct.float32)
        for k in range(ct.cdiv(x.shape[1], TK)):
            xt = ct.load(x, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
            wt = ct.load(w, index=(j, k), shape=(TN, TK), padding_mode=ct.PaddingMode.ZERO)
            acc = ct.mma(xt, ct.transpose(wt), acc)
        ct.store(y, index=(i, j), tile=acc.astype(y.dtype))


def launch(stream, x, w, y, *, TM=64, TN=64, TK=32):
    ct.launch(stream, (ct.cdiv(x.shape[0], TM),), strip, (x, w, y, TM, TN, TK))
