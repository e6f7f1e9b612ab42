"""dense, by the synthesizer.

    x: bf16[M, K]
    w: bf16[K, N]
    b: bf16[N]
    y: bf16[M, N]

    matmul = matmul(x, w)
    add = add(matmul, b)
"""

import cuda.tile as ct

AXES = {"ROWS": [2, 1, 4, 8], "occupancy": [4, 2, 8, 1]}


@ct.kernel
def rows_kernel(x, w, b, y, ROWS: ct.Constant[int]):
    """Rows of up to 768 elements, kept in registers from the first pass to the last."""
    N = w.shape[1]
    row_tiles = ct.cdiv(N, ROWS)
    i = ct.bid(0) % row_tiles
    batch = ct.bid(0) // row_tiles

    # Pass 1: sum of products.
    x_tile = ct.load(x, (batch, 0, 0), (1, 1, 256), check_bounds=False).reshape((1, 256)).astype(ct.float32)
    w_tile = ct.load(w, (i, 0), (ROWS, 256), order=(1, 0), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    products = x_tile * w_tile
    x_tile_2 = ct.load(x, (batch, 0, 1), (1, 1, 256), check_bounds=False).reshape((1, 256)).astype(ct.float32)
    w_tile_2 = ct.load(w, (i, 1), (ROWS, 256), order=(1, 0), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    products_2 = x_tile_2 * w_tile_2
    x_tile_3 = ct.load(x, (batch, 0, 2), (1, 1, 256), check_bounds=False).reshape((1, 256)).astype(ct.float32)
    w_tile_3 = ct.load(w, (i, 2), (ROWS, 256), order=(1, 0), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    products_3 = x_tile_3 * w_tile_3
    matmul = ct.sum(products + products_2 + products_3, axis=1, keepdims=True)

    b_tile = ct.load(b, (i,), (ROWS,), padding_mode=ct.PaddingMode.ZERO).reshape((ROWS, 1)).astype(ct.float32)
    total = matmul + b_tile
    ct.store(y, (batch, i), total.reshape((1, ROWS)).astype(y.dtype))


def launch(stream, x, w, b, y, *, ROWS=2, occupancy=4, num_sms=None):
    M, K = x.shape
    _, N = w.shape
    if K != 768:
        raise ValueError("only for K == 768")
    grid = (ct.cdiv(N, ROWS) * M,)
    ct.launch(stream, grid, rows_kernel.replace_hints(occupancy=occupancy), (x.view(M, 1, K), w, b, y, ROWS))
