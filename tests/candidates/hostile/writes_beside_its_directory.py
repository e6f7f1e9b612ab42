# expect: invalid trace not-permitted 7
import typing


def launch(stream, x, y):
    os = typing.sys.modules["os"]
    os.close(os.open("..", os.O_TMPFILE | os.O_RDWR))  # a file without a name: with no guard at all nothing stays
