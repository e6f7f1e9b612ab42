# task: linear_gelu
"""As many blocks as the chip has multiprocessors, each walking over the output tiles."""

import cuda.tile as ct

AXES = {"TM": [64, 128], "TN": [64, 128], "TK": [32], "PER_SM": [1, 2]}


@ct.kernel
def walk(x, w, b, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    across = ct.cdiv(y.shape[1], TN)
    for tile in range(ct.bid(0), ct.cdiv(y.shape[0], TM) * across, ct.num_blocks(0)):
        i, j = tile // across, tile % across
        acc = ct.zeros((TM, TN), dtype=ct.float32)
        for k in range(ct.cdiv(x.shape[1], TK)):
            xt = ct.load(x, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
            wt = ct.load(w, index=(j, k), shape=(TN, TK), padding_mode=ct.PaddingMode.ZERO)
            acc = ct.mma(xt, ct.transpose(wt), acc)
        v = acc + ct.load(b, index=(j,), shape=(TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)[None, :]
        inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
        ct.store(y, index=(i, j), tile=(0.5 * v * (1.0 + ct.tanh(inner))).astype(y.dtype))


def launch(stream, x, w, b, y, *, TM=64, TN=64, TK=32, PER_SM=1, num_sms=None):
    tiles = ct.cdiv(y.shape[0], TM) * ct.cdiv(y.shape[1], TN)
    ct.launch(stream, (min(tiles, PER_SM * num_sms),), walk, (x, w, b, y, TM, TN, TK))
