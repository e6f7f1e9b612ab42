# expect: timeout trace launch-timeout 4
def launch(stream, x, y):
    n = 0
    while n >= 0:
        n += 1
