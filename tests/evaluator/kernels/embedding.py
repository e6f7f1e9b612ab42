"""Token plus position embedding: gathered rows, a tile of columns a block."""

import cuda.tile as ct

AXES = {"TC": [64]}


@ct.kernel
def rows(tokens, wte, wpe, y, TC: ct.Constant[int]):
    b, t = ct.bid(0), ct.bid(1)
    token = ct.load(tokens, (b, t), (1, 1)).item()
    for j in range(ct.cdiv(wte.shape[1], TC)):
        columns = j * TC + ct.arange(TC, dtype=ct.int32)
        word = ct.gather(wte, (token, columns)).astype(ct.float32)
        place = ct.gather(wpe, (t, columns)).astype(ct.float32)
        ct.scatter(y, (b, t, columns), (word + place).astype(y.dtype))


def launch(stream, tokens, wte, wpe, y, *, TC=64):
    ct.launch(stream, (tokens.shape[0], tokens.shape[1]), rows, (tokens, wte, wpe, y, TC))
