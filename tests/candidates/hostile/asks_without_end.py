# expect: invalid trace too-many-guards 5
def launch(stream, x, y):
    M, N = x.shape
    for i in range(1, 2000):
        if M * i > N * N * 3 + i * i:
            pass
