# expect: invalid trace not-permitted 7
import typing


def launch(stream, x, y):
    os = typing.sys.modules["os"]
    os.chmod(".", 0o700)
