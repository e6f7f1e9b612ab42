"""dense_residual, by the synthesizer.

    x: f32[M, K]
    w: f32[K, N]
    b: f32[N]
    r: f32[M, N]
    y: f32[M, N]

    matmul = matmul(x, w)
    add = add(matmul, b)
    add_2 = add(add, r)
"""

import cuda.tile as ct

AXES = {"TM": [64, 32, 128], "TN": [64, 32, 128], "TK": [16, 32, 8], "GROUP": [8], "PERSISTENT": [1, 0], "occupancy": [1, 2]}


def matmul_tile(tile, x, w, b, r, y, TM, TN, TK, GROUP):
    """Matrix product, accumulated in float32; what follows it is computed on the accumulator."""
    M = x.shape[0]
    K = x.shape[1]
    N = w.shape[1]
    row_tiles = ct.cdiv(M, TM)
    column_tiles = ct.cdiv(N, TN)
    # GROUP rows of tiles are walked column by column: neighbours share operands in the L2 cache.
    first = tile // (GROUP * column_tiles) * GROUP
    height = min(row_tiles - first, GROUP)
    i = first + tile % (GROUP * column_tiles) % height
    j = tile % (GROUP * column_tiles) // height
    acc = ct.zeros((TM, TN), ct.float32)
    for step in range(ct.cdiv(K, TK)):
        x_tile = ct.load(x, (i, step), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        w_tile = ct.load(w, (step, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO)
        acc = acc + ct.mma(x_tile, w_tile, ct.zeros((TM, TN), ct.float32))
    b_tile = ct.load(b, (j,), (TN,), padding_mode=ct.PaddingMode.ZERO)
    total_2 = acc + b_tile
    r_tile = ct.load(r, (i, j), (TM, TN), padding_mode=ct.PaddingMode.ZERO)
    total_3 = total_2 + r_tile
    ct.store(y, (i, j), total_3.astype(y.dtype))


@ct.kernel
def matmul_kernel(
    x, w, b, r, y, tiles, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int], GROUP: ct.Constant[int], PERSISTENT: ct.Constant[int],
):
    """One tile a block, or PERSISTENT blocks that take every n-th tile."""
    if PERSISTENT:
        for tile in range(ct.bid(0), tiles, ct.num_blocks(0)):
            matmul_tile(tile, x, w, b, r, y, TM, TN, TK, GROUP)
    else:
        matmul_tile(ct.bid(0), x, w, b, r, y, TM, TN, TK, GROUP)


def launch(stream, x, w, b, r, y, *, TM=64, TN=64, TK=16, GROUP=8, PERSISTENT=1, occupancy=1, num_sms=None):
    M, _ = x.shape
    _, N = w.shape
    tiles = ct.cdiv(M, TM) * ct.cdiv(N, TN)
    # persistent: as many blocks as fit at once, each walks through several tiles
    blocks = min(tiles, num_sms * occupancy) if PERSISTENT and num_sms else tiles
    grid = (blocks,)
    ct.launch(
        stream, grid, matmul_kernel.replace_hints(occupancy=occupancy),
        (x, w, b, r, y, tiles, TM, TN, TK, GROUP, PERSISTENT),
    )
