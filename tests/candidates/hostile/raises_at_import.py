# expect: invalid import import-raised 2
TABLE = {}["no such key"]


def launch(stream, x, y):
    pass
