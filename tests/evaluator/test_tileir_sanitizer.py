"""The sanitizer: every kind of finding provoked by a kernel that has it, absent in the clean kernel beside it."""

import functools

import cuda.tile as ct
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import emulator
from evaluator.kernel import Kernel
from evaluator.tileir import Array, Sanitizer, Scalar, run
from evaluator.tileir.arguments import pass_arguments, to_bytecode
from evaluator.tileir.clocks import Clocks
from evaluator.tileir.memory import Memory
from evaluator.tileir.promises import PassedArray, shared_byte

BATCHES = [None, 1, 3]


def check(grid, kernel, args, batch=None, **options):
    """The launch's findings."""
    return emulator.launch(grid, kernel, args, batch=batch, sanitizer=Sanitizer(), **options).findings


def kinds(findings):
    return {f.kind for f in findings}


# -------------------------------------------------------------------------------------------------- out of bounds


@ct.kernel
def _shifted_read(x, y, shift, T: ct.Constant[int]):
    i = ct.bid(0)
    where = i * T + ct.arange(T, dtype=ct.int32)
    ct.store(y, (i,), ct.gather(x, where + shift, check_bounds=False))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shift", [1, -1, 10**8])
def test_reads_outside_the_buffer_are_found_with_block_line_and_element(shift, batch):
    x, y = torch.zeros(32), torch.zeros(32)
    (found,) = check((4,), _shifted_read, (x, y, shift, 8), batch)
    assert (found.kind, found.op) == ("out-of-bounds", "load_ptr_tko")
    assert found.file == __file__
    assert found.line == _shifted_read._pyfunc.__code__.co_firstlineno + 4
    first_bad = {1: (3, 32), -1: (0, -1), 10**8: (0, 10**8)}[shift]
    assert (found.block, found.element) == ((first_bad[0], 0, 0), first_bad[1])
    assert "read" in found.message
    assert "'x'" in found.message


@pytest.mark.parametrize("batch", BATCHES)
def test_reads_inside_the_buffer_are_clean(batch):
    assert check((4,), _shifted_read, (torch.zeros(32), torch.zeros(32), 0, 8), batch) == ()


def test_a_read_of_a_neighbouring_views_elements_in_the_same_buffer_is_inside():
    buffer = torch.zeros(64)
    assert check((4,), _shifted_read, (buffer[:32], torch.zeros(32), 1, 8)) == ()


@ct.kernel
def _shifted_write(y, shift, T: ct.Constant[int]):
    where = ct.bid(0) * T + ct.arange(T, dtype=ct.int32)
    ct.scatter(y, where + shift, ct.full((T,), 1.0, ct.float32), check_bounds=False)
    ct.atomic_add(y, where + shift, ct.full((T,), 1.0, ct.float32), check_bounds=False)


def test_writes_and_atomics_outside_the_buffer_are_found_and_not_done():
    base = torch.zeros(40)
    y = base[:32].clone()
    findings = check((4,), _shifted_write, (y, 4, 8))
    assert [f.op for f in findings if f.kind == "out-of-bounds"] == ["store_ptr_tko", "atomic_rmw_tko"]
    assert y[:4].eq(0).all()
    assert y[4:].eq(2).all()


def test_an_array_argument_that_reaches_beyond_its_buffer_is_found():
    @ct.kernel
    def kernel(x, y):
        ct.store(y, (0,), ct.load(x, (0,), (8,)))

    x, y = torch.zeros(8), torch.zeros(8)
    program = Kernel.of(to_bytecode(kernel, pass_arguments(kernel, (x, y), Memory()).parameters)).program

    def found(offset, size):
        arrays = [Array("x", "f32", offset, (size,), (1,)), Array("y", "f32", 0, (8,), (1,))]
        return run(program, (1, 1, 1), arrays, buffers={"x": x, "y": y}, sanitizer=Sanitizer()).findings

    assert found(0, 8) == ()
    for offset, size in ((0, 9), (4, 8), (-1, 8)):
        findings = found(offset, size)
        assert "view-extent" in kinds(findings)
        assert ("out-of-bounds" in kinds(findings)) == (offset != 0)  # the ninth element is not in the tile


# ---------------------------------------------------------------------------------------------------------- index


@functools.cache
def _copy(bounds):
    @ct.kernel
    def kernel(x, y, T: ct.Constant[int]):
        ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (T,), check_bounds=bounds))

    return kernel


@pytest.mark.parametrize("batch", BATCHES)
def test_a_tile_entirely_outside_its_array_is_found_on_load_and_on_store(batch):
    x, y = torch.zeros(30), torch.zeros(30)
    findings = check((5,), _copy(True), (x, y, 8), batch)
    assert [(f.kind, f.op, f.block) for f in findings] == [
        ("index", "load_view_tko", (4, 0, 0)),
        ("index", "store_view_tko", (4, 0, 0)),
    ]
    assert check((4,), _copy(True), (x, y, 8), batch) == ()


def test_a_clipped_tile_without_bounds_check_breaks_a_promise():
    findings = check((4,), _copy(False), (torch.zeros(30), torch.zeros(32), 8))
    assert [(f.kind, f.block) for f in findings] == [("index", (3, 0, 0))]
    assert "check_bounds" in findings[0].message
    assert check((4,), _copy(False), (torch.zeros(32), torch.zeros(32), 8)) == ()


# ---------------------------------------------------------------------------------------------------------- races


@ct.kernel
def _modulo_store(x, y, n, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i % n,), ct.load(x, (i,), (T,)))


@ct.kernel
def _modulo_scatter(x, y, n, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.scatter(y, (i % n) * T + ct.arange(T, dtype=ct.int32), ct.load(x, (i,), (T,)))


@ct.kernel
def _modulo_atomic(x, y, n, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.atomic_add(y, (i % n) * T + ct.arange(T, dtype=ct.int32), ct.load(x, (i,), (T,)))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kernel", [_modulo_store, _modulo_scatter])
def test_two_blocks_that_write_one_element_race_even_with_equal_values(kernel, batch):
    x, y = torch.ones(32), torch.ones(32)
    (found,) = check((4,), kernel, (x, y, 3, 8), batch)
    assert (found.kind, found.block, found.buffer) == ("race", (3, 0, 0), "y")
    assert check((4,), kernel, (x, y, 4, 8), batch) == ()


@pytest.mark.parametrize("batch", BATCHES)
def test_all_blocks_writing_one_scalar_race(batch):
    @ct.kernel
    def kernel(y):
        ct.scatter(y, 0, 1.0)

    assert kinds(check((4,), kernel, (torch.zeros(1),), batch)) == {"race"}
    assert check((1,), kernel, (torch.zeros(1),), batch) == ()


@ct.kernel
def _copy_rows(x, y, T: ct.Constant[int]):
    at = (ct.bid(0), 0)
    ct.store(y, at, ct.load(x, at, (1, T)))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("view", "rows"),
    [
        (lambda y: y.as_strided((4, 8), (8, 1)), set()),
        (lambda y: y.as_strided((4, 8), (1, 4)), set()),  # interleaved, but each element once
        (lambda y: y.as_strided((4, 8), (8, 0)), {"written-twice"}),
        (lambda y: y.as_strided((4, 8), (0, 1)), {"race"}),  # every block the same row
        (lambda y: y.as_strided((4, 8), (4, 1)), {"race"}),  # rows that overlap
    ],
)
def test_a_store_through_a_view_that_repeats_elements_is_found(view, rows, batch):
    x, y = torch.arange(32.0).reshape(4, 8), torch.zeros(32)
    assert kinds(check((4,), _copy_rows, (x, view(y), 8), batch)) == rows
    if not rows:
        assert torch.equal(view(y), x)


@pytest.mark.parametrize("batch", BATCHES)
def test_atomics_do_not_race_with_each_other(batch):
    x, y = torch.ones(32), torch.zeros(32)
    assert check((4,), _modulo_atomic, (x, y, 2, 8), batch) == ()
    assert y[:16].eq(2).all()


@ct.kernel
def _neighbour(x, y, shift, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i,), ct.load(x, (i,), (T,)))
    ct.store(x, (i,), ct.load(y, ((i + shift) % ct.num_blocks(0),), (T,)))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shift", [1, 3])
def test_reading_what_another_block_writes_is_a_race(shift, batch):
    findings = check((4,), _neighbour, (torch.randn(32), torch.zeros(32), shift, 8), batch)
    assert kinds(findings) == {"race"}
    assert all(f.buffer == "y" for f in findings)
    assert check((4,), _neighbour, (torch.randn(32), torch.zeros(32), 0, 8), batch) == ()


@pytest.mark.parametrize("batch", BATCHES)
def test_a_plain_read_of_an_element_others_update_atomically_is_a_race(batch):
    @ct.kernel
    def kernel(y, out):
        i = ct.bid(0)
        ct.atomic_add(y, 0, 1.0, memory_order=ct.MemoryOrder.RELAXED)
        ct.scatter(out, i, ct.gather(y, 0))

    assert kinds(check((4,), kernel, (torch.zeros(1), torch.zeros(4)), batch)) == {"race"}


def test_views_of_one_buffer_under_two_dtypes_race_too():
    @ct.kernel
    def kernel(a, b):
        if ct.bid(0) == 0:
            ct.scatter(a, 0, 1.0)
        else:
            ct.scatter(b, 1, ct.int16(3))

    buffer = torch.zeros(4)
    arguments = (buffer, buffer.view(torch.int16))
    assert "race" in kinds(check((2,), kernel, arguments, 1))
    apart = (buffer[:1], buffer.view(torch.int16)[4:])
    assert check((2,), kernel, apart, 1) == ()


@functools.cache
def _locked(release):
    @ct.kernel
    def kernel(lock, value):
        while ct.atomic_cas(lock, 0, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) == 1:
            pass
        ct.scatter(value, 0, ct.gather(value, 0) + 1.0)
        ct.atomic_xchg(lock, 0, 0, memory_order=release)

    return kernel


def test_a_lock_orders_accesses_and_a_relaxed_unlock_does_not():
    arguments = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    assert check((5,), _locked(ct.MemoryOrder.RELEASE), arguments) == ()
    assert kinds(check((5,), _locked(ct.MemoryOrder.RELAXED), arguments)) == {"race"}


@functools.cache
def _message(order):
    @ct.kernel
    def kernel(data, flag, out, T: ct.Constant[int]):
        i = ct.bid(0)
        if i == 0:
            ct.store(data, (0,), ct.full((T,), 7.0, ct.float32))
            ct.store(flag, (0,), 1, memory_order=order[0], memory_scope=ct.MemoryScope.DEVICE)
        else:
            while ct.load(flag, (0,), (), memory_order=order[1], memory_scope=ct.MemoryScope.DEVICE) == 0:
                pass
            ct.store(out, (i - 1,), ct.load(data, (0,), (T,)))

    return kernel


RELEASE_ACQUIRE = ct.MemoryOrder.RELEASE, ct.MemoryOrder.ACQUIRE


def test_a_released_flag_orders_what_was_written_before_it_and_a_relaxed_one_does_not():
    def arguments():
        return torch.zeros(128), torch.zeros(1, dtype=torch.int32), torch.zeros(256), 128

    given = arguments()
    assert check((3,), _message(RELEASE_ACQUIRE), given) == ()
    assert given[2].eq(7).all()
    findings = check((3,), _message((ct.MemoryOrder.RELAXED, ct.MemoryOrder.RELAXED)), arguments())
    assert [(f.kind, f.buffer) for f in findings] == [("race", "data")]  # the flag itself is accessed atomically


@functools.cache
def _last_block_reduces(order, atomic):
    @ct.kernel
    def kernel(x, partial, counter, out, T: ct.Constant[int]):
        i, n = ct.bid(0), ct.num_blocks(0)
        total = ct.sum(ct.load(x, (i,), (T,)))
        if atomic:
            ct.atomic_add(partial, i % 2, total, memory_order=ct.MemoryOrder.RELAXED)
        else:
            ct.scatter(partial, i, total)
        if ct.atomic_add(counter, 0, 1, memory_order=order) == n - 1:
            ct.scatter(out, 0, ct.sum(ct.load(partial, (0,), (4,))))

    return kernel


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("atomic", [False, True])
def test_the_last_block_may_read_what_all_wrote_if_the_counter_orders(atomic, batch):
    def arguments():
        return torch.ones(32), torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1), 8

    given = arguments()
    assert check((4,), _last_block_reduces(ct.MemoryOrder.ACQ_REL, atomic), given, batch) == ()
    assert given[3].item() == 32
    assert kinds(check((4,), _last_block_reduces(ct.MemoryOrder.RELAXED, atomic), arguments(), batch)) == {"race"}


# ------------------------------------------------------------------------------------------------- operands, asserts


@ct.kernel
def _undefined(x, y, n, T: ct.Constant[int]):
    i = ct.bid(0)
    s = (100 // (i - n)) + (1 << (i + n)) + (100 % (i - n))
    t = ct.load(x, (i,), (T,)).astype(ct.int32)
    ct.store(y, (i,), t + s)


@pytest.mark.parametrize("batch", BATCHES)
def test_scalar_division_by_zero_and_wide_shifts_are_findings(batch):
    x, y = torch.zeros(32), torch.zeros(32, dtype=torch.int32)
    findings = check((4,), _undefined, (x, y, 2, 8), batch)
    assert kinds(findings) == {"divide-by-zero"}
    assert {f.block for f in findings} == {(2, 0, 0)}
    assert kinds(check((4,), _undefined, (x, y, 29, 8), batch)) == {"shift"}
    assert check((4,), _undefined, (x, y, 20, 8), batch) == ()


def test_elements_of_tiles_out_of_range_are_notes_for_they_may_be_thrown_away():
    x, y = torch.zeros(32), torch.zeros(32, dtype=torch.int32)
    x[9] = 3e10
    watcher = Sanitizer()
    report = emulator.launch((4,), _undefined, (x, y, 20, 8), sanitizer=watcher)
    assert report.findings == ()
    assert [(n.kind, n.block) for n in watcher.notes] == [("float-to-int", (1, 0, 0))]


def test_a_loop_whose_step_is_not_positive_is_found():
    @ct.kernel
    def kernel(y, step):
        total = 0
        for k in range(0, 8, step):
            total += k
        ct.scatter(y, 0, total)

    y = torch.zeros(1, dtype=torch.int32)
    assert check((1,), kernel, (y, 3)) == ()
    assert y.item() == 0 + 3 + 6
    assert kinds(check((1,), kernel, (y, 0))) == {"loop-step"}


def test_a_failed_assertion_is_a_finding():
    @ct.kernel
    def kernel(n):
        ct.assert_(ct.bid(0) < n, "too far")  # noqa: PT009

    (found,) = check((4,), kernel, (3,))
    assert (found.kind, found.block) == ("assert", (3, 0, 0))
    assert "too far" in found.message
    assert check((3,), kernel, (3,)) == ()


# ------------------------------------------------------------------------------------------------------- promises


def test_arguments_that_break_what_the_kernel_assumes_are_found():
    x, y = torch.zeros(64, 16), torch.zeros(64, 16)
    kernel = _tiles
    program = Kernel.of(to_bytecode(kernel, pass_arguments(kernel, (x, y), Memory()).parameters)).program

    def findings(tensor, **change):
        values = {"offset": 0, "shape": (64, 16), "strides": (16, 1)} | change
        arrays = [Array("x", "f32", **values), Array("y", "f32", 0, (64, 16), (16, 1))]
        return run(program, (1, 1, 1), arrays, buffers={"x": tensor, "y": y}, sanitizer=Sanitizer()).findings

    assert findings(x) == ()
    big = torch.zeros(4096)
    assert kinds(findings(big, strides=(17, 1))) == {"assumption"}
    assert kinds(findings(big, shape=(63, 16))) == {"assumption"}
    assert kinds(findings(big, offset=1)) == {"assumption"}
    assert "address" in findings(big, offset=1)[0].message


@ct.kernel
def _tiles(x, y):
    ct.store(y, (0, 0), ct.load(x, (0, 0), (16, 16)))


def test_overlapping_arrays_are_found_if_one_is_written_and_elements_are_shared():
    buffer = torch.zeros(64, 32)
    assert kinds(check((1,), _tiles, (buffer[:, :16], buffer[:, 8:24]))) == {"overlap"}
    assert kinds(check((1,), _tiles, (buffer, buffer))) == {"overlap"}
    assert check((1,), _tiles, (buffer[:, :16], buffer[:, 16:])) == ()  # interleaved, nothing shared

    @ct.kernel
    def sums(x, w, y):
        ct.store(y, (0, 0), ct.load(x, (0, 0), (16, 16)) + ct.load(w, (0, 0), (16, 16)))

    assert check((1,), sums, (buffer, buffer, torch.zeros(64, 32))) == ()  # both only read


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_sharing_memory_is_decided_element_by_element(data):
    def array():
        shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
        strides = tuple(data.draw(st.integers(0, 6)) for _ in shape)
        return PassedArray("a", 0, data.draw(st.integers(0, 20)), shape, strides, data.draw(st.sampled_from([1, 2, 4])))

    def touched(a):
        places = {a.address}
        for n, s in zip(a.shape, a.strides, strict=True):
            places = {p + k * s * a.itemsize for p in places for k in range(n)}
        return {p + k for p in places for k in range(a.itemsize)}

    one, other = array(), array()
    assert shared_byte(one, other) == min(touched(one) & touched(other), default=None)


# ------------------------------------------------------------------------------------------------ several launches


def test_written_elements_are_known_after_the_launches():
    x, y = torch.ones(32), torch.zeros(40)
    watcher = Sanitizer()
    emulator.launch((2,), _modulo_store, (x, y, 4, 8), sanitizer=watcher)
    assert watcher.written(y).nonzero().flatten().tolist() == list(range(16))
    emulator.launch((4,), _modulo_atomic, (x, y[20:36], 1, 8), sanitizer=watcher)
    want = [k < 16 or 20 <= k < 28 for k in range(40)]
    assert watcher.written(y).tolist() == want
    assert watcher.written(y[::3]).tolist() == want[::3]
    assert not watcher.written(x).any()
    assert not watcher.written(torch.zeros(3)).any()


def test_launches_are_counted_and_one_launch_does_not_race_with_the_next():
    x, y = torch.ones(32), torch.zeros(32)
    watcher = Sanitizer()
    for number in range(3):
        report = emulator.launch((4,), _modulo_store, (x, y, 4 - number, 8), sanitizer=watcher)
        assert kinds(report.findings) == ({"race"} if number else set())
        assert all(f.launch == number for f in report.findings)
    assert len(watcher.findings) == 2


def test_one_finding_is_kept_per_operation_however_many_blocks_have_it():
    x, y = torch.zeros(800), torch.zeros(8)
    assert len(check((100,), _modulo_store, (x, y, 1, 8), 1)) == 1


# --------------------------------------------------------------------------------------------------------- clocks


def test_clocks_pass_on_what_was_known_at_the_release_and_no_more():
    clocks = Clocks(3)
    import numpy as np

    def ordered(who, other, epoch):
        return bool(clocks.ordered(np.array([who + 1]), np.array([other + 1]), np.array([epoch]))[0])

    before = int(clocks.now(np.array([1]))[0])
    clocks.synchronise(0, "flag", "release")
    after = int(clocks.now(np.array([1]))[0])
    assert not ordered(1, 0, before)
    clocks.synchronise(1, "other", "acquire")
    assert not ordered(1, 0, before)
    clocks.synchronise(1, "flag", "acquire")
    assert ordered(1, 0, before)
    assert not ordered(1, 0, after)
    clocks.synchronise(2, "flag", "release")  # a release alone learns nothing
    assert not ordered(2, 0, before)
    clocks.synchronise(1, "baton", "acq_rel")
    clocks.synchronise(2, "baton", "acquire")
    assert ordered(2, 0, before)  # through block 1


def test_an_element_keeps_the_accesses_of_several_blocks_until_one_is_ordered_after_them():
    import numpy as np

    clocks = Clocks(4)

    def access(mark, epoch, block):
        marks, epochs = clocks.joined(*(np.array([value], dtype=np.int32) for value in (mark, epoch, block + 1)))
        return int(marks[0]), int(epochs[0])

    def ordered(who, mark, epoch):
        return bool(clocks.ordered(*(np.array([value]) for value in (who + 1, mark, epoch)))[0])

    both = access(*access(0, 0, 0), 1)
    assert both[0] < -1
    clocks.synchronise(0, "flag", "release")
    clocks.synchronise(2, "flag", "acquire")
    assert not ordered(2, *both)  # block 1 has said nothing
    clocks.synchronise(1, "flag", "release")
    clocks.synchronise(2, "flag", "acquire")
    assert ordered(2, *both)
    assert not ordered(3, *both)
    assert access(*both, 2) == (3, 1)  # who comes after block 2 comes after them
    together = clocks.several(np.array([1, 3]))
    assert not ordered(2, together, 0)
    assert clocks.several(np.array([3, 1])) == together


@pytest.mark.parametrize("lanes", [1, 4, None])
def test_what_several_blocks_of_one_batch_add_to_is_theirs_together(lanes):
    """One of them reads the sum: the others' additions are not ordered before."""

    @ct.kernel
    def kernel(total, y):
        i = ct.bid(0)
        one = ct.full((128,), 1.0, ct.float32)
        ct.atomic_add(total, ct.arange(128, dtype=ct.int32), one, memory_order=ct.MemoryOrder.RELAXED)
        if i == 3:
            ct.store(y, (0,), ct.load(total, (0,), (128,)))

    findings = check((4,), kernel, (torch.zeros(128), torch.zeros(128)), lanes)
    assert kinds(findings) == {"race"}


def test_scalars_are_passed_as_they_are():
    y = torch.zeros(4, dtype=torch.int32)

    @ct.kernel
    def kernel(y, a, b: float, c: bool):
        if c:
            ct.scatter(y, 0, a + ct.int32(b * 2))

    program = Kernel.of(to_bytecode(kernel, pass_arguments(kernel, (y, 5, 1.5, True), Memory()).parameters)).program
    arguments = [Array("y", "i32", 0, (4,), (1,)), Scalar("i32", 5), Scalar("f32", 1.5), Scalar("bool", True)]
    assert run(program, (1, 1, 1), arguments, buffers={"y": y}, sanitizer=Sanitizer()).findings == ()
    assert y[0] == 8
