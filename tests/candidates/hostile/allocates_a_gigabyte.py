# expect: crash trace memory-limit 3
def launch(stream, x, y):
    bytearray(1 << 30)
