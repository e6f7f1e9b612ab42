# task: gelu
"""The array as one line of M*N elements, a tile a block."""

import cuda.tile as ct

AXES = {"TILE": [1024, 512, 2048]}


@ct.kernel
def kernel(x, y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    v = ct.load(x, index=(i,), shape=(TILE,)).astype(ct.float32)
    inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
    ct.store(y, index=(i,), tile=(0.5 * v * (1.0 + ct.tanh(inner))).astype(y.dtype))


def launch(stream, x, y, *, TILE=1024):
    flat, out = x.view(-1), y.view(-1)
    ct.launch(stream, (ct.cdiv(x.numel(), TILE),), kernel, (flat, out, TILE))
