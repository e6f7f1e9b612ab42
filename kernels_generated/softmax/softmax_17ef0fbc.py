"""softmax, by the synthesizer.

    x: bf16[M, N]
    y: bf16[M, N]

    softmax = softmax(x)
"""

import math

import cuda.tile as ct

AXES = {"ROWS": [2, 1, 4, 8], "CHUNK": [1024, 512, 256], "occupancy": [4, 2, 8, 1]}

INF = math.inf


@ct.kernel
def rows_kernel(x, y, ROWS: ct.Constant[int], CHUNK: ct.Constant[int]):
    """Rows: every reduction over a row is one pass over its chunks, accumulated per column in float32."""
    N = x.shape[1]
    i = ct.bid(0)

    # Pass 1: max of x.
    top_acc = ct.full((ROWS, CHUNK), -INF, ct.float32)
    for j in range(ct.cdiv(N, CHUNK)):
        x_tile = ct.load(x, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        cols = j * CHUNK + ct.arange(CHUNK, dtype=ct.int32)[None, :]
        valid = cols < N
        top_acc = ct.maximum(top_acc, ct.where(valid, x_tile, -INF), propagate_nan=True)
    top = ct.max(top_acc, axis=1, keepdims=True, propagate_nan=True)

    # Pass 2: sum of e.
    total_acc = ct.full((ROWS, CHUNK), 0, ct.float32)
    for j in range(ct.cdiv(N, CHUNK)):
        x_tile = ct.load(x, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        below = x_tile - top
        e = ct.exp(below, rounding_mode=ct.RoundingMode.APPROX)
        cols = j * CHUNK + ct.arange(CHUNK, dtype=ct.int32)[None, :]
        valid = cols < N
        total_acc = total_acc + ct.where(valid, e, 0.0)
    total = ct.sum(total_acc, axis=1, keepdims=True)

    # The rows themselves.
    reciprocal = ct.truediv(1.0, total, rounding_mode=ct.RoundingMode.FULL)
    for j in range(ct.cdiv(N, CHUNK)):
        x_tile = ct.load(x, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        below = x_tile - top
        e = ct.exp(below, rounding_mode=ct.RoundingMode.APPROX)
        quotient = e * reciprocal
        ct.store(y, (i, j), quotient.astype(y.dtype))


def launch(stream, x, y, *, ROWS=2, CHUNK=1024, occupancy=4, num_sms=None):
    M, _ = x.shape
    grid = (ct.cdiv(M, ROWS),)
    ct.launch(stream, grid, rows_kernel.replace_hints(occupancy=occupancy), (x, y, ROWS, CHUNK))
