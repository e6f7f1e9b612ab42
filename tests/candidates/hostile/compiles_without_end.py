# expect: timeout trace launch-timeout 17
import cuda.tile as ct


@ct.kernel
def copy(x, y):
    total = ct.load(x, index=(ct.bid(0), 0), shape=(1, 256))
    for i in ct.static_iter(range(24)):
        for _ in ct.static_iter(range(1000)):
            total = total + i
    ct.store(y, index=(ct.bid(0), 0), tile=total)


def launch(stream, x, y):
    # The line of the launch whose kernel does not end.

    ct.launch(stream, (x.shape[0],), copy, (x, y))
