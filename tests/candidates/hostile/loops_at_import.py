# expect: timeout import import-timeout 2
while True:
    pass


def launch(stream, x, y):
    pass
