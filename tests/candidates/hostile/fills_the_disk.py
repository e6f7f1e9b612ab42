# expect: invalid import import-raised 4
with open("big", "wb") as file:
    for _ in range(24):
        file.write(bytes(1 << 22))


def launch(stream, x, y):
    pass
