# expect: invalid static bad-axes 2
AXES = {"T": list(range(10**9))}


def launch(stream, x, y, *, T):
    pass
