"""Control flow, lanes and reductions of the emulator: kernels through the real front end, in several batch sizes."""

import io
import math
import time

import cuda.tile as ct
import numpy as np
import pytest
import torch

from evaluator import emulator
from evaluator.emulator import EmulationError
from evaluator.kernel import Kernel
from evaluator.tileir import Array, Scalar, run
from evaluator.tileir.arguments import pass_arguments, to_bytecode
from evaluator.tileir.memory import Memory
from evaluator.tileir.program import build
from evaluator.tileir.text import Unsupported, parse

BATCHES = [None, 1, 3, 64]


def launch(grid, kernel, args, batch=None, **options):
    out = io.StringIO()
    report = emulator.launch(grid, kernel, args, batch=batch, write=out.write, **options)
    return report, out.getvalue()


@ct.kernel
def _identify(out, NX: ct.Constant[int], NY: ct.Constant[int]):
    x, y, z = ct.bid(0), ct.bid(1), ct.bid(2)
    code = x + 100 * y + 10000 * z + 1000000 * (ct.num_blocks(0) + ct.num_blocks(1) * 8 + ct.num_blocks(2) * 64)
    ct.scatter(out, x + NX * (y + NY * z), code)


@pytest.mark.parametrize("batch", BATCHES)
def test_every_block_knows_its_place_in_the_grid(batch):
    nx, ny, nz = 5, 3, 2
    out = torch.zeros(nx * ny * nz, dtype=torch.int32)
    launch((nx, ny, nz), _identify, (out, nx, ny), batch)
    base = 1000000 * (nx + ny * 8 + nz * 64)
    want = [base + x + 100 * y + 10000 * z for z in range(nz) for y in range(ny) for x in range(nx)]
    assert out.tolist() == want


@ct.kernel
def _branches(x, out, T: ct.Constant[int]):
    i = ct.bid(0)
    t = ct.load(x, (i,), (T,))
    if i % 3 == 0:
        t = t * 2
        s = 1
    elif i % 3 == 1:
        t = t + i
        s = 2
    else:
        s = 3
    ct.store(out, (i,), t * 10 + s)


@pytest.mark.parametrize("batch", BATCHES)
def test_blocks_take_their_own_branch_and_meet_again(batch):
    x = torch.arange(7 * 4, dtype=torch.int32)
    out = torch.zeros_like(x)
    launch((7,), _branches, (x, out, 4), batch)
    for i in range(7):
        t = x[4 * i : 4 * i + 4]
        want = {0: t * 20 + 1, 1: (t + i) * 10 + 2, 2: t * 10 + 3}[i % 3]
        assert torch.equal(out[4 * i : 4 * i + 4], want)


@ct.kernel
def _early_return(x, out, n, T: ct.Constant[int]):
    i = ct.bid(0)
    if i > n:
        return
    t = ct.load(x, (i,), (T,))
    if i == 1:  # noqa: SIM102 - nested on purpose
        if n > 2:
            return
    ct.store(out, (i,), t + 1)


@pytest.mark.parametrize("batch", BATCHES)
def test_blocks_that_return_early_write_nothing_and_the_others_go_on(batch):
    x = torch.arange(24, dtype=torch.int32)
    out = torch.full_like(x, -1)
    launch((6,), _early_return, (x, out, 3, 4), batch)
    want = torch.full_like(x, -1)
    for i in (0, 2, 3):
        want[4 * i : 4 * i + 4] = x[4 * i : 4 * i + 4] + 1
    assert torch.equal(out, want)


@ct.kernel
def _loops(out, n, T: ct.Constant[int]):
    i = ct.bid(0)
    total = 0
    for a in range(i, n, 2):
        if a == 4:
            continue
        b = 0
        while True:
            b += 1
            if b * b > a:
                break
            if b % 2 == 0:
                total += 100
                continue
            total += b
        total += a
    for a in range(3):
        for b in range(a + i):
            if b == 2:
                break
            total += 1000
    ct.scatter(out, i, total)


def _loops_in_python(i, n):
    total = 0
    for a in range(i, n, 2):
        if a == 4:
            continue
        b = 0
        while True:
            b += 1
            if b * b > a:
                break
            if b % 2 == 0:
                total += 100
                continue
            total += b
        total += a
    for a in range(3):
        for b in range(a + i):
            if b == 2:
                break
            total += 1000
    return total


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [0, 5, 23])
def test_nested_loops_with_break_and_continue_follow_python(n, batch):
    out = torch.zeros(9, dtype=torch.int32)
    launch((9,), _loops, (out, n, 1), batch)
    assert out.tolist() == [_loops_in_python(i, n) for i in range(9)]


@ct.kernel
def _collatz(out, tiles, T: ct.Constant[int]):
    i = ct.bid(0)
    value, steps = i + 1, 0
    path = ct.full((T,), 0, ct.int32)
    while value != 1:
        if value % 2 == 0:
            value = value // 2
        else:
            value = 3 * value + 1
        steps += 1
        path = path + value
    ct.scatter(out, i, steps)
    ct.store(tiles, (i, 0), path.reshape((1, T)))


@pytest.mark.parametrize("batch", BATCHES)
def test_while_loops_of_different_length_carry_tiles(batch):
    out = torch.zeros(30, dtype=torch.int32)
    tiles = torch.zeros(30, 8, dtype=torch.int32)
    launch((30,), _collatz, (out, tiles, 8), batch)
    for i in range(30):
        value, path = i + 1, []
        while value != 1:
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            path.append(value)
        assert out[i] == len(path)
        assert (tiles[i] == sum(path)).all()


@ct.kernel
def _ragged_sum(x, out, T: ct.Constant[int]):
    i = ct.bid(0)
    total = ct.full((T,), 0.0, ct.float32)
    for j in range(i + 1):
        total += ct.load(x, (j,), (T,))
    ct.store(out, (i,), total)


@pytest.mark.parametrize("batch", BATCHES)
def test_for_loops_with_a_trip_count_of_their_own_drop_finished_blocks(batch):
    x = torch.randn(8 * 16)
    out = torch.zeros_like(x)
    launch((8,), _ragged_sum, (x, out, 16), batch)
    want = torch.stack([x.view(8, 16)[: i + 1].sum(0) for i in range(8)])
    torch.testing.assert_close(out.view(8, 16), want)


def _affine(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@ct.kernel
def _scans(x, y, sums, backwards, products, shifts, T: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0), 0), (4, T))
    u = ct.load(y, (ct.bid(0), 0), (4, T))
    ct.store(sums, (ct.bid(0), 0), ct.cumsum(t, axis=1))
    ct.store(backwards, (ct.bid(0), 0), ct.cumsum(t, axis=0, reverse=True))
    a, b = ct.scan((t, u), 1, _affine, (1.0, 0.0))
    ct.store(products, (ct.bid(0), 0), a)
    ct.store(shifts, (ct.bid(0), 0), b)


@pytest.mark.parametrize("batch", [None, 1])
def test_scans_run_along_any_axis_in_both_directions_and_need_not_commute(batch):
    x, y = torch.randn(8, 16, dtype=torch.float64), torch.randn(8, 16, dtype=torch.float64)
    outs = [torch.empty_like(x) for _ in range(4)]
    launch((2,), _scans, (x, y, *outs, 16), batch)
    torch.testing.assert_close(outs[0], x.cumsum(1))
    torch.testing.assert_close(outs[1].view(2, 4, 16), x.view(2, 4, 16).flip(1).cumsum(1).flip(1))
    a, b = torch.ones(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    for k in range(16):  # b = b * x + y, step by step
        a, b = a * x[:, k], b * x[:, k] + y[:, k]
        torch.testing.assert_close(outs[2][:, k], a)
        torch.testing.assert_close(outs[3][:, k], b)


def _absolute_larger(a, b):
    return ct.where(abs(a) > abs(b), a, b)


@ct.kernel
def _reductions(x, tops, places, lows, custom, alls, T: ct.Constant[int]):
    i = ct.bid(0)
    t = ct.load(x, (i, 0), (4, T))
    ct.store(tops, (i,), ct.max(t, axis=1))
    ct.store(places, (i,), ct.argmax(t, axis=1))
    ct.store(lows, (i, 0), ct.argmin(t, axis=0).reshape((1, T)))
    ct.store(custom, (i,), ct.reduce(t, 1, _absolute_larger, 0.0))
    ct.scatter(alls, i, ct.prod(ct.sum(t, axis=1)))


@pytest.mark.parametrize("batch", [None, 1])
def test_reductions_with_ties_and_custom_functions(batch):
    x = torch.randint(-9, 9, (12, 8)).float()
    tops, places = torch.empty(12), torch.empty(12, dtype=torch.int32)
    lows, custom, alls = torch.empty(3, 8, dtype=torch.int32), torch.empty(12), torch.empty(3)
    launch((3,), _reductions, (x, tops, places, lows, custom, alls, 8), batch)
    assert torch.equal(tops, x.amax(1))
    assert places.tolist() == np.argmax(x.numpy(), 1).tolist()  # the first of equal ones
    assert lows.tolist() == np.argmin(x.numpy().reshape(3, 4, 8), 1).tolist()
    assert torch.equal(custom.abs(), x.abs().amax(1))
    torch.testing.assert_close(alls, x.view(3, 4, 8).sum(2).prod(1))


@ct.kernel
def _maxima(x, out, T: ct.Constant[int]):
    ct.store(out, (0,), ct.max(ct.load(x, (0, 0), (2, T)), axis=1))


def test_a_maximum_ignores_nan_where_other_elements_are_numbers():
    x = torch.tensor([[1.0, math.nan, 3.0, 2.0], [math.nan] * 4])
    out = torch.zeros(2)
    launch((1,), _maxima, (x, out, 4))
    assert out[0] == 3.0
    assert out[1].isnan()


@ct.kernel
def _tiles(x, catted, cut, turned, T: ct.Constant[int]):
    i = ct.bid(0)
    t = ct.load(x, (i, 0), (T, T))
    both = ct.cat((t, t + 1), 1)
    ct.store(catted, (i, 0), both)
    ct.store(cut, (i, 0), ct.extract(both, (1, i % 4), (T // 2, T // 2)))
    ct.store(turned, (i, 0), ct.permute(t, (1, 0)))


@pytest.mark.parametrize("batch", [None, 1])
def test_tiles_are_joined_cut_and_turned(batch):
    x = torch.randn(12, 4)
    catted, cut, turned = torch.zeros(12, 8), torch.zeros(6, 2), torch.zeros(12, 4)
    launch((3,), _tiles, (x, catted, cut, turned, 4), batch)
    for i in range(3):
        t = x[4 * i : 4 * i + 4]
        both = torch.cat((t, t + 1), 1)
        assert torch.equal(catted[4 * i : 4 * i + 4], both)
        assert torch.equal(cut[2 * i : 2 * i + 2], both[2:, 2 * (i % 4) : 2 * (i % 4) + 2])
        assert torch.equal(turned[4 * i : 4 * i + 4], t.T)


@ct.kernel
def _prints(x, n):
    i = ct.bid(0)
    if i != 1:
        ct.printf("%d: %5.2f %d%%\n", i, ct.load(x, (0, 0), (2, 2)), n)
    print(f"done {i}")


@pytest.mark.parametrize("batch", [None, 1])
def test_printing_formats_tiles_per_block(batch):
    x = torch.tensor([[1.0, -2.5], [3.25, 100.0]])
    _, text = launch((3,), _prints, (x, 7), batch)
    tile = "[[ 1.00, -2.50], [ 3.25, 100.00]]"
    assert sorted(text.splitlines()) == sorted([f"{i}: {tile} 7%" for i in (0, 2)] + [f"done {i}" for i in range(3)])


@ct.kernel
def _asserts(x, n):
    ct.assert_(ct.bid(0) < n, "block too far")  # noqa: PT009


def test_failed_assertions_are_recorded_with_block_and_line():
    report, _ = launch((4,), _asserts, (torch.zeros(1), 2))
    (failure,) = report.asserts
    assert (failure.message, failure.block) == ("block too far", (2, 0, 0))
    assert failure.location is not None
    assert failure.location.file == __file__


@ct.kernel
def _lock(lock, value):
    i = ct.bid(0)
    while ct.atomic_cas(lock, 0, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) == 1:
        pass
    ct.scatter(value, 0, ct.gather(value, 0) * 3 + i)
    ct.atomic_xchg(lock, 0, 0, memory_order=ct.MemoryOrder.RELEASE)


@pytest.mark.parametrize("batch", [None, 8])
def test_a_spin_lock_runs_block_after_block_whatever_batch_is_asked_for(batch):
    lock, value = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int64)
    report, _ = launch((8,), _lock, (lock, value), batch)
    want = 1
    for i in range(8):
        want = want * 3 + i
    assert value.item() == want
    assert report.batch == 1


@ct.kernel
def _waits_for_ever(flag, out):
    while ct.atomic_cas(flag, 0, 5, 6) != 5:
        pass
    ct.scatter(out, 0, 1)


def test_a_kernel_that_never_ends_ends_as_a_step_limit_with_the_loops_line():
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    memory = Memory()
    program = Kernel.of(
        to_bytecode(_waits_for_ever, pass_arguments(_waits_for_ever, (flag, out), memory).parameters)
    ).program
    arguments = [Array("flag", "i32", 0, (1,), (1,)), Array("out", "i32", 0, (1,), (1,))]
    buffers = {"flag": flag, "out": out}
    report = run(program, (1, 1, 1), arguments, buffers=buffers, max_iterations=1000)
    assert report.limit is not None
    assert report.limit.iterations == 1001
    assert report.limit.location is not None
    assert report.limit.location.file == __file__
    assert out.item() == 0
    report = run(program, (1, 1, 1), arguments, buffers=buffers, deadline=time.monotonic() + 0.05)
    assert report.limit is not None
    assert "time" in report.limit.message
    with pytest.raises(EmulationError, match="stopped"):
        launch((1,), _waits_for_ever, (flag, out), deadline=time.monotonic())


def test_the_deadline_holds_between_batches_of_a_kernel_without_loops():
    out = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(EmulationError, match="time"):
        launch((4, 4, 4), _identify, (out, 4, 4), batch=1, deadline=time.monotonic() - 1)


def test_a_program_runs_from_bytecode_with_buffers_by_name():
    x, out = torch.arange(28, dtype=torch.int32), torch.zeros(28, dtype=torch.int32)
    bytecode = to_bytecode(_branches, pass_arguments(_branches, (x, out, 4), Memory()).parameters)
    program = Kernel.of(bytecode).program
    arguments = [Array("x", "i32", 0, (28,), (1,)), Array("y", "i32", 0, (28,), (1,))]
    buffers = {"x": x, "y": torch.zeros(28, dtype=torch.int32)}
    report = run(program, (7, 1, 1), arguments, buffers=buffers)
    launch((7,), _branches, (x, out, 4))
    assert torch.equal(buffers["y"], out)
    assert (report.blocks, report.limit) == (7, None)


def test_arguments_that_do_not_fit_the_parameters_are_refused():
    x = torch.arange(28, dtype=torch.int32)
    program = Kernel.of(
        to_bytecode(_branches, pass_arguments(_branches, (x, x.clone(), 4), Memory()).parameters)
    ).program
    with pytest.raises(ValueError, match="6 parameters"):
        run(program, (1, 1, 1), [Scalar("i32", 1)])
    whole = Array("x", "i32", 0, (28,), (1,))
    with pytest.raises(ValueError, match="does not fit"):
        run(program, (1, 1, 1), [whole, Array("x", "i32", 0, (2**40,), (1,))], buffers={"x": x})


def test_operations_the_emulator_lacks_are_named_when_the_program_is_built():
    text = "entry @k(%arg0: tile<i32>) {\n  %0 = ptr_to_int %arg0 : tile<i32> -> tile<i32>\n  return\n}\n"
    assert build(parse(text))
    with pytest.raises(Unsupported, match="alloca"):
        build(parse(text.replace("ptr_to_int", "alloca")))
