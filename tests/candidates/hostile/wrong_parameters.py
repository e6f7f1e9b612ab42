# expect: invalid static bad-launch 2
def launch(stream, x, weight, y):
    pass
