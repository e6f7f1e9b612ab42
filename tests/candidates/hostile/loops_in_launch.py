# expect: timeout trace launch-timeout 8
import typing


def launch(stream, x, y):
    clock = typing.sys.modules["time"].monotonic
    until = clock() + 15
    while clock() < until: pass
