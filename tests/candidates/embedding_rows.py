# task: embedding
"""A token a block; its row of each table in chunks of TC."""

import cuda.tile as ct

AXES = {"TC": [256, 128]}


@ct.kernel
def rows(tokens, wte, wpe, y, T, TC: ct.Constant[int]):
    place = ct.bid(0)
    token = ct.gather(tokens, (place,))
    for j in range(ct.cdiv(wte.shape[1], TC)):
        cols = j * TC + ct.arange(TC, dtype=ct.int32)
        a = ct.gather(wte, (token, cols)).astype(ct.float32)
        b = ct.gather(wpe, (place % T, cols)).astype(ct.float32)
        ct.scatter(y, (place, cols), (a + b).astype(y.dtype))


def launch(stream, tokens, wte, wpe, y, *, TC=256):
    B, T = tokens.shape
    ct.launch(stream, (B * T,), rows, (tokens.view(-1), wte, wpe, y.view(B * T, -1), T, TC))
