# expect: invalid trace not-permitted 12
import typing


def launch(stream, x, y):
    os = typing.sys.modules["os"]
    for place in ("environ", "cmdline"):  # the environment and the arguments of whoever started it
        path = os.sep.join(("", "proc", str(os.getppid() or 1), place))
        try:
            open(path, "rb").read()
        except PermissionError as error:
            raise PermissionError(error.strerror)
