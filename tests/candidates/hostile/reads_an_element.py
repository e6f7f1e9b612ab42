# expect: invalid trace torch-compute 3
def launch(stream, x, y):
    if x[0, 0].item() > 0:
        pass
