# task: dense_gelu
"""The product into a float32 workspace, bias and GELU by a second kernel."""

import cuda.tile as ct
import torch

AXES = {"TM": [64], "TN": [64], "TK": [32, 64]}


@ct.kernel
def product(x, w, h, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), dtype=ct.float32)
    for k in range(ct.cdiv(x.shape[1], TK)):
        xt = ct.load(x, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
        wt = ct.load(w, index=(k, j), shape=(TK, TN), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(xt, wt, acc)
    ct.store(h, index=(i, j), tile=acc)


@ct.kernel
def activate(h, b, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    at = (ct.bid(0), ct.bid(1))
    bias = ct.load(b, index=(at[1],), shape=(TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    v = ct.load(h, index=at, shape=(TM, TN), padding_mode=ct.PaddingMode.ZERO) + bias[None, :]
    inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
    ct.store(y, index=at, tile=(0.5 * v * (1.0 + ct.tanh(inner))).astype(y.dtype))


def launch(stream, x, w, b, y, *, TM=64, TN=64, TK=32):
    M, N = y.shape
    h = torch.empty(M, N, dtype=torch.float32, device="cuda")
    grid = (ct.cdiv(M, TM), ct.cdiv(N, TN))
    ct.launch(stream, grid, product, (x, w, h, TM, TN, TK))
    ct.launch(stream, grid, activate, (h, b, y, TM, TN))
