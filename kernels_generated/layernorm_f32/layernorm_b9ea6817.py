"""layernorm, by the synthesizer.

    x: f32[M, N]
    weight: f32[N]
    bias: f32[N]
    y: f32[M, N]

    layernorm = layernorm(x, weight, bias, eps=1e-05)
"""

import cuda.tile as ct

AXES = {"ROWS": [2, 1, 4, 8], "CHUNK": [1024, 512, 256], "occupancy": [4, 2, 8, 1]}


@ct.kernel
def rows_kernel(x, weight, bias, y, ROWS: ct.Constant[int], CHUNK: ct.Constant[int]):
    """Rows: every reduction over a row is one pass over its chunks, accumulated per column in float32."""
    N = x.shape[1]
    i = ct.bid(0)

    # Pass 1: mean of x.
    mean_acc = ct.full((ROWS, CHUNK), 0, ct.float32)
    for j in range(ct.cdiv(N, CHUNK)):
        x_tile = ct.load(x, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO)
        mean_acc = mean_acc + x_tile
    mean = ct.sum(mean_acc, axis=1, keepdims=True) / N

    # Pass 2: mean of d, mean of d2.
    slip_acc = ct.full((ROWS, CHUNK), 0, ct.float32)
    mean_square_acc = ct.full((ROWS, CHUNK), 0, ct.float32)
    for j in range(ct.cdiv(N, CHUNK)):
        x_tile = ct.load(x, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO)
        d = x_tile - mean
        cols = j * CHUNK + ct.arange(CHUNK, dtype=ct.int32)[None, :]
        valid = cols < N
        slip_acc = slip_acc + ct.where(valid, d, 0.0)
        d2 = d * d
        mean_square_acc = mean_square_acc + ct.where(valid, d2, 0.0)
    slip = ct.sum(slip_acc, axis=1, keepdims=True) / N
    mean_square = ct.sum(mean_square_acc, axis=1, keepdims=True) / N

    # The rows themselves.
    slip2 = slip * slip
    gap = mean_square - slip2
    variance = ct.maximum(gap, 0.0, propagate_nan=True)
    shifted = variance + 1e-05
    scale = ct.rsqrt(shifted)
    for j in range(ct.cdiv(N, CHUNK)):
        x_tile = ct.load(x, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO)
        d = x_tile - mean
        centred = d - slip
        normal = centred * scale
        weight_tile = ct.load(weight, (j,), (CHUNK,), padding_mode=ct.PaddingMode.ZERO)
        scaled = normal * weight_tile
        bias_tile = ct.load(bias, (j,), (CHUNK,), padding_mode=ct.PaddingMode.ZERO)
        total = scaled + bias_tile
        ct.store(y, (i, j), total.astype(y.dtype))


def launch(stream, x, weight, bias, y, *, ROWS=2, CHUNK=1024, occupancy=4, num_sms=None):
    M, _ = x.shape
    grid = (ct.cdiv(M, ROWS),)
    ct.launch(stream, grid, rows_kernel.replace_hints(occupancy=occupancy), (x, weight, bias, y, ROWS, CHUNK))
