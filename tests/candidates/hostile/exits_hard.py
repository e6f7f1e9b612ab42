# expect: invalid trace exited -
import typing


def launch(stream, x, y):
    typing.sys.modules["os"]._exit(0)
