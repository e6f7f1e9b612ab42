"""Memory of the emulator: views, clipping, padding, gathers and scatters, atomics; against plain torch."""

import functools
import itertools

import cuda.tile as ct
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import emulator
from evaluator.tileir import InvalidTileIR, Sanitizer
from evaluator.tileir.memory import Memory
from evaluator.tileir.ops_atomic import MODES, apply, rounds
from evaluator.tileir.windows import OUTSIDE, decompose, is_whole, pieces, to_lanes, to_rows

BATCHES = [None, 1, 5]


def launch(grid, kernel, args, batch=None, **options):
    return emulator.launch(grid, kernel, args, batch=batch, **options)


# -------------------------------------------------------------------------------------------------------- windows


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_set_of_tiles_is_loaded_and_stored_as_by_plain_slicing(data):
    rank = data.draw(st.integers(1, 3))
    tile = [data.draw(st.sampled_from([1, 2, 4])) for _ in range(rank)]
    extents = [data.draw(st.integers(1, 9)) for _ in range(rank)]
    lanes = data.draw(st.integers(1, 12))
    candidates = [[*range(0, e + 2 * t, t), OUTSIDE] for e, t in zip(extents, tile, strict=True)]
    starts = []
    for options in candidates:
        if data.draw(st.booleans()):
            starts.append(data.draw(st.sampled_from(options)))
        else:
            starts.append(np.array([data.draw(st.sampled_from(options)) for _ in range(lanes)]))
    array = torch.arange(1, int(np.prod(extents)) + 1).reshape(extents)
    lattices = decompose(starts, lanes)
    assert [lattice.lanes.start for lattice in lattices] == [0, *(lattice.lanes.stop for lattice in lattices)][:-1]
    assert lattices[-1].lanes.stop == lanes
    parts, target = [], torch.zeros_like(array)
    order = []
    for lattice in lattices:
        rows = torch.full((*lattice.counts, *tile), -1)
        for piece in pieces(lattice, tile, extents):
            window = piece.window(array.stride(), lattice.axes)
            rows[piece.where] = torch.as_strided(array, *window)
            back = to_rows(lattice, to_lanes(lattice, rows, tile), tile)
            torch.as_strided(target, *window).copy_(back[piece.where])
            order.append(window)
        assert is_whole(lattice, tile, extents) == bool((rows != -1).all())
        parts.append(to_lanes(lattice, rows, tile).expand(lattice.lanes.stop - lattice.lanes.start, *tile))
    loaded = torch.cat(parts)
    for lane in range(lanes):
        first = [int(s if isinstance(s, int) else s[lane]) for s in starts]
        want = torch.full(tile, -1)
        valid = [max(0, min(t, e - f)) for t, e, f in zip(tile, extents, first, strict=True)]
        inside = array[tuple(slice(f, f + v) for f, v in zip(first, valid, strict=True))]
        if all(valid):
            want[tuple(slice(0, v) for v in valid)] = inside
        assert torch.equal(loaded[lane], want)
        assert torch.equal(target[tuple(slice(f, f + v) for f, v in zip(first, valid, strict=True))], inside)


def test_a_grid_of_tiles_is_one_copy():
    i, j = (a.reshape(-1) for a in np.meshgrid(np.arange(4), np.arange(6), indexing="xy"))
    (lattice,) = decompose([i * 8, j * 4], 24)
    assert lattice.inverse is None  # x runs fastest: dimension 1 is the slow axis
    assert len(list(pieces(lattice, [8, 4], [32, 24]))) == 1
    (lattice,) = decompose([i * 8, 0], 24)
    assert lattice.rows == 4  # a row of tiles is loaded once for all columns


def test_a_batch_that_begins_and_ends_within_rows_is_three_products():
    i, j = (a.reshape(-1)[5:-3] for a in np.meshgrid(np.arange(12), np.arange(7), indexing="xy"))
    lattices = decompose([i * 8, j * 4], len(i))
    assert [lattice.counts for lattice in lattices] == [(7,), (5, 12), (9,)]
    assert [(lattice.lanes.start, lattice.lanes.stop) for lattice in lattices] == [(0, 7), (7, 67), (67, 76)]


# ---------------------------------------------------------------------------------------------------------- views


@ct.kernel
def _copy(x, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, (i, j), ct.load(x, (i, j), (TM, TN)))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int64, torch.bool,
     torch.float8_e4m3fn, torch.float8_e5m2],
)  # fmt: skip
def test_copies_are_exact_for_every_dtype_at_ragged_sizes(dtype, batch):
    x = torch.randint(0, 255, (13, 21), dtype=torch.uint8)
    x = (x > 100) if dtype == torch.bool else x.view(dtype) if dtype.itemsize == 1 else x.to(dtype)
    y = torch.zeros(13, 21, dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else torch.zeros(13, 21, dtype=dtype)
    launch((2, 3), _copy, (x, y, 8, 8), batch)
    assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))


@pytest.mark.parametrize("batch", BATCHES)
def test_strided_transposed_and_offset_arrays_are_read_and_written_in_place(batch):
    base, out = torch.randn(40, 50), torch.zeros(60, 30)
    x, y = base[3:35:2, 1:50:3].T, out[2:52:3, :16]
    assert x.shape == y.shape == (17, 16)
    untouched = out.clone()
    launch((5, 4), _copy, (x, y, 4, 4), batch)
    untouched[2:52:3, :16] = x
    assert torch.equal(out, untouched)


@ct.kernel
def _unpack_f4(x, wide, copy, T: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i, 0), (2, T))
    ct.store(wide, (i, 0), tile.astype(ct.float32))
    ct.store(copy, (i, 0), tile)


@pytest.mark.parametrize("batch", [None, 1])
def test_packed_4_bit_floats_are_two_a_byte_the_first_in_the_low_half(batch):
    raw = torch.randint(0, 256, (5, 4), dtype=torch.uint8)
    wide, copy = torch.zeros(5, 8), torch.zeros(5, 4, dtype=torch.uint8)
    packed = torch.float4_e2m1fn_x2
    watcher = Sanitizer()
    report = launch((3,), _unpack_f4, (raw.view(packed), wide, copy.view(packed), 8), batch, sanitizer=watcher)
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # OCP Microscaling Formats 1.0, FP4 (E2M1)
    codes = torch.stack((raw & 15, raw >> 4), -1).reshape(5, 8).long()
    assert torch.equal(wide, torch.where(codes >= 8, -values[codes % 8], values[codes % 8]))
    assert torch.equal(copy, raw)
    assert report.findings == ()
    assert watcher.written(copy).all()


@functools.cache
def _padded(mode):
    @ct.kernel
    def kernel(x, y, T: ct.Constant[int]):
        ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (T,), padding_mode=mode))

    return kernel


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("mode", "value"),
    [
        (ct.PaddingMode.ZERO, 0.0),
        (ct.PaddingMode.NEG_ZERO, -0.0),
        (ct.PaddingMode.POS_INF, float("inf")),
        (ct.PaddingMode.NEG_INF, float("-inf")),
        (ct.PaddingMode.NAN, float("nan")),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_values_fill_what_lies_outside(mode, value, dtype, batch):
    x, y = torch.randn(11).to(dtype), torch.full((16,), 7.0).to(dtype)
    launch((2,), _padded(mode), (x, y, 8), batch)
    want = torch.cat((x, torch.full((5,), value).to(dtype)))
    assert torch.equal(y.view(torch.uint8), want.view(torch.uint8)) or (value != value and y[11:].isnan().all())
    assert torch.equal(y[:11], x)


EIGHT_BITS = {  # found in tileiras' machine code
    torch.float8_e4m3fn: {"ZERO": 0x00, "NEG_ZERO": 0x80, "NAN": 0x7F},
    torch.float8_e5m2: {"ZERO": 0x00, "NEG_ZERO": 0x80, "NAN": 0x7E, "POS_INF": 0x7C, "NEG_INF": 0xFC},
    torch.float8_e8m0fnu: {"ZERO": 0x00, "NAN": 0xFF},
}


@pytest.mark.parametrize("mode", ["ZERO", "NEG_ZERO", "NAN", "POS_INF", "NEG_INF"])
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_eight_bit_formats_are_padded_with_what_they_have(dtype, mode):
    x = torch.arange(1, 12, dtype=torch.uint8).view(dtype)
    y = torch.full((16,), 7, dtype=torch.uint8).view(dtype)
    code = EIGHT_BITS[dtype].get(mode)
    kernel = _padded(ct.PaddingMode[mode])
    if code is None:
        with pytest.raises(InvalidTileIR, match=f"has no {mode.lower()} to pad with"):
            launch((2,), kernel, (x, y, 8))
        return
    launch((2,), kernel, (x, y, 8))
    assert y.view(torch.uint8).tolist() == [*range(1, 12), *[code] * 5]


@pytest.mark.parametrize("fill", [0.0, 3.5, -1e30])
def test_undetermined_padding_is_what_the_caller_says(fill):
    x, y = torch.randn(11), torch.zeros(16)
    launch((2,), _padded(ct.PaddingMode.UNDETERMINED), (x, y, 8), padding_fill=fill)
    assert torch.equal(y, torch.cat((x, torch.full((5,), fill))))


@ct.kernel
def _order(x, y, ORDER: ct.Constant[tuple], T: ct.Constant[tuple]):
    i, j, k = ct.bid(0), ct.bid(1), ct.bid(2)
    ct.store(y, (i, j, k), ct.load(x, (i, j, k), T, order=ORDER))


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_view_with_an_order_is_the_permuted_array(order, batch):
    x = torch.randn(5, 6, 7)
    want = x.permute(order)
    y = torch.zeros(want.shape)
    launch((3, 3, 3), _order, (x, y, order, (4, 2, 4)), batch)
    i, j, k = (min(3 * t, n) for t, n in zip((4, 2, 4), want.shape, strict=True))
    assert torch.equal(y[:i, :j, :k], want[:i, :j, :k])


@ct.kernel
def _overlapping(x, y, T: ct.Constant[int], STEP: ct.Constant[int]):
    i = ct.bid(0)
    view = x.tiled_view((T,), traversal_steps=(STEP,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (i, 0), view.load((i,)).reshape((1, T)))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("step", [1, 2, 3, 6])
def test_strided_views_overlap_or_leave_gaps(step, batch):
    x = torch.randn(13)
    blocks = -(-13 // step)
    y = torch.full((blocks, 4), 9.0)
    launch((blocks,), _overlapping, (x, y, 4, step), batch)
    padded = torch.cat((x, torch.zeros(8)))
    assert torch.equal(y, torch.stack([padded[step * i : step * i + 4] for i in range(blocks)]))


@ct.kernel
def _slices(x, offsets, y, T: ct.Constant[int]):
    i = ct.bid(0)
    start, stop = ct.gather(offsets, i), ct.gather(offsets, i + 1)
    part = x.slice(0, start, stop)
    total = ct.full((T,), 0.0, ct.float32)
    for k in range(ct.cdiv(stop - start, T)):
        total += ct.load(part, (k, 0), (T, 1), padding_mode=ct.PaddingMode.ZERO).reshape((T,))
    ct.scatter(y, i, ct.sum(total))


@pytest.mark.parametrize("batch", BATCHES)
def test_slices_of_different_length_per_block_clip_at_their_own_end(batch):
    x = torch.randn(50, 1)
    offsets = torch.tensor([0, 3, 3, 20, 37, 50], dtype=torch.int32)
    y = torch.full((5,), 9.0)
    launch((5,), _slices, (x, offsets, y, 4), batch)
    want = [x[a:b].sum().item() for a, b in itertools.pairwise(offsets.tolist())]
    assert y.tolist() == pytest.approx(want, abs=1e-5)


# ------------------------------------------------------------------------------------------------ gathers, scatters


@ct.kernel
def _pick(x, rows, y, T: ct.Constant[int]):
    i = ct.bid(0)
    where = ct.load(rows, (i,), (T,))
    columns = ct.arange(T, dtype=ct.int32)
    ct.store(y, (i, 0), ct.gather(x, (where[:, None], columns[None, :]), padding_value=-5))


@pytest.mark.parametrize("batch", BATCHES)
def test_gathers_mask_indices_outside_negative_ones_included(batch):
    x = torch.arange(40, dtype=torch.int32).reshape(10, 4)
    rows = torch.tensor([0, 9, 10, -1, 5, 5, 2**30, 3, 1, -(2**31), 9, 8], dtype=torch.int32)
    y = torch.zeros(12, 4, dtype=torch.int32)
    launch((3,), _pick, (x, rows, y, 4), batch)
    want = torch.stack([x[r] if 0 <= r < 10 else torch.full((4,), -5, dtype=torch.int32) for r in rows.tolist()])
    assert torch.equal(y, want)


@ct.kernel
def _put(x, rows, y, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.scatter(y, ct.load(rows, (i,), (T,)), ct.load(x, (i,), (T,)), mask=ct.load(x, (i,), (T,)) > 0)


@pytest.mark.parametrize("batch", BATCHES)
def test_scatters_write_where_the_mask_and_the_bounds_allow(batch):
    x = torch.tensor([1.0, -2.0, 3.0, 4.0, 5.0, -6.0, 7.0, 8.0])
    rows = torch.tensor([7, 6, 5, 4, -1, 2, 1, 100], dtype=torch.int32)
    y = torch.zeros(8)
    launch((2,), _put, (x, rows, y, 4), batch)
    assert y.tolist() == [0.0, 7.0, 0.0, 0.0, 4.0, 3.0, 0.0, 1.0]


@ct.kernel
def _pick_array(xs, y, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i, 0), ct.load(xs[i % len(xs)], (i // len(xs),), (T,)).reshape((1, T)))


@pytest.mark.parametrize("batch", BATCHES)
def test_arrays_out_of_a_list_are_read_from_their_own_buffers(batch):
    xs = [torch.randn(8) for _ in range(3)]
    y = torch.zeros(6, 4)
    launch((6,), _pick_array, (xs, y, 4), batch)
    assert torch.equal(y, torch.stack([xs[i % 3][4 * (i // 3) : 4 * (i // 3) + 4] for i in range(6)]))


# -------------------------------------------------------------------------------------------------------- atomics


@given(st.lists(st.integers(0, 5), max_size=30))
@settings(max_examples=50, deadline=None)
def test_rounds_hold_every_position_once_and_no_address_twice_in_order(indices):
    index = torch.tensor(indices, dtype=torch.int64)
    groups = rounds(index)
    assert sorted(torch.cat(groups).tolist()) == list(range(len(indices)))
    for group in groups:
        assert len(set(index[group].tolist())) == len(group)
    for value in set(indices):
        seen = [p for group in groups for p in group.tolist() if indices[p] == value]
        assert seen == sorted(seen)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_atomics_with_equal_addresses_act_one_after_the_other(mode):
    dtype = torch.float32 if mode == "addf" else torch.int32
    start = torch.tensor([5, -3, 0, 1 << 20], dtype=torch.int32).to(dtype)
    index = torch.tensor([0, 1, 0, 3, 3, 1, 0])
    values = torch.tensor([7, -2, 3, 1 << 19, -1, 6, -9], dtype=torch.int32).to(dtype)
    mask = 0xFFFFFFFF
    python = {
        "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "add": lambda a, b: a + b,
        "addf": lambda a, b: a + b, "max": max, "min": min, "xchg": lambda a, b: b,
        "umax": lambda a, b: max(a, b, key=lambda v: v & mask), "umin": lambda a, b: min(a, b, key=lambda v: v & mask),
    }[mode]  # fmt: skip
    memory, old = start.tolist(), []
    for at, value in zip(index.tolist(), values.tolist(), strict=True):
        old.append(memory[at])
        memory[at] = python(memory[at], value)
    flat = start.clone()
    got = apply(flat, index, [values], MODES[mode], True)
    assert flat.tolist() == memory
    assert got is not None
    assert got.tolist() == old


@ct.kernel
def _histogram(x, y, old, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(old, (i,), ct.atomic_add(y, ct.load(x, (i,), (T,)), 1))


@pytest.mark.parametrize("batch", BATCHES)
def test_a_histogram_counts_every_element_and_returns_every_count_once(batch):
    x = torch.randint(0, 5, (64,), dtype=torch.int32)
    y, old = torch.zeros(5, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    launch((4,), _histogram, (x, y, old, 16), batch)
    assert torch.equal(y, torch.bincount(x, minlength=5).to(torch.int32))
    assert sorted(zip(x.tolist(), old.tolist(), strict=True)) == [(v, k) for v in range(5) for k in range(int(y[v]))]


@ct.kernel
def _swap(x, y, T: ct.Constant[int]):
    where = ct.arange(T, dtype=ct.int32)
    ct.store(y, (0,), ct.atomic_cas(x, where, ct.full((T,), 0.0, ct.float32), ct.full((T,), 1.0, ct.float32)))


def test_compare_and_swap_compares_bits_of_floats():
    x = torch.tensor([0.0, -0.0, 2.0, float("nan"), 0.0])
    y = torch.zeros(8)
    launch((1,), _swap, (x, y, 8))
    assert x[:3].tolist() == [1.0, -0.0, 2.0]
    assert torch.signbit(x[1])
    assert x[3].isnan()
    assert x[4] == 1.0


@ct.kernel
def _reduce_view(x, y, T: ct.Constant[int]):
    y.tiled_view((T,)).atomic_store_add(
        (ct.bid(0) % 2,), ct.load(x, (ct.bid(0),), (T,), padding_mode=ct.PaddingMode.ZERO)
    )


@pytest.mark.parametrize("batch", BATCHES)
def test_atomic_view_stores_accumulate_and_clip(batch):
    x, y = torch.randn(32), torch.zeros(7)
    launch((8,), _reduce_view, (x, y, 4), batch)
    torch.testing.assert_close(y, x.view(4, 8).sum(0)[:7])


# ---------------------------------------------------------------------------------------------------- allocations


def test_addresses_say_which_buffer_they_derive_from_and_keep_alignment():
    memory = Memory()
    a, b = torch.zeros(100), torch.zeros(100)
    part = a[3:]
    assert memory.address(part) - memory.address(a) == 12
    assert memory.owner(memory.address(part)) is memory.register(a)
    assert memory.owner(memory.address(a) - 4) is memory.register(a)
    assert memory.owner(memory.address(a) + 10**9) is memory.register(a)
    assert memory.owner(memory.address(b)) is memory.register(b)
    assert memory.owner(0) is None
    assert memory.owner(-1) is None
    assert memory.address(a) % 64 == 0
    with pytest.raises(ValueError, match="CPU"):
        memory.register(torch.empty(1, device="meta"))


@ct.kernel
def _wild(x, y):
    i = ct.bid(0)
    ct.scatter(y, i, ct.gather(x, i * 1000000 - 5, check_bounds=False), check_bounds=False)
    ct.scatter(y, i + 100, 7.0, check_bounds=False)


@pytest.mark.parametrize("batch", [None, 1])
def test_stray_addresses_never_touch_the_host_and_read_as_zero(batch):
    x, y = torch.full((8,), 3.0), torch.full((8,), 2.0)
    neighbours = [torch.full((8,), 4.0) for _ in range(20)]
    launch((8,), _wild, (x, y), batch)
    assert (y == 0).all()
    assert all((n == 4.0).all() for n in neighbours)
