# expect: invalid trace torch-compute 3
def launch(stream, x, y):
    y += x * 2
