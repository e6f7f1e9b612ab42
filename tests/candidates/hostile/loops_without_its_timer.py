# expect: timeout trace launch-timeout -
import typing


def launch(stream, x, y):
    signal = typing.sys.modules["signal"]
    signal.setitimer(signal.ITIMER_REAL, 0)
    while True:
        pass
