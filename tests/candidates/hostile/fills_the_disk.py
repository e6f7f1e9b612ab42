# expect: invalid import import-raised 4
with open("big", "wb") as file:
    while True:
        file.write(bytes(1 << 22))


def launch(stream, x, y):
    pass
