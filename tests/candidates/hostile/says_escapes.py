# expect: invalid trace launch-raised 3
def launch(stream, x, y):
    raise RuntimeError("one\ntwo \033[2J\a\u202e three \ud800 " + 5000 * "x")
