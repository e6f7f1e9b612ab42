"""linear_nobias, by the synthesizer.

    x: f16[M, K]
    w: f16[N, K]
    y: f16[M, N]

    linear = linear(x, w)
"""

import cuda.tile as ct

AXES = {"TM": [128, 64], "TN": [128, 256, 64], "TK": [64, 32, 128], "GROUP": [8, 4, 16], "PERSISTENT": [0, 1], "occupancy": [1, 2], "num_worker_warps": [4, 8]}


def matmul_tile(tile, x, w, y, TM, TN, TK, GROUP):
    """Matrix product, accumulated in float32; what follows it is computed on the accumulator."""
    M = x.shape[0]
    K = x.shape[1]
    N = w.shape[0]
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
        w_tile = ct.load(w, (step, j), (TK, TN), order=(1, 0), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(x_tile, w_tile, acc)
    ct.store(y, (i, j), acc.astype(y.dtype))


@ct.kernel
def matmul_kernel(
    x, w, y, tiles, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int], GROUP: ct.Constant[int], PERSISTENT: ct.Constant[int],
):
    """One tile a block, or PERSISTENT blocks that take every n-th tile."""
    if PERSISTENT:
        for tile in range(ct.bid(0), tiles, ct.num_blocks(0)):
            matmul_tile(tile, x, w, y, TM, TN, TK, GROUP)
    else:
        matmul_tile(ct.bid(0), x, w, y, TM, TN, TK, GROUP)


def launch(
    stream, x, w, y,
    *, TM=128, TN=128, TK=64, GROUP=8, PERSISTENT=0, occupancy=1, num_worker_warps=4, num_sms=None,
):
    M, _ = x.shape
    N, _ = w.shape
    tiles = ct.cdiv(M, TM) * ct.cdiv(N, TN)
    # persistent: as many blocks as fit at once, each walks through several tiles
    blocks = min(tiles, num_sms * occupancy) if PERSISTENT and num_sms else tiles
    grid = (blocks,)
    ct.launch(
        stream, grid, matmul_kernel.replace_hints(occupancy=occupancy, num_worker_warps=num_worker_warps),
        (x, w, y, tiles, TM, TN, TK, GROUP, PERSISTENT),
    )
