# expect: timeout trace launch-timeout -
import typing


def launch(stream, x, y):
    signal, clock = typing.sys.modules["signal"], typing.sys.modules["time"].monotonic
    signal.setitimer(signal.ITIMER_REAL, 0)
    until = clock() + 15
    while clock() < until: pass
