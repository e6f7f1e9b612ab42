# expect: invalid import missing-launch -
import cuda.tile as ct


def launch(stream, x, y):
    pass


del launch
