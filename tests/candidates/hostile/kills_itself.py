# expect: invalid trace not-permitted 7
import typing


def launch(stream, x, y):
    os = typing.sys.modules["os"]
    os.kill(os.getpid(), 11)
