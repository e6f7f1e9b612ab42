"""What nobody made is followed to where it matters: no further than it reaches, and nowhere lost on the way."""

import cuda.tile as ct
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.kernel import Kernel
from evaluator.tileir import OUTPUT, WORKSPACE, Tracker, build, launch_words, tainted
from evaluator.tileir.arguments import pass_arguments, to_bytecode
from evaluator.tileir.ops_taint import PADDING, UNDEFINED

N = 16


def follow(kernel, args, bad=(), grid=(1, 1, 1), batch=None):
    """The tracker after a launch: ``bad`` are the tensors that nobody wrote, or (tensor, mask) where some of it is."""
    tracker = Tracker()
    for item in bad:
        tensor, mask = item if isinstance(item, tuple) else (item, torch.ones_like(item, dtype=torch.bool))
        tracker.unwritten(tensor, "bad", WORKSPACE)
        twin = tracker.twins.of(tracker.memory.register(tensor)).flat(torch.uint8)
        twin.copy_((mask.reshape(-1, 1).to(torch.uint8) * WORKSPACE).expand(-1, tensor.element_size()).reshape(-1))
    bound = pass_arguments(kernel, args, tracker.memory)
    program = build(tainted(Kernel.of(to_bytecode(kernel, bound.parameters)).module))
    report = launch_words(
        program, grid, bound.words, tracker.memory, sanitizer=tracker, arrays=bound.arrays, batch=batch
    )
    assert report.limit is None
    return tracker


def some(*places, shape=(N,)):
    mask = torch.zeros(shape, dtype=torch.bool)
    for place in places:
        mask[place] = True
    return mask


@ct.kernel
def _elements(x, y, T: ct.Constant[int]):
    v = ct.load(x, (0,), (T,))
    ct.store(y, (0,), ct.exp(v * 2.0 + 1.0))


@ct.kernel
def _chosen(x, y, T: ct.Constant[int]):
    v = ct.load(x, (0,), (T,))
    ct.store(y, (0,), ct.where(ct.arange(T, dtype=ct.int32) < 4, v, 0.0))


@ct.kernel
def _by_value(x, y, T: ct.Constant[int]):
    v = ct.load(x, (0,), (T,))
    ct.store(y, (0,), ct.where(v > 1e30, 1.0, 0.0))


@ct.kernel
def _summed(x, y, T: ct.Constant[int]):
    ct.store(y, (0,), ct.full((T,), 0.0, ct.float32) + ct.sum(ct.load(x, (0,), (T,))))


@ct.kernel
def _running(x, y, T: ct.Constant[int]):
    ct.store(y, (0,), ct.cumsum(ct.load(x, (0,), (T,)), axis=0))


@ct.kernel
def _turned(x, y, T: ct.Constant[int]):
    v = ct.load(x, (0,), (T,)).reshape((4, T // 4))
    left, right = ct.extract(v, (0, 0), (4, T // 8)), ct.extract(v, (0, 1), (4, T // 8))
    ct.store(y, (0,), ct.transpose(ct.cat((right, left), 1)).reshape((T,)))


@ct.kernel
def _carried(x, y, T: ct.Constant[int]):
    acc = ct.full((T,), 0.0, ct.float32)
    for k in range(3):
        if k == 1:
            acc = acc + ct.load(x, (0,), (T,))
        else:
            acc = acc * 2.0
    ct.store(y, (0,), acc)


@ct.kernel
def _through_memory(x, y, T: ct.Constant[int]):
    v = ct.load(x, (0,), (T,))
    ct.store(y, (0,), v)
    ct.store(y, (0,), ct.load(y, (0,), (T,)) + 1.0)


@ct.kernel
def _gathered(x, y, T: ct.Constant[int]):
    at = ct.arange(T, dtype=ct.int32)
    ct.scatter(y, at, ct.gather(x, (at + 3) % T))


@ct.kernel
def _added(x, y, T: ct.Constant[int]):
    at = ct.arange(T, dtype=ct.int32)
    ct.atomic_add(y, at // 2, ct.gather(x, at))


ALL, HALF = tuple(range(N)), tuple(range(4))
# kernel: which results are tainted where x[1] and x[9] are
REACH = {
    _elements: (1, 9),
    _chosen: (1,),
    _by_value: (1, 9),
    _summed: ALL,
    _running: ALL[1:],
    _turned: (12, 14),
    _carried: (1, 9),
    _through_memory: (1, 9),
    _gathered: (6, 14),
    _added: (0, 4),
}


@pytest.mark.parametrize("kernel", REACH, ids=lambda k: k._pyfunc.__name__)
def test_a_result_is_tainted_where_what_nobody_wrote_reaches_it_and_nowhere_else(kernel):
    x, y = torch.ones(N), torch.zeros(N)
    tracker = follow(kernel, (x, y, N), [(x, some(1, 9))])
    assert tracker.taints(y).nonzero().flatten().tolist() == sorted(REACH[kernel])
    assert tracker.findings == []


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.sampled_from([k for k in REACH if k is not _added]),
    bad=st.lists(st.booleans(), min_size=N, max_size=N),
    fill=st.sampled_from([0.0, -1.0, 12345.0, 1e31, float("nan"), float("inf")]),
)
def test_no_result_without_a_taint_depends_on_what_nobody_wrote(kernel, bad, fill):
    mask, results = torch.tensor(bad), []
    for value in (1.0, fill):
        x, y = torch.where(mask, value, torch.arange(N).float()), torch.zeros(N)
        tracker = follow(kernel, (x, y, N), [(x, mask)])
        results.append(y)
    differs = results[0].view(torch.int32) != results[1].view(torch.int32)
    assert not bool((differs & (tracker.taints(y) == 0)).any())


# ---------------------------------------------------------------------------------------------------- products


@ct.kernel
def _product(a, b, y, T: ct.Constant[int]):
    zero = ct.full((T, T), 0.0, ct.float32)
    ct.store(y, (0, 0), ct.mma(ct.load(a, (0, 0), (T, T)), ct.load(b, (0, 0), (T, T)), zero))


def _square(height, width, dtype=torch.bfloat16):
    return torch.ones(height, width, dtype=dtype)


def test_in_a_product_padding_ends_at_a_zero_and_memory_that_nobody_wrote_does_not():
    a, b, y = _square(N, N - 4), _square(N, N), torch.zeros(N, N)  # a's columns from 12 on are padding
    b[N - 4 :] = 0.0
    assert not follow(_product, (a, b, y, N)).taints(y).any()
    b[-1, 5] = 1.0
    column = follow(_product, (a, b, y, N)).taints(y)
    assert (column == some((slice(None), 5), shape=(N, N)) * PADDING).all()
    a, bad = _square(N, N), some((3, N - 1), shape=(N, N))
    row = follow(_product, (a, b, y, N), [(a, bad)]).taints(y)
    assert (row == some((3, slice(None)), shape=(N, N)) * WORKSPACE).all()


@ct.kernel
def _scaled(x, m, y, T: ct.Constant[int]):
    ct.store(y, (0,), ct.load(x, (0,), (T,)) * ct.load(m, (0,), (T,)))


def test_a_zero_factor_ends_padding_but_not_memory_that_may_hold_nan():
    x, m, y = torch.ones(N - 4), torch.zeros(N), torch.zeros(N)
    m[-1] = 1.0
    assert (follow(_scaled, (x, m, y, N)).taints(y) == some(N - 1) * PADDING).all()
    x = torch.ones(N)
    assert (follow(_scaled, (x, m, y, N), [x]).taints(y) == WORKSPACE).all()


# ---------------------------------------------------------------------------------------------------- what depends


@ct.kernel
def _branches(x, y, T: ct.Constant[int]):
    if ct.gather(x, 0) > 1e30:
        ct.store(y, (0,), ct.full((T,), 1.0, ct.float32))


@ct.kernel
def _counts(x, y, T: ct.Constant[int]):
    for _ in range(ct.gather(x, 0).astype(ct.int32)):
        ct.store(y, (0,), ct.full((T,), 1.0, ct.float32))


@ct.kernel
def _scatters(x, y, T: ct.Constant[int]):
    ct.scatter(y, ct.load(x, (0,), (T,)).astype(ct.int32), 1.0)


@ct.kernel
def _stores_there(x, y, T: ct.Constant[int]):
    ct.store(y, (ct.gather(x, 0).astype(ct.int32),), ct.full((T,), 1.0, ct.float32))


@ct.kernel
def _adds_there(x, y, T: ct.Constant[int]):
    ct.atomic_add(y, ct.gather(x, 0).astype(ct.int32), 1.0)


@ct.kernel
def _waits(x, y, T: ct.Constant[int]):
    while ct.atomic_add(x, 0, 1.0) < 0.0:
        ct.store(y, (0,), ct.full((T,), 1.0, ct.float32))


DEPENDS = {
    _branches: "a branch",
    _counts: "the number of a loop's turns",
    _scatters: "where a store goes",
    _stores_there: "where a store goes",
    _adds_there: "where an atomic goes",
    _waits: "a branch",
}


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("kernel", DEPENDS, ids=lambda k: k._pyfunc.__name__)
def test_what_a_kernel_does_may_not_depend_on_what_nobody_wrote(kernel, batch):
    x, y = torch.zeros(N), torch.zeros(N)
    found, *_ = follow(kernel, (x, y, N), [x], batch=batch).findings
    assert (found.kind, found.message) == ("uninitialised", f"{DEPENDS[kernel]} depends on uninitialised workspace")
    assert found.file == __file__
    assert found.line > kernel._pyfunc.__code__.co_firstlineno
    assert follow(kernel, (x, y, N), batch=batch).findings == []


@ct.kernel
def _each_block(x, y):
    i = ct.bid(0)
    v = ct.gather(x, i)
    if i % 2 == 0:
        v = v * 2.0
    ct.scatter(y, i, v)


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_blocks_that_run_together_keep_their_taints_apart(batch):
    x, y = torch.ones(N), torch.zeros(N)
    tracker = follow(_each_block, (x, y), [(x, some(2, 7))], (N, 1, 1), batch)
    assert tracker.taints(y).nonzero().flatten().tolist() == [2, 7]


@ct.kernel
def _undefined(x, y, T: ct.Constant[int]):
    whole = ct.load(x, (0,), (T,)).astype(ct.int32)
    ct.store(y, (0,), whole // (ct.arange(T, dtype=ct.int32) - 5))


def test_what_the_language_leaves_undefined_is_followed():
    x, y = torch.ones(N), torch.zeros(N, dtype=torch.int32)
    x[2] = 1e30
    assert (follow(_undefined, (x, y, N)).taints(y) == some(2, 5) * UNDEFINED).all()


def test_values_are_those_of_the_kernel_itself_and_an_output_that_is_read_is_told_apart():
    x, y = torch.arange(N).float(), torch.zeros(N)
    tracker = Tracker()
    tracker.unwritten(y, "y", OUTPUT)
    bound = pass_arguments(_through_memory, (x, y, N), tracker.memory)
    program = build(tainted(Kernel.of(to_bytecode(_through_memory, bound.parameters)).module))
    launch_words(program, (1, 1, 1), bound.words, tracker.memory, sanitizer=tracker, arrays=bound.arrays)
    assert torch.equal(y, x + 1.0)
    assert not tracker.taints(y).any()
