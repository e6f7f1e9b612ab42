# expect: invalid trace launches-nothing -
def launch(stream, x, y):
    print("nothing to do")
