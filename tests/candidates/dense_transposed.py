# task: dense
"""The transposed product: wᵀ xᵀ, turned as it is stored."""

import cuda.tile as ct

AXES = {"TM": [64, 32], "TN": [64, 128], "TK": [32, 64]}


@ct.kernel
def turned(x, w, b, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    j, i = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TN, TM), dtype=ct.float32)
    for k in range(ct.cdiv(w.shape[0], TK)):
        wt = ct.load(w, index=(k, j), shape=(TK, TN), padding_mode=ct.PaddingMode.ZERO)
        xt = ct.load(x, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(ct.transpose(wt), ct.transpose(xt), acc)
    bias = ct.load(b, index=(j,), shape=(TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(y, index=(i, j), tile=ct.transpose((acc + bias[:, None]).astype(y.dtype)))


def launch(stream, x, w, b, y, *, TM=64, TN=64, TK=32):
    ct.launch(stream, (ct.cdiv(y.shape[1], TN), ct.cdiv(y.shape[0], TM)), turned, (x, w, b, y, TM, TN, TK))
