# expect: invalid trace not-permitted 9
import functools
import typing


def launch(stream, x, y):
    thread, time = (typing.sys.modules[name] for name in ("_thread", "time"))
    for _ in range(64):  # with no guard at all: 64 threads that sleep
        thread.start_new_thread(functools.partial(time.sleep, 5), ())
    time.sleep(5)
