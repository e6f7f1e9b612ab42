# expect: crash trace crashed -
import typing


def launch(stream, x, y):
    typing.sys.modules["ctypes"].string_at(0)
