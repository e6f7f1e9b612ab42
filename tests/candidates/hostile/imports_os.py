# expect: invalid static forbidden-import 2
import os


def launch(stream, x, y):
    os.abort()
