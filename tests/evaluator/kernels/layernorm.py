"""Layer normalisation, two passes over chunks of a row."""

import cuda.tile as ct

AXES = {"TN": [64]}


@ct.kernel
def rows(x, weight, bias, y, TN: ct.Constant[int]):
    row = ct.bid(0)
    n = x.shape[1]
    total = ct.full((1, TN), 0.0, ct.float32)
    for j in range(ct.cdiv(n, TN)):
        total = total + ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    mean = ct.sum(total, axis=1, keepdims=True) / n
    squares = ct.full((1, TN), 0.0, ct.float32)
    for j in range(ct.cdiv(n, TN)):
        part = ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32) - mean
        inside = j * TN + ct.arange(TN, dtype=ct.int32)[None, :] < n
        squares = squares + ct.where(inside, part * part, 0.0)
    scale = ct.rsqrt(ct.sum(squares, axis=1, keepdims=True) / n + 1e-5)
    for j in range(ct.cdiv(n, TN)):
        part = ct.load(x, (row, j), (1, TN), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32) - mean
        w = ct.load(weight, (j,), (TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)[None, :]
        b = ct.load(bias, (j,), (TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)[None, :]
        ct.store(y, (row, j), (part * scale * w + b).astype(y.dtype))


def launch(stream, x, weight, bias, y, *, TN=64):
    ct.launch(stream, (x.shape[0],), rows, (x, weight, bias, y, TN))
