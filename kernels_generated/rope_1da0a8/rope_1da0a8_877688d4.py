"""rope_1da0a8, by the synthesizer.

    x: bf16[M, N, N2, N3]
    cos: bf16[N, N3]
    sin: bf16[N, N3]
    y: bf16[M, N2, 1, N, N3]

    permute = permute(x, perm=(0, 2, 1, 3))
    reshape = reshape(permute, shape=('M', 'N2', 1, 'N', 'N3'))
    rope = rope(reshape, cos, sin)
"""

import cuda.tile as ct

AXES = {"ROWS": [16, 32, 64, 8], "CHUNK": [128], "occupancy": [4, 2, 8, 1]}


@ct.kernel
def map_kernel(x, cos, sin, y, ROWS: ct.Constant[int], CHUNK: ct.Constant[int]):
    """Elementwise: a block computes one tile of the result."""
    N2 = x.shape[2]
    N3 = x.shape[3]
    i = ct.bid(0)
    j = ct.bid(1)
    batch0 = ct.bid(2) % N2
    batch1 = ct.bid(2) // N2
    x_tile = ct.load(x, (batch1, i, batch0, j), (1, ROWS, 1, CHUNK), padding_mode=ct.PaddingMode.ZERO).reshape((ROWS, CHUNK)).astype(ct.float32)
    cos_tile = ct.load(cos, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    straight = x_tile * cos_tile
    cols = j * CHUNK + ct.arange(CHUNK, dtype=ct.int32)[None, :]
    rows = i * ROWS + ct.arange(ROWS, dtype=ct.int32)[:, None]
    at = cols + (ct.cdiv(N3, 2))
    second_tile = ct.gather(x, (batch1, rows, batch0, at)).astype(ct.float32)
    minus = -second_tile
    at_2 = cols - (N3//2)
    first_tile = ct.gather(x, (batch1, rows, batch0, at_2)).astype(ct.float32)
    turned = ct.where(cols < N3//2, minus, first_tile)
    sin_tile = ct.load(sin, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    across = turned * sin_tile
    total = straight + across
    ct.store(y, (batch1, batch0, 0, i, j), total.reshape((1, 1, 1, ROWS, CHUNK)).astype(y.dtype))


def launch(stream, x, cos, sin, y, *, ROWS=16, CHUNK=128, occupancy=4, num_sms=None):
    M, N, N2, N3 = x.shape
    grid = (ct.cdiv(N, ROWS), ct.cdiv(N3, CHUNK), M * N2)
    ct.launch(stream, grid, map_kernel.replace_hints(occupancy=occupancy), (x, cos, sin, y, ROWS, CHUNK))
