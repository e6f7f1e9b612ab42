# expect: build-error trace index-rank 7
import cuda.tile as ct


@ct.kernel
def copy(x, y):
    ct.store(y, index=(ct.bid(0),), tile=ct.load(x, index=(ct.bid(0),), shape=(64,)))


def launch(stream, x, y):
    ct.launch(stream, (x.shape[0],), copy, (x, y))
