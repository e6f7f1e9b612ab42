# expect: timeout import import-timeout -
HUGE = sum(range(10**9))


def launch(stream, x, y):
    pass
