# expect: crash trace crashed -
import typing


def launch(stream, x, y):
    os = typing.sys.modules["os"]
    os.kill(os.getpid(), 11)
