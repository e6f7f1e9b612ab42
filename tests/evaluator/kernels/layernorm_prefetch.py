# task: layernorm
"""Right by the language.  On sm_90 its carried loads are a known fault of the compiler: seed/compiler_faults.jsonl."""

import cuda.tile as ct

AXES = {
    "TM": [4, 8],
    "OCC": [4, 5, 3],
    "LAT": [1, 8],
}

# Persistent with the next rows prefetched into registers as bf16 before the
# current ones are reduced: the read of the next group is in flight during both
# reductions and the stores.


@ct.kernel
def kernel(
    x,
    weight,
    bias,
    y,
    inv_n: float,
    TM: ct.Constant[int],
    P: ct.Constant[int],
    NT: ct.Constant[int],
    LAT: ct.Constant[int],
    MASK: ct.Constant[bool],
):
    M = x.shape[0]
    N = x.shape[1]
    zero_pad = ct.PaddingMode.ZERO
    # Columns past the last tile are read again from tile 0 and not used.
    c1 = 1 if NT > 1 else 0
    c2 = 2 if NT > 2 else 0

    tiles = ct.cdiv(M, TM)
    start = ct.bid(0)
    step = ct.num_blocks(0)
    r0 = ct.load(x, index=(start, 0), shape=(TM, P), padding_mode=zero_pad)
    r1 = ct.load(x, index=(start, c1), shape=(TM, P), padding_mode=zero_pad)
    r2 = ct.load(x, index=(start, c2), shape=(TM, P), padding_mode=zero_pad)

    w0 = ct.load(weight, index=(0,), shape=(P,), padding_mode=zero_pad)
    w1 = ct.load(weight, index=(c1,), shape=(P,), padding_mode=zero_pad)
    w2 = ct.load(weight, index=(c2,), shape=(P,), padding_mode=zero_pad)
    b0 = ct.load(bias, index=(0,), shape=(P,), padding_mode=zero_pad)
    b1 = ct.load(bias, index=(c1,), shape=(P,), padding_mode=zero_pad)
    b2 = ct.load(bias, index=(c2,), shape=(P,), padding_mode=zero_pad)
    w0 = w0.reshape((1, P))
    w1 = w1.reshape((1, P))
    w2 = w2.reshape((1, P))
    b0 = b0.reshape((1, P))
    b1 = b1.reshape((1, P))
    b2 = b2.reshape((1, P))
    cols = ct.arange(P, dtype=ct.int32).reshape((1, P))

    for t in range(start, tiles, step):
        nxt = ct.minimum(t + step, tiles - 1)
        n0 = ct.load(x, index=(nxt, 0), shape=(TM, P), padding_mode=zero_pad, latency=LAT)
        n1 = ct.load(x, index=(nxt, c1), shape=(TM, P), padding_mode=zero_pad, latency=LAT)
        n2 = ct.load(x, index=(nxt, c2), shape=(TM, P), padding_mode=zero_pad, latency=LAT)
        x0 = r0.astype(ct.float32)
        x1 = r1.astype(ct.float32)
        x2 = r2.astype(ct.float32)
        if NT < 2:
            x1 = x1 * 0.0
        if NT < 3:
            x2 = x2 * 0.0
        mean = ct.sum(x0 + x1 + x2, axis=1, keepdims=True) * inv_n
        x0 = x0 - mean
        x1 = x1 - mean
        x2 = x2 - mean
        if MASK:
            x0 = ct.where(cols < N, x0, 0.0)
            x1 = ct.where(cols + P < N, x1, 0.0)
            x2 = ct.where(cols + 2 * P < N, x2, 0.0)
        var = ct.sum(x0 * x0 + x1 * x1 + x2 * x2, axis=1, keepdims=True) * inv_n
        rstd = ct.rsqrt(var + 1e-5)
        o0 = x0 * rstd * w0.astype(ct.float32) + b0.astype(ct.float32)
        ct.store(y, index=(t, 0), tile=o0.astype(y.dtype))
        if NT > 1:
            o1 = x1 * rstd * w1.astype(ct.float32) + b1.astype(ct.float32)
            ct.store(y, index=(t, 1), tile=o1.astype(y.dtype))
        if NT > 2:
            o2 = x2 * rstd * w2.astype(ct.float32) + b2.astype(ct.float32)
            ct.store(y, index=(t, 2), tile=o2.astype(y.dtype))
        r0 = n0
        r1 = n1
        r2 = n2


def launch(stream, x, weight, bias, y, *, TM=4, OCC=4, LAT=1, num_sms=None):
    M, N = x.shape
    P = 64
    while 3 * P < N:
        P *= 2
    rows = TM
    while rows > 1 and rows * P > 4096:
        rows //= 2
    warps = 4 if rows * P <= 4096 else 8
    occ = OCC if rows * P <= 2048 else max(1, OCC // 4)
    sms = num_sms if num_sms else 132
    tiles = (M + rows - 1) // rows
    grid = (max(1, min(tiles, sms * occ)), 1, 1)
    ct.launch(
        stream,
        grid,
        kernel.replace_hints(occupancy=occ, num_worker_warps=warps),
        (x, weight, bias, y, 1.0 / N, rows, P, (N + P - 1) // P, LAT, 3 * P != N),
    )
