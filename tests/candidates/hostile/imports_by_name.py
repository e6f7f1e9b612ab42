# expect: invalid import forbidden-import 2
subprocess = __import__("subprocess")


def launch(stream, x, y):
    subprocess.run(["true"])
