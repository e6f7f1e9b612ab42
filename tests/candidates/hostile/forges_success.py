# expect: invalid trace bad-answer -
import typing


def launch(stream, x, y):
    frame = typing.sys._getframe()
    while "answer" not in frame.f_locals or "request" not in frame.f_locals:
        frame = frame.f_back
    said = {"status": "correct", "stage": "done", "error_class": "", "kind": "correct", "message": "", "line": None}
    frame.f_locals["answer"].send({"request": 0, "verdict": said, "failure": said})
    typing.sys.modules["os"]._exit(0)
