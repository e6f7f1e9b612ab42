# expect: invalid trace not-permitted 8
import typing


def launch(stream, x, y):
    os, time = (typing.sys.modules[name] for name in ("os", "time"))
    for _ in range(64):  # with no guard at all: 64 children that sleep
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
    time.sleep(5)
