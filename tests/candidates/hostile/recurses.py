# expect: invalid trace too-deep 3
def launch(stream, x, y):
    launch(stream, x, y)
