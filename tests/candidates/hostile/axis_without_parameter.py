# expect: invalid static bad-launch 5
AXES = {"T": [1, 2]}


def launch(stream, x, y):
    pass
