# expect: invalid trace no-launch -
def launch(stream, x, y):
    print("nothing to do")
