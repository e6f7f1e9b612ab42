# expect: invalid trace launch-raised 10
import cuda.tile as ct


def copy(x, y):
    pass


def launch(stream, x, y):
    ct.launch(stream, (1,), copy, (x, y))
