# expect: invalid trace bad-answer -
import typing

import cuda.tile as ct


@ct.kernel
def copy(x, y):
    ct.store(y, index=(ct.bid(0), 0), tile=ct.load(x, index=(ct.bid(0), 0), shape=(1, 256)))


recorder = typing.sys.modules["evaluator.trace.recorder"]
honest = recorder.Recorder.plan


def lying(self):
    plan = honest(self)
    plan["arguments"][0]["shape"] = [1]
    plan["arguments"][0]["dtype"] = "f64"
    return plan


recorder.Recorder.plan = lying


def launch(stream, x, y):
    ct.launch(stream, (x.shape[0],), copy, (x, y))
