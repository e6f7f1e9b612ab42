"""GELU, tanh form, on rows of tiles."""

import cuda.tile as ct

AXES = {"TM": [32], "TN": [64]}


@ct.kernel
def tile(x, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    t = ct.load(x, (i, j), (TM, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    inner = 0.7978845608028654 * (t + 0.044715 * t * t * t)
    ct.store(y, (i, j), (0.5 * t * (1.0 + ct.tanh(inner))).astype(y.dtype))


def launch(stream, x, y, *, TM=32, TN=64):
    ct.launch(stream, (ct.cdiv(x.shape[0], TM), ct.cdiv(x.shape[1], TN)), tile, (x, y, TM, TN))
