"""linear_nobias, by the synthesizer.

    x: bf16[M, K]
    w: bf16[N, K]
    y: bf16[M, N]

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


def alike(a, row, begin, end):
    """Every 8th row from ``row`` on, of each the columns from begin to end."""
    rows, columns = a.shape
    first = row * columns
    return a.view(rows // 8, 8 * columns)[:, first + begin:first + end]


def product(stream, x, w, y, TM, TN, TK, GROUP, PERSISTENT, occupancy, num_worker_warps, num_sms):
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


def launch(
    stream, x, w, y,
    *, TM=128, TN=128, TK=64, GROUP=8, PERSISTENT=0, occupancy=1, num_worker_warps=4, num_sms=None,
):
    M, _ = x.shape
    N, _ = w.shape
    how = (TM, TN, TK, GROUP, PERSISTENT, occupancy, num_worker_warps, num_sms)
    if M % 8 or N % 8 != 1 or N < 16:
        raise ValueError("only for M % 8 == 0, N % 8 == 1 and N > 16")
    # TMA stores to multiples of 16 bytes. The first and last columns of all rows, without it:
    product(stream, x, w[:8], y[:, :8], *how)
    product(stream, x, w[N - 8:], y[:, N - 8:], *how)
    # The others of every 8th row, which begin alike, from one multiple to another:
    for row in range(8):
        skip = -row * 1 % 8
        stop = N - (1 - skip) % 8
        product(stream, alike(x, row, 0, x.shape[1]), w[skip:stop], alike(y, row, skip, stop), *how)
