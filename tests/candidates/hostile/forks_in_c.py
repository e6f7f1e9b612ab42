# expect: invalid trace not-permitted 14
import typing


def launch(stream, x, y):
    ctypes, os, time = (typing.sys.modules[name] for name in ("ctypes", "os", "time"))
    libc = ctypes.CDLL(None, use_errno=True)
    children = [libc.fork() for _ in range(5)]  # with no guard at all: 31 children that sleep
    if 0 in children:
        time.sleep(5)
        os._exit(0)
    if children == [-1] * 5:  # C raises nothing: say so, and go on to what Python refuses

        os.kill(os.getppid(), 0)
