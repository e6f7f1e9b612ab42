"""attention_decode, by the synthesizer.

    q: f16[B, H, 1, D]
    k: f16[B, H, S, D]
    v: f16[B, H, S, D]
    last: i64[B, 1, 1, 1]
    y: f16[B, H, 1, D]

    iota = iota(n=S)
    le = le(iota, last)
    permute = permute(k, perm=(0, 1, 3, 2))
    matmul = matmul(q, permute)
    $D = dim()
    $sqrt(D) = sqrt($D)
    div = div(matmul, $sqrt(D))
    $(-inf) = const(value=-inf)
    where = where(le, div, $(-inf))
    softmax = softmax(where)
    matmul_2 = matmul(softmax, v)
"""

import math

import cuda.tile as ct

AXES = {"TM": [16], "TN": [64, 32, 128], "occupancy": [2, 4, 3, 1]}

INF = math.inf


@ct.kernel
def attention_kernel(
    q, last, k, v, y, TM: ct.Constant[int], TN: ct.Constant[int], TD: ct.Constant[int], FACTOR: ct.Constant[float],
):
    """Attention: a block walks its queries over all keys with a running maximum and sum (online softmax)."""
    H = q.shape[1]
    S = k.shape[2]
    batch0 = ct.bid(0) % H
    batch1 = ct.bid(0) // H
    i = ct.bid(1)
    q_tile = ct.load(q, (batch1, batch0, i, 0), (1, 1, TM, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TM, TD))
    top = ct.full((TM, 1), -INF, ct.float32)
    total = ct.full((TM, 1), 0, ct.float32)
    acc = ct.full((TM, TD), 0, ct.float32)
    last_tile = ct.load(last, (batch1, 0, 0, 0), (1, 1, 1, 1), padding_mode=ct.PaddingMode.ZERO).item()
    # Keys behind the last that is seen are not read.
    seen = ct.astype(min(max(last_tile, -1), S - 1), ct.int32) + 1
    whole = seen // TN
    tiles = ct.cdiv(seen, TN)
    # Tiles of keys that every query of the block sees whole.
    for j in range(whole):
        k_tile = ct.load(k, (batch1, batch0, 0, j), (1, 1, TD, TN), order=(0, 1, 3, 2), padding_mode=ct.PaddingMode.ZERO).reshape((TD, TN))
        qk = ct.mma(q_tile, k_tile, ct.zeros((TM, TN), ct.float32))
        new_top = ct.maximum(top, ct.max(qk, axis=1, keepdims=True) * FACTOR)
        p = ct.exp2(qk * FACTOR - new_top, flush_to_zero=True)
        fade = ct.exp2(top - new_top, flush_to_zero=True)
        total = total * fade + ct.sum(p, axis=1, keepdims=True)
        v_tile = ct.load(v, (batch1, batch0, j, 0), (1, 1, TN, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TN, TD))
        acc = ct.mma(p.astype(ct.float16), v_tile, acc * fade)
        top = new_top
    # Tiles that are seen in part.
    for j in range(whole, tiles):
        k_tile = ct.load(k, (batch1, batch0, 0, j), (1, 1, TD, TN), order=(0, 1, 3, 2), padding_mode=ct.PaddingMode.ZERO).reshape((TD, TN))
        qk = ct.mma(q_tile, k_tile, ct.zeros((TM, TN), ct.float32))
        keys = j * TN + ct.arange(TN, dtype=ct.int32)[None, :]
        s = ct.where((keys < seen), qk, -INF)
        new_top = ct.maximum(top, ct.max(s, axis=1, keepdims=True) * FACTOR)
        p = ct.exp2(s * FACTOR - new_top, flush_to_zero=True)
        fade = ct.exp2(top - new_top, flush_to_zero=True)
        total = total * fade + ct.sum(p, axis=1, keepdims=True)
        v_tile = ct.load(v, (batch1, batch0, j, 0), (1, 1, TN, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TN, TD))
        acc = ct.mma(p.astype(ct.float16), v_tile, acc * fade)
        top = new_top
    out = acc * ct.truediv(1.0, total, rounding_mode=ct.RoundingMode.APPROX)
    ct.store(y, (batch1, batch0, i, 0), out.reshape((1, 1, TM, TD)).astype(y.dtype))


def launch(stream, q, k, v, last, y, *, TM=16, TN=64, occupancy=2, num_sms=None):
    B, H, _, D = q.shape
    TD = max(16, 1 << (D - 1).bit_length())  # a tile's sizes are powers of two
    FACTOR = 1.4426950408889634 / math.sqrt(D)  # exp(scale * s) = exp2(FACTOR * s)
    grid = (B * H, ct.cdiv(1, TM))
    ct.launch(
        stream, grid, attention_kernel.replace_hints(occupancy=occupancy),
        (q, last, k, v, y, TM, TN, TD, FACTOR),
    )
