# expect: invalid trace too-many-launches 12
import cuda.tile as ct


@ct.kernel
def copy(x, y):
    ct.store(y, index=(ct.bid(0), 0), tile=ct.load(x, index=(ct.bid(0), 0), shape=(1, 256)))


def launch(stream, x, y):
    for _ in range(1000):
        ct.launch(stream, (x.shape[0],), copy, (x, y))
