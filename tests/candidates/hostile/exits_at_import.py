# expect: invalid import exited 2
raise SystemExit(0)


def launch(stream, x, y):
    pass
