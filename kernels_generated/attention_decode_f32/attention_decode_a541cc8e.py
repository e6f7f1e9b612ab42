"""attention_decode, by the synthesizer.

    q: f32[B, H, 1, D]
    k: f32[B, H, S, D]
    v: f32[B, H, S, D]
    last: i64[B, 1, 1, 1]
    y: f32[B, H, 1, D]

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

AXES = {"TM": [16], "TN": [32, 16, 64], "TK": [8, 16, 32], "occupancy": [1, 2]}

INF = math.inf


@ct.kernel
def attention_kernel(
    last, q, k, v, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int], TD: ct.Constant[int], FACTOR: ct.Constant[float],
):
    """Attention: a block walks its queries over all keys with a running maximum and sum (online softmax)."""
    H = q.shape[1]
    D = q.shape[3]
    S = k.shape[2]
    batch0 = ct.bid(0) % H
    batch1 = ct.bid(0) // H
    i = ct.bid(1)
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
        qk = ct.zeros((TM, TN), ct.float32)
        for step in range(ct.cdiv(D, TK)):
            q_tile = ct.load(q, (batch1, batch0, i, step), (1, 1, TM, TK), padding_mode=ct.PaddingMode.ZERO).reshape((TM, TK))
            k_tile = ct.load(k, (batch1, batch0, step, j), (1, 1, TK, TN), order=(0, 1, 3, 2), padding_mode=ct.PaddingMode.ZERO).reshape((TK, TN))
            qk = qk + ct.mma(q_tile, k_tile, ct.zeros((TM, TN), ct.float32))
        new_top = ct.maximum(top, ct.max(qk, axis=1, keepdims=True))
        p = ct.exp2((qk - new_top) * FACTOR)
        fade = ct.exp2((top - new_top) * FACTOR)
        total = total * fade + ct.sum(p, axis=1, keepdims=True)
        v_tile = ct.load(v, (batch1, batch0, j, 0), (1, 1, TN, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TN, TD))
        acc = acc * fade + ct.mma(p, v_tile, ct.zeros((TM, TD), ct.float32))
        top = new_top
    # Tiles that are seen in part.
    for j in range(whole, tiles):
        qk = ct.zeros((TM, TN), ct.float32)
        for step in range(ct.cdiv(D, TK)):
            q_tile = ct.load(q, (batch1, batch0, i, step), (1, 1, TM, TK), padding_mode=ct.PaddingMode.ZERO).reshape((TM, TK))
            k_tile = ct.load(k, (batch1, batch0, step, j), (1, 1, TK, TN), order=(0, 1, 3, 2), padding_mode=ct.PaddingMode.ZERO).reshape((TK, TN))
            qk = qk + ct.mma(q_tile, k_tile, ct.zeros((TM, TN), ct.float32))
        keys = j * TN + ct.arange(TN, dtype=ct.int32)[None, :]
        s = ct.where((keys < seen), qk, -INF)
        new_top = ct.maximum(top, ct.max(s, axis=1, keepdims=True))
        p = ct.exp2((s - new_top) * FACTOR)
        fade = ct.exp2((top - new_top) * FACTOR)
        total = total * fade + ct.sum(p, axis=1, keepdims=True)
        v_tile = ct.load(v, (batch1, batch0, j, 0), (1, 1, TN, TD), padding_mode=ct.PaddingMode.ZERO).reshape((TN, TD))
        acc = acc * fade + ct.mma(p, v_tile, ct.zeros((TM, TD), ct.float32))
        top = new_top
    out = acc / total
    ct.store(y, (batch1, batch0, i, 0), out.reshape((1, 1, TM, TD)).astype(y.dtype))


def launch(stream, q, k, v, last, y, *, TM=16, TN=32, TK=8, occupancy=1, num_sms=None):
    B, H, _, D = q.shape
    TD = max(16, 1 << (D - 1).bit_length())  # a tile's sizes are powers of two
    FACTOR = 1.4426950408889634 / math.sqrt(D)  # exp(scale * s) = exp2(FACTOR * s)
    grid = (B * H, ct.cdiv(1, TM))
    ct.launch(
        stream, grid, attention_kernel.replace_hints(occupancy=occupancy),
        (last, q, k, v, y, TM, TN, TK, TD, FACTOR),
    )
