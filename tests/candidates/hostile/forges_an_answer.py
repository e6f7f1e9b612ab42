# expect: invalid trace bad-answer -
import typing


def launch(stream, x, y):
    # The child's own frame knows the nonce; the forged plan gets past it and meets the parent's checks.
    frame = typing.sys._getframe()
    while "answer" not in frame.f_locals or "request" not in frame.f_locals:
        frame = frame.f_back
    forged = {"version": 1, "task": "x", "policy": "general", "dims": [], "arguments": [], "views": [], "steps": []}
    frame.f_locals["answer"].send({"request": 0, "plan": forged, "names": {}, "kernels": {}, "seconds": 0})
    typing.sys.modules["os"]._exit(0)
