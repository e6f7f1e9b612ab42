# expect: invalid import output-megabytes -
for _ in range(1000):
    print("x" * 10000)


def launch(stream, x, y):
    pass
