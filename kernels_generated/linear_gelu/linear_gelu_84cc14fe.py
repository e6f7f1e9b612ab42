"""linear_gelu, by the synthesizer.

    x: bf16[M, K]
    w: bf16[N, K]
    b: bf16[N]
    y: bf16[M, N]

    linear = linear(x, w, b)
    gelu = gelu(linear, approximate=tanh)
"""

import cuda.tile as ct

AXES = {"ROWS": [2, 1, 4, 8], "CHUNK": [1024, 512, 256], "occupancy": [4, 2, 8, 1]}


def gelu_approx(x):
    """x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    u = x * (0.7978845608028654 + 0.035677408136300125 * (x * x))
    h = 0.5 * x
    return h * ct.tanh(u, rounding_mode=ct.RoundingMode.APPROX) + h



@ct.kernel
def rows_kernel(x, w, b, y, ROWS: ct.Constant[int], CHUNK: ct.Constant[int]):
    """Rows: every reduction over a row is one pass over its chunks, accumulated per column in float32."""
    K = x.shape[2]
    N = w.shape[0]
    row_tiles = ct.cdiv(N, ROWS)
    i = ct.bid(0) % row_tiles
    batch = ct.bid(0) // row_tiles

    # Pass 1: sum of products.
    linear_product_acc = ct.full((ROWS, CHUNK), 0, ct.float32)
    for j in range(ct.cdiv(K, CHUNK)):
        x_tile = ct.load(x, (batch, 0, j), (1, 1, CHUNK), padding_mode=ct.PaddingMode.ZERO).reshape((1, CHUNK)).astype(ct.float32)
        w_tile = ct.load(w, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        products = x_tile * w_tile
        linear_product_acc = linear_product_acc + products
    linear_product = ct.sum(linear_product_acc, axis=1, keepdims=True)

    b_tile = ct.load(b, (i,), (ROWS,), padding_mode=ct.PaddingMode.ZERO).reshape((ROWS, 1)).astype(ct.float32)
    total = linear_product + b_tile
    gelu_2 = gelu_approx(total)
    ct.store(y, (batch, i), gelu_2.reshape((1, ROWS)).astype(y.dtype))


def launch(stream, x, w, b, y, *, ROWS=2, CHUNK=1024, occupancy=4, num_sms=None):
    M, K = x.shape
    N, _ = w.shape
    grid = (ct.cdiv(N, ROWS) * M,)
    ct.launch(
        stream, grid, rows_kernel.replace_hints(occupancy=occupancy),
        (x.view(M, 1, K), w, b, y, ROWS, CHUNK),
    )
