"""embedding, by the synthesizer.

    tokens: i64[B, T]
    wte: bf16[V, C]
    wpe: bf16[P, C]
    y: bf16[B, T, C]

    gather = gather(wte, tokens)
    iota = iota(n=T)
    gather_2 = gather(wpe, iota)
    add = add(gather, gather_2)
"""

import cuda.tile as ct

AXES = {"ROWS": [2, 4, 8, 1], "CHUNK": [1024, 512, 256], "occupancy": [4, 2, 8, 1]}


@ct.kernel
def map_kernel(wte, tokens, wpe, y, ROWS: ct.Constant[int], CHUNK: ct.Constant[int]):
    """Elementwise: a block computes one tile of the result."""
    T = tokens.shape[1]
    i = ct.bid(0)
    j = ct.bid(1)
    batch = ct.bid(2)
    tokens_tile = ct.load(tokens, (batch, i), (1, ROWS), padding_mode=ct.PaddingMode.ZERO).reshape((ROWS, 1))
    cols = j * CHUNK + ct.arange(CHUNK, dtype=ct.int32)[None, :]
    wte_tile = ct.gather(wte, (tokens_tile, cols)).astype(ct.float32)
    wpe_part = wpe.slice(axis=0, start=0, stop=T)
    wpe_tile = ct.load(wpe_part, (i, j), (ROWS, CHUNK), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    total = wte_tile + wpe_tile
    ct.store(y, (batch, i, j), total.reshape((1, ROWS, CHUNK)).astype(y.dtype))


def launch(stream, tokens, wte, wpe, y, *, ROWS=2, CHUNK=1024, occupancy=4, num_sms=None):
    B, T = tokens.shape
    _, C = wte.shape
    grid = (ct.cdiv(T, ROWS), ct.cdiv(C, CHUNK), B)
    ct.launch(stream, grid, map_kernel.replace_hints(occupancy=occupancy), (wte, tokens, wpe, y, ROWS, CHUNK))
