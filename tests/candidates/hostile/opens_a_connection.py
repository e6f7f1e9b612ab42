# expect: invalid trace not-permitted 11
import typing


def launch(stream, x, y):
    ctypes, os = (typing.sys.modules[name] for name in ("ctypes", "os"))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.socket(2, 1, 0) >= 0:
        return
    error = ctypes.get_errno()
    raise OSError(error, os.strerror(error))
