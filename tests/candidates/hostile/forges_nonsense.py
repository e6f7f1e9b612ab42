# expect: invalid trace bad-answer -
import typing


def launch(stream, x, y):
    frame = typing.sys._getframe()
    while "answer" not in frame.f_locals or "request" not in frame.f_locals:
        frame = frame.f_back
    send = frame.f_locals["answer"].send
    send({"request": 0, "failure": {"kind": ["infeasible"], "stage": {}, "message": None, "line": "x"}})
    typing.sys.modules["os"]._exit(0)
