"""dense, by the synthesizer.

    x: bf16[M, K]
    w: bf16[K, N]
    b: bf16[N]
    y: bf16[M, N]

    matmul = matmul(x, w)
    add = add(matmul, b)
"""

import cuda.tile as ct

AXES = {"ROWS": [2, 1, 4, 8], "CHUNK": [1024, 512, 256], "occupancy": [4, 2, 8, 1]}


@ct.kernel
def rows_kernel(x, w, b, y, ROWS: ct.Constant[int], CHUNK: ct.Constant[int]):
    """Rows: every reduction over a row is one pass over its chunks, accumulated per column in float32."""
    K = x.shape[2]
    N = w.shape[1]
    row_tiles = ct.cdiv(N, ROWS)
    i = ct.bid(0) % row_tiles
    batch = ct.bid(0) // row_tiles

    # Pass 1: sum of products.
    matmul_acc = ct.full((ROWS, CHUNK), 0, ct.float32)
    for j in range(ct.cdiv(K, CHUNK)):
        x_tile = ct.load(x, (batch, 0, j), (1, 1, CHUNK), padding_mode=ct.PaddingMode.ZERO).reshape((1, CHUNK)).astype(ct.float32)
        w_tile = ct.load(w, (i, j), (ROWS, CHUNK), order=(1, 0), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        products = x_tile * w_tile
        matmul_acc = matmul_acc + products
    matmul = ct.sum(matmul_acc, axis=1, keepdims=True)

    b_tile = ct.load(b, (i,), (ROWS,), padding_mode=ct.PaddingMode.ZERO).reshape((ROWS, 1)).astype(ct.float32)
    total = matmul + b_tile
    ct.store(y, (batch, i), total.reshape((1, ROWS)).astype(y.dtype))


def launch(stream, x, w, b, y, *, ROWS=2, CHUNK=1024, occupancy=4, num_sms=None):
    M, K = x.shape
    _, N = w.shape
    grid = (ct.cdiv(N, ROWS) * M,)
    ct.launch(
        stream, grid, rows_kernel.replace_hints(occupancy=occupancy),
        (x.view(M, 1, K), w, b, y, ROWS, CHUNK),
    )
