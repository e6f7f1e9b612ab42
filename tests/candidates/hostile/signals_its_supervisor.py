# expect: invalid trace not-permitted 8
import typing


def launch(stream, x, y):
    os = typing.sys.modules["os"]
    # Signal 0 asks whether one may: with no guard at all nobody is hurt.
    os.kill(os.getppid(), 0)
