"""Sum of two matrices."""

import cuda.tile as ct

AXES = {"TM": [32], "TN": [64]}


@ct.kernel
def tile(a, b, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    left = ct.load(a, (i, j), (TM, TN)).astype(ct.float32)
    right = ct.load(b, (i, j), (TM, TN)).astype(ct.float32)
    ct.store(y, (i, j), (left + right).astype(y.dtype))


def launch(stream, a, b, y, *, TM=32, TN=64):
    ct.launch(stream, (ct.cdiv(a.shape[0], TM), ct.cdiv(a.shape[1], TN)), tile, (a, b, y, TM, TN))
