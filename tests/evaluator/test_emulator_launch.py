"""The public launch: arguments as ct.launch takes them, in place, under no_grad, cached by kernel and signature."""

import io
import math
from typing import Annotated

import cuda.tile as ct
import pytest
import torch

from evaluator import emulator
from evaluator.tileir import InvalidTileIR, Sanitizer
from evaluator.tileir.arguments import check_version, pass_arguments, tile_dtype
from evaluator.tileir.memory import Memory


@ct.kernel
def _add(x, y, out, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(out, (i,), ct.load(x, (i,), (T,)) + ct.load(y, (i,), (T,)))


@pytest.mark.parametrize("grid", [(8,), (8, 1), (8, 1, 1), [8]])
def test_a_kernel_runs_in_place_for_grids_of_one_to_three_sizes(grid):
    x, y, out = torch.randn(120), torch.randn(120), torch.zeros(120)
    report = emulator.launch(grid, _add, (x, y, out, 16))
    assert torch.equal(out, x + y)
    assert report.blocks == 8


@pytest.mark.parametrize("grid", [(), (1, 1, 1, 1), 8, (0,), (2**24,), (1, 2**16), (1, 1, 2**16)])
def test_other_grids_are_refused(grid):
    with pytest.raises((TypeError, ValueError), match="grid"):
        emulator.launch(grid, _add, (torch.zeros(16), torch.zeros(16), torch.zeros(16), 16))


def test_tensors_that_require_grad_are_written_without_a_graph():
    x, y = torch.randn(16, requires_grad=True), torch.randn(16)
    out = torch.zeros(16, requires_grad=True)
    emulator.launch((1,), _add, (x, y, out, 16))
    assert torch.equal(out.detach(), x.detach() + y)
    assert out.grad_fn is None


@ct.kernel
def _scalars(out, a, b, c, d: ct.ScalarInt64, e: ct.Constant[int], f: ct.Constant[bool], g: ct.Constant[float]):
    value = a.astype(ct.float64) + b.astype(ct.float64) * 10
    if c:
        value = value + 1000
    if f:
        value = value + 10000 * e
    ct.scatter(out, 0, value)
    ct.scatter(out, 1, (d // 3).astype(ct.float64))
    ct.scatter(out, 2, ct.float64(g))


def test_scalars_and_constants_arrive_as_the_launcher_types_them():
    out = torch.zeros(3, dtype=torch.float64)
    emulator.launch((1,), _scalars, (out, 7, 0.1, True, 3 * 2**40, 2, True, 0.25))
    single = torch.tensor(0.1, dtype=torch.float32).double().item()  # a float argument is float32
    assert out[0].item() == pytest.approx(7 + single * 10 + 1000 + 20000, abs=1e-12)
    assert out[1:].tolist() == [float(2**40), 0.25]
    emulator.launch((1,), _scalars, (out, -7, math.inf, False, -3, 2, False, 0.5))
    assert out.tolist() == [math.inf, -1.0, 0.5]


def test_integers_that_do_not_fit_and_wrong_argument_counts_are_refused():
    out = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(OverflowError, match=r"a: .* too big"):
        emulator.launch((1,), _scalars, (out, 2**31, 0.1, True, 0, 2, True, 0.25))
    with pytest.raises(OverflowError, match="64-bit"):
        emulator.launch((1,), _scalars, (out, 1, 0.1, True, 2**63, 2, True, 0.25))
    with pytest.raises(TypeError, match="8 arguments, 2 were given"):
        emulator.launch((1,), _scalars, (out, 1))


@ct.kernel
def _nested(arrays: tuple, pair, out, T: ct.Constant[int]):
    first, (second, factor) = arrays
    ct.store(out, (0,), ct.load(first, (0,), (T,)) * factor + ct.load(second, (0,), (T,)) * pair[1] + pair[0])


def test_tuples_of_arrays_and_scalars_nest():
    x, y, out = torch.randn(16), torch.randn(16), torch.zeros(16)
    emulator.launch((1,), _nested, ((x, (y, 3.0)), (5, 0.5), out, 16))
    torch.testing.assert_close(out, x * 3 + y * 0.5 + 5)


@ct.kernel
def _sum_list(xs, out, T: ct.Constant[int]):
    total = ct.zeros((T, T), ct.float32)
    for k in range(len(xs)):
        total += ct.load(xs[k], (0, 0), (T, T), padding_mode=ct.PaddingMode.ZERO)
    ct.store(out, (0, 0), total)


def test_lists_of_tensors_of_different_size_and_stride():
    xs = [torch.randn(8, 8), torch.randn(5, 16)[:, ::2], torch.randn(8, 3).T, torch.randn(1, 8)]
    out = torch.zeros(8, 8)
    emulator.launch((1,), _sum_list, (xs, out, 8))
    want = torch.zeros(8, 8)
    for x in xs:
        want[: x.shape[0], : x.shape[1]] += x
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize(
    "bad", [[], [1, 2], [torch.zeros(2), torch.zeros(2, 2)], [torch.zeros(2), torch.zeros(2).int()]]
)
def test_lists_of_anything_else_are_refused(bad):
    with pytest.raises(TypeError, match="xs"):
        emulator.launch((1,), _sum_list, (bad, torch.zeros(8, 8), 8))


def test_other_devices_and_unknown_dtypes_are_refused():
    with pytest.raises(TypeError, match="CPU"):
        emulator.launch((1,), _add, (torch.empty(16, device="meta"), torch.zeros(16), torch.zeros(16), 16))
    with pytest.raises(TypeError, match="complex64"):
        emulator.launch((1,), _add, (torch.zeros(16, dtype=torch.complex64), torch.zeros(16), torch.zeros(16), 16))


# ------------------------------------------------------------------------------------------------------ signatures


@ct.kernel
def _any(x):
    pass


@ct.kernel
def _wide(x: ct.IndexedWithInt64):
    pass


@ct.kernel
def _static(x: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(0, -1), static_stride_dims=(0,))]):
    pass


def constraint(tensor, kernel=_any):
    (found,) = pass_arguments(kernel, (tensor,), Memory()).parameters
    return found


def test_array_constraints_follow_sizes_strides_and_address():
    c = constraint(torch.zeros(48, 40))
    assert (c.dtype, c.ndim, c.index_dtype, c.alias_groups) == (ct.float32, 2, ct.int32, ())
    assert c.stride_constant == (None, 1)
    assert c.shape_constant == (None, None)
    assert c.stride_divisible_by == (4, 1)  # 40 floats are a multiple of 16 bytes
    assert c.shape_divisible_by == (16, 1)  # sizes count elements
    assert c.base_addr_divisible_by == 16
    assert not c.may_alias_internally
    c = constraint(torch.zeros(49, 41).to(torch.bfloat16)[1:])
    assert (c.stride_divisible_by, c.shape_divisible_by) == ((1, 1), (16, 1))
    assert c.base_addr_divisible_by == 1  # 82 bytes in


def test_dimensions_of_one_are_constants_and_overlap_is_seen():
    c = constraint(torch.zeros(1, 32))
    assert c.shape_constant == (1, None)
    assert constraint(torch.zeros(1).expand(8)).may_alias_internally
    assert constraint(torch.zeros(8).unfold(0, 4, 1)).may_alias_internally
    assert not constraint(torch.zeros(8, 4).T).may_alias_internally
    c = constraint(torch.zeros(4, 3).T)
    assert c.stride_constant == (1, None)
    high = constraint(torch.zeros(2, 2, 2, 2, 2, 16))
    assert high.stride_constant == (None,) * 6
    assert high.shape_divisible_by == (1,) * 6


def test_annotations_change_the_index_type_and_make_dimensions_static():
    assert constraint(torch.zeros(8), _wide).index_dtype == ct.int64
    c = constraint(torch.zeros(3, 5, 7), _static)
    assert c.shape_constant == (3, None, 7)
    assert c.stride_constant == (35, None, None)


def test_sizes_beyond_32_bits_need_a_64_bit_index():
    huge = torch.zeros(1).expand(2**31)
    with pytest.raises(OverflowError, match="too big"):
        constraint(huge)
    assert constraint(huge, _wide).index_dtype == ct.int64


def test_every_dtype_a_launch_takes_has_a_name_in_cutile():
    for dtype in (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.float8_e4m3fn):
        assert tile_dtype(dtype) is not None
    check_version()


# ----------------------------------------------------------------------------------------------------------- cache


def test_a_signature_is_exported_once_and_another_one_again(monkeypatch):
    exported = []
    real = emulator.to_bytecode
    monkeypatch.setattr(emulator, "to_bytecode", lambda *a, **k: exported.append(1) or real(*a, **k))
    kernel = ct.kernel(_add._pyfunc)
    args = [torch.zeros(64), torch.zeros(64), torch.zeros(64), 16]
    emulator.launch((4,), kernel, args)
    emulator.launch((2,), kernel, args)
    assert len(exported) == 1
    emulator.launch((4,), kernel, (*args[:3], 32))  # another constant
    emulator.launch((4,), kernel, (torch.zeros(63), *args[1:]))  # another divisibility
    assert len(exported) == 3


def test_constants_one_true_and_one_point_zero_are_different_signatures():
    @ct.kernel
    def kernel(out, n: ct.Constant):
        ct.scatter(out, 0, ct.int32(n))

    out = torch.zeros(1, dtype=torch.int32)
    for value in (1, True, 1.0, 1):
        emulator.program_for(kernel, pass_arguments(kernel, (out, value), Memory()))
    assert len(emulator._PROGRAMS[kernel]) == 3  # exported for each, though the bytecode is the same


# ---------------------------------------------------------------------------------------------------------- errors


def test_code_that_the_verifier_refuses_is_reported_with_the_tools_message():
    @ct.kernel
    def kernel(x, y):
        ct.store(y, (0,), ct.load(x, (0,), (8,)) // 3)

    x = torch.zeros(8, dtype=torch.uint32)
    with pytest.raises(InvalidTileIR, match="divi"):
        emulator.launch((1,), kernel, (x, torch.zeros(8, dtype=torch.uint32)))


def test_code_that_the_front_end_refuses_keeps_cutiles_error():
    @ct.kernel
    def kernel(x):
        ct.store(x, (0,), ct.load(x, (0,), (7,)))

    with pytest.raises(ct.TileError, match="power of two"):
        emulator.launch((1,), kernel, (torch.zeros(8),))


def test_printing_goes_to_standard_output_by_default_and_to_a_writer_if_given(capsys):
    @ct.kernel
    def kernel(x):
        print(ct.load(x, (0,), (4,)))

    x = torch.arange(4)
    emulator.launch((1,), kernel, (x,))
    assert capsys.readouterr().out == "[0, 1, 2, 3]\n"
    out = io.StringIO()
    emulator.launch((2,), kernel, (x,), write=out.write)
    assert out.getvalue() == "[0, 1, 2, 3]\n" * 2
    assert capsys.readouterr().out == ""


def test_findings_name_the_kernels_parameter():
    @ct.kernel
    def kernel(source, target):
        ct.scatter(target, 0, ct.gather(source, 9, check_bounds=False))

    (found,) = emulator.launch((1,), kernel, (torch.zeros(4), torch.zeros(4)), sanitizer=Sanitizer()).findings
    assert "'source'" in found.message
    assert str(found).startswith("out-of-bounds: read of element outside 'source'")


@ct.kernel
def _nothing(x):
    pass


@pytest.mark.parametrize(
    ("kernel", "argument", "says"),
    [
        (print, torch.zeros(4), r"@ct.kernel; given: print"),
        (None, torch.zeros(4), r"@ct.kernel; given: NoneType"),
        (_nothing, torch.zeros(4).numpy(), r"x: a CPU torch tensor is wanted .*not numpy.ndarray"),
        (_nothing, torch.zeros(4).numpy()[0], r"x: a Python number is wanted .*not numpy.float32"),
    ],
)
def test_what_is_no_kernel_and_no_argument_is_said(kernel, argument, says):
    with pytest.raises(TypeError, match=says):
        emulator.launch((1,), kernel, (argument,))
