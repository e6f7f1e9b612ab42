# expect: invalid trace exited -
import typing


def launch(stream, x, y):
    os = typing.sys.modules["os"]
    for descriptor in range(1, 100):
        try:
            os.write(descriptor, bytes(range(256)) * 64 + b"\n")
        except OSError:
            pass
    os._exit(0)
