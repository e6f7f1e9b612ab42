"""layernorm, by the synthesizer.

    x: bf16[M, N]
    weight: bf16[N]
    bias: bf16[N]
    y: bf16[M, N]

    layernorm = layernorm(x, weight, bias, eps=1e-05)
"""

import cuda.tile as ct

AXES = {"ROWS": [2, 1, 4, 8], "PERSISTENT": [1, 0], "occupancy": [4, 2, 8, 1]}


@ct.kernel
def rows_kernel(x, weight, bias, y, ROWS: ct.Constant[int]):
    """Rows of up to 768 elements, kept in registers from the first pass to the last."""
    M = x.shape[0]
    weight_tile = ct.load(weight, (0,), (256,), check_bounds=False).astype(ct.float32)
    bias_tile = ct.load(bias, (0,), (256,), check_bounds=False).astype(ct.float32)
    weight_tile_2 = ct.load(weight, (1,), (256,), check_bounds=False).astype(ct.float32)
    bias_tile_2 = ct.load(bias, (1,), (256,), check_bounds=False).astype(ct.float32)
    weight_tile_3 = ct.load(weight, (2,), (256,), check_bounds=False).astype(ct.float32)
    bias_tile_3 = ct.load(bias, (2,), (256,), check_bounds=False).astype(ct.float32)
    for i in range(ct.bid(0), ct.cdiv(M, ROWS), ct.num_blocks(0)):
        # Pass 1: mean of x.
        x_tile = ct.load(x, (i, 0), (ROWS, 256), padding_mode=ct.PaddingMode.ZERO, latency=10).astype(ct.float32)
        x_tile_2 = ct.load(x, (i, 1), (ROWS, 256), padding_mode=ct.PaddingMode.ZERO, latency=10).astype(ct.float32)
        x_tile_3 = ct.load(x, (i, 2), (ROWS, 256), padding_mode=ct.PaddingMode.ZERO, latency=10).astype(ct.float32)
        mean = ct.sum(x_tile + x_tile_2 + x_tile_3, axis=1, keepdims=True) * (1 / 768)

        # Pass 2: mean of d, mean of d2.
        d = x_tile - mean
        d_2 = x_tile_2 - mean
        d_3 = x_tile_3 - mean
        slip = ct.sum(d + d_2 + d_3, axis=1, keepdims=True) * (1 / 768)
        d2 = d * d
        d2_2 = d_2 * d_2
        d2_3 = d_3 * d_3
        mean_square = ct.sum(d2 + d2_2 + d2_3, axis=1, keepdims=True) * (1 / 768)

        centred = d - slip
        slip2 = slip * slip
        gap = mean_square - slip2
        variance = ct.maximum(gap, 0.0, propagate_nan=True)
        shifted = variance + 1e-05
        scale = ct.rsqrt(shifted)
        normal = centred * scale
        scaled = normal * weight_tile
        total = scaled + bias_tile
        ct.store(y, (i, 0), total.astype(y.dtype), allow_tma=False)
        centred_2 = d_2 - slip
        normal_2 = centred_2 * scale
        scaled_2 = normal_2 * weight_tile_2
        total_2 = scaled_2 + bias_tile_2
        ct.store(y, (i, 1), total_2.astype(y.dtype), allow_tma=False)
        centred_3 = d_3 - slip
        normal_3 = centred_3 * scale
        scaled_3 = normal_3 * weight_tile_3
        total_3 = scaled_3 + bias_tile_3
        ct.store(y, (i, 2), total_3.astype(y.dtype), allow_tma=False)


def launch(stream, x, weight, bias, y, *, ROWS=2, PERSISTENT=1, occupancy=4, num_sms=None):
    M, N = x.shape
    if N != 768:
        raise ValueError("only for N == 768")
    tiles = ct.cdiv(M, ROWS)
    # persistent: as many blocks as fit at once, each walks through several tiles
    blocks = min(tiles, num_sms * occupancy) if PERSISTENT and num_sms else tiles
    grid = (blocks,)
    ct.launch(stream, grid, rows_kernel.replace_hints(occupancy=occupancy), (x, weight, bias, y, ROWS))
