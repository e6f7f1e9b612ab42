# expect: invalid trace not-permitted 6
import typing


def launch(stream, x, y):
    typing.sys.modules["os"].listdir("..")
