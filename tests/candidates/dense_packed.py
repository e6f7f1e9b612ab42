# task: linear
"""The weight is prepared once: its tiles lie one behind the other, padded with zeros, and the bias is float32."""

import cuda.tile as ct

AXES = {"TM": [64, 128], "TN": [64], "TK": [32, 64]}
PACKED = {"w_tiles": ("cdiv(N, TN)", "cdiv(K, TK)", "TN", "TK"), "wide": ("N", "float32")}


@ct.kernel
def cut(w, w_tiles, TN: ct.Constant[int], TK: ct.Constant[int]):
    j, k = ct.bid(0), ct.bid(1)
    tile = ct.load(w, index=(j, k), shape=(TN, TK), padding_mode=ct.PaddingMode.ZERO)
    ct.store(w_tiles, index=(j, k, 0, 0), tile=ct.reshape(tile, (1, 1, TN, TK)))


@ct.kernel
def widen(b, wide, TN: ct.Constant[int]):
    j = ct.bid(0)
    bias = ct.load(b, index=(j,), shape=(TN,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(wide, index=(j,), tile=bias.astype(ct.float32))


@ct.kernel
def dense(x, w_tiles, wide, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), dtype=ct.float32)
    for k in range(ct.cdiv(x.shape[1], TK)):
        xt = ct.load(x, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
        wt = ct.reshape(ct.load(w_tiles, index=(j, k, 0, 0), shape=(1, 1, TN, TK)), (TN, TK))
        acc = ct.mma(xt, ct.transpose(wt), acc)
    bias = ct.load(wide, index=(j,), shape=(TN,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, index=(i, j), tile=(acc + bias[None, :]).astype(y.dtype))


def pack(stream, w, b, w_tiles, wide, *, TN=64, TK=32):
    tiles_n, tiles_k = w_tiles.shape[:2]
    ct.launch(stream, (tiles_n, tiles_k), cut, (w, w_tiles, TN, TK))
    ct.launch(stream, (tiles_n,), widen, (b, wide, TN))


def launch(stream, x, w, b, w_tiles, wide, y, *, TM=64, TN=64, TK=32):
    grid = (ct.cdiv(y.shape[0], TM), ct.cdiv(y.shape[1], TN))
    ct.launch(stream, grid, dense, (x, w_tiles, wide, y, TM, TN, TK))
