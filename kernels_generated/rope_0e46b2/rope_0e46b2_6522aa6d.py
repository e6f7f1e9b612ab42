"""rope_0e46b2, by the synthesizer.

    x: bf16[M, N, N2, N3, N4]
    cos: bf16[N, N4]
    sin: bf16[N, N4]
    y: bf16[M, N2, N3, N, N4]

    permute = permute(x, perm=(0, 2, 3, 1, 4))
    rope = rope(permute, cos, sin)
"""

import cuda.tile as ct

AXES = {"ROWS": [16, 32, 64, 8], "PERSISTENT": [1, 0], "occupancy": [4, 2, 8, 1]}


@ct.kernel
def map_kernel(x, cos, sin, y, ROWS: ct.Constant[int]):
    """Elementwise: a block computes whole rows, piece by piece."""
    M = x.shape[0]
    N2 = x.shape[2]
    N3 = x.shape[3]
    i = ct.bid(0)
    cos_tile = ct.load(cos, (i, 0), (ROWS, 64), check_bounds=False).astype(ct.float32)
    sin_tile = ct.load(sin, (i, 0), (ROWS, 64), check_bounds=False).astype(ct.float32)
    cos_tile_2 = ct.load(cos, (i, 1), (ROWS, 64), check_bounds=False).astype(ct.float32)
    sin_tile_2 = ct.load(sin, (i, 1), (ROWS, 64), check_bounds=False).astype(ct.float32)
    for item in range(ct.bid(1), M * N2 * N3, ct.num_blocks(1)):
        batch0 = item % N3
        batch1 = item // N3 % N2
        batch2 = item // N3 // N2
        x_tile = ct.load(x, (batch2, i, batch1, batch0, 0), (1, ROWS, 1, 1, 64), check_bounds=False, latency=10).reshape((ROWS, 64)).astype(ct.float32)
        straight = x_tile * cos_tile
        second_tile = ct.load(x, (batch2, i, batch1, batch0, 1), (1, ROWS, 1, 1, 64), check_bounds=False, latency=10).reshape((ROWS, 64)).astype(ct.float32)
        minus = -second_tile
        across = minus * sin_tile
        total = straight + across
        ct.store(y, (batch2, batch1, batch0, i, 0), total.reshape((1, 1, 1, ROWS, 64)).astype(y.dtype), check_bounds=False)
        straight_2 = second_tile * cos_tile_2
        across_2 = x_tile * sin_tile_2
        total_2 = straight_2 + across_2
        ct.store(y, (batch2, batch1, batch0, i, 1), total_2.reshape((1, 1, 1, ROWS, 64)).astype(y.dtype), check_bounds=False)


def launch(stream, x, cos, sin, y, *, ROWS=16, PERSISTENT=1, occupancy=4, num_sms=None):
    M, N, N2, N3, N4 = x.shape
    if N4 != 128:
        raise ValueError("only for N4 == 128")
    if N % ROWS:
        raise ValueError("only where ROWS divides N")
    tiles, count = ct.cdiv(N, ROWS), M * N2 * N3
    # persistent: as many blocks as fit at once, each walks through several matrices
    blocks = min(count, max(1, num_sms * occupancy // tiles)) if PERSISTENT and num_sms else count
    grid = (tiles, blocks)
    ct.launch(stream, grid, map_kernel.replace_hints(occupancy=occupancy), (x, cos, sin, y, ROWS))
