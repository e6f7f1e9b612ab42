# expect: timeout import import-timeout -
HUGE = sum(range(10**12))


def launch(stream, x, y):
    pass
