"""The launcher against a recorded driver: which kernel gets which grid and which bytes, in which order."""

from __future__ import annotations

import math
import struct
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recorded_driver import CUresult, RecordedCuda, cubin

from evaluator.judging.inputs import torch_dtype
from kernels_generated.runtime import Driver, DriverError, Launcher, Unlaunchable
from kernels_generated.runtime.bound import Array, BoundLaunch, BoundPlan, Buffer, Scalar
from kernels_generated.runtime.launcher import element_bytes
from kernels_generated.runtime.plan import DTYPE_BITS, Fill

A, B = "a" * 64, "b" * 64
X, Y = 0x7000_0000_0000, 0x7000_1000_0000  # addresses need all of their eight bytes
ADDRESSES = {"x": X, "y": Y}


def plan(*steps: BoundLaunch | Fill, x: tuple[int, ...] = (4096,), dtype: str = "f32") -> BoundPlan:
    return BoundPlan((Buffer("x", "workspace", dtype, x), Buffer("y", "output", "f32", (64,))), steps)


def launched(cuda: RecordedCuda) -> list[tuple]:
    return [call[1:] for call in cuda.calls if call[0] == "cuLaunchKernel"]


# ---------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("index", ["i32", "i64"])
@pytest.mark.parametrize("rank", range(6))
def test_an_array_is_an_address_then_sizes_then_strides(cuda: RecordedCuda, rank: int, index: str) -> None:
    shape, strides = (2, 3, 4, 5, 6)[:rank], (2048, 512, 64, 8, 1)[:rank]
    launch = BoundLaunch(A, "k", (7, 8, 9), (Array("x", "bf16", 3, shape, strides, index),))
    size, letter = (4, "<i") if index == "i32" else (8, "<q")
    Launcher(Driver(), {A: cubin(k=(8, *[size] * 2 * rank))}).prepare(plan(launch)).run(ADDRESSES, stream=5)
    words = (struct.pack("<Q", X + 3 * 2), *(struct.pack(letter, n) for n in (*shape, *strides)))
    assert launched(cuda) == [((100, "k"), (7, 8, 9, 1, 1, 1, 0), 5, words)]


SCALARS = [
    ("bool", True, b"\1"), ("bool", False, b"\0"), ("i32", -2, b"\xfe\xff\xff\xff"),
    ("i64", 2**40, b"\0" * 5 + b"\1\0\0"),
    ("f32", 1.5, b"\0\0\xc0\x3f"), ("f32", -math.inf, b"\0\0\x80\xff"), ("f32", 1e300, b"\0\0\x80\x7f"),
    ("f64", 0.1, struct.pack("<d", 0.1)),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "value", "expected"), SCALARS)
def test_a_scalar_has_the_bytes_of_its_type(cuda: RecordedCuda, dtype: str, value: float, expected: bytes) -> None:
    # A bool before it, so that it would stand askew if it were not aligned.
    launch = BoundLaunch(A, "k", (1, 1, 1), (Scalar("bool", True), Scalar(dtype, value)))
    Launcher(Driver(), {A: cubin(k=(1, len(expected)))}).prepare(plan(launch)).run(ADDRESSES)
    assert launched(cuda)[0][3] == (b"\1", expected)


def test_launches_and_fills_go_to_the_stream_in_order(cuda: RecordedCuda) -> None:
    first = BoundLaunch(A, "f", (2, 1, 1), (Array("x", "f32", 0, (64,), (1,)), Scalar("i32", 1)))
    second = BoundLaunch(B, "g", (3, 1, 1), (Array("y", "f32", 1, (), ()),))
    launcher = Launcher(Driver(), {A: cubin(f=(8, 4, 4, 4)), B: cubin(g=(8,))})
    ready = launcher.prepare(plan(first, Fill("x", 0), second, first))
    ready.run({"x": X, "y": Y}, stream=9)
    ready.run({"x": X + 256, "y": Y}, stream=10)  # elsewhere, with the same argument blocks
    done = [(call[0], call[1][1] if call[0] == "cuLaunchKernel" else call[1:]) for call in cuda.calls[1:]]
    assert done == [
        ("cuLaunchKernel", "f"), ("cuMemsetD32Async", (X, 0, 4096, 9)),
        ("cuLaunchKernel", "g"), ("cuLaunchKernel", "f"),
        ("cuLaunchKernel", "f"), ("cuMemsetD32Async", (X + 256, 0, 4096, 10)),
        ("cuLaunchKernel", "g"), ("cuLaunchKernel", "f"),
    ]  # fmt: skip
    starts = [int.from_bytes(words[0], "little") for _, _, _, words in launched(cuda)]
    assert starts == [X, Y + 4, X, X + 256, Y + 4, X + 256]
    assert [call[2] for call in launched(cuda)] == [9] * 3 + [10] * 3
    assert len(cuda.libraries) == 2  # each kernel once
    launcher.close()
    assert [call for call in cuda.calls if call[0] == "cuLibraryUnload"] == [
        ("cuLibraryUnload", 101), ("cuLibraryUnload", 100)
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------- refusals


def test_arguments_that_are_not_the_kernels_are_refused_before_the_driver_reads_beyond_them(cuda: RecordedCuda) -> None:
    launch = BoundLaunch(A, "k", (1, 1, 1), (Array("x", "f32", 0, (4,), (1,)),))
    for sizes in ((8, 4), (8, 4, 4, 4), (8, 8, 8), ()):
        with pytest.raises(Unlaunchable, match=r"k takes parameters of .* bytes, the plan has 8 4 4") as raised:
            Launcher(Driver(), {A: cubin(k=sizes)}).prepare(plan(launch))
        assert raised.value.error_class == "kernel-arguments"
    assert launched(cuda) == []


def test_what_no_machine_should_launch_is_refused(cuda: RecordedCuda) -> None:
    launch = BoundLaunch(A, "k", (1, 1, 1), (Array("x", "f32", 4095, (2,), (1,)),))
    with pytest.raises(Unlaunchable, match="ends 4 bytes behind the argument"):
        Launcher(Driver(), {A: cubin(k=(8, 4, 4))}).prepare(plan(launch))
    assert cuda.libraries == {}


def test_a_thread_without_a_context_gets_the_devices(cuda: RecordedCuda) -> None:
    """PyTorch's allocator needs none where it has memory at hand: a launch may be a thread's first call."""
    prepared = Launcher(Driver(), {A: cubin(k=())}).prepare(plan(BoundLaunch(A, "k", (1, 1, 1), ()), Fill("x", 0)))
    thread = threading.Thread(target=prepared.run, args=(ADDRESSES,))
    thread.start()
    thread.join()
    assert [one[0] for one in cuda.calls[1:]] == ["cuCtxSetCurrent", "cuLaunchKernel", "cuMemsetD32Async"]
    cuda.failing["cuLaunchKernel"] = CUresult.CUDA_ERROR_INVALID_CONTEXT
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_CONTEXT"):
        prepared.run(ADDRESSES)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("cuLibraryLoadData", CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU),
        ("cuLaunchKernel", CUresult.CUDA_ERROR_LAUNCH_FAILED),
        ("cuInit", CUresult.CUDA_ERROR_NOT_FOUND),
    ],
)
def test_what_the_driver_refuses_is_said_with_its_code(cuda: RecordedCuda, call: str, code: CUresult) -> None:
    cuda.failing[call] = code
    launch = BoundLaunch(A, "k", (1, 1, 1), ())
    with pytest.raises(DriverError, match=f"{call}: {code.name}") as raised:
        Launcher(Driver(), {A: cubin(k=())}).prepare(plan(launch)).run(ADDRESSES)
    assert raised.value.code == code.name


def test_what_went_wrong_in_a_kernel_is_said_by_who_waits_for_it(cuda: RecordedCuda) -> None:
    driver = Driver()
    driver.synchronize(7)
    assert cuda.calls[-1] == ("cuStreamSynchronize", 7)
    cuda.failing["cuStreamSynchronize"] = CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(DriverError, match="cuStreamSynchronize: CUDA_ERROR_LAUNCH_FAILED"):
        driver.synchronize(7)


def test_a_library_without_the_kernel_is_let_go(cuda: RecordedCuda) -> None:
    with pytest.raises(DriverError, match="cuLibraryGetKernel: CUDA_ERROR_NOT_FOUND"):
        Launcher(Driver(), {A: cubin(other=())}).prepare(plan(BoundLaunch(A, "k", (1, 1, 1), ())))
    assert cuda.calls[-1] == ("cuLibraryUnload", 100)


# ---------------------------------------------------------------------------------------------------- fills


@pytest.mark.parametrize(("dtype", "bits"), DTYPE_BITS.items())
def test_a_fill_sets_every_element(cuda: RecordedCuda, dtype: str, bits: int) -> None:
    Launcher(Driver(), {}).prepare(plan(Fill("x", 1), x=(6, 7), dtype=dtype)).run(ADDRESSES, stream=3)
    element = torch.ones((), dtype=torch_dtype(dtype)).reshape(1).view(torch.uint8).numpy().tobytes()
    fills = cuda.calls[1:]
    if bits == 64:
        low, high = (int.from_bytes(element[half : half + 4], "little") for half in (0, 4))
        assert fills == [
            ("cuMemsetD2D32Async", X, 8, low, 1, 42, 3), ("cuMemsetD2D32Async", X + 4, 8, high, 1, 42, 3)
        ]  # fmt: skip
    else:
        assert fills == [(f"cuMemsetD{bits}Async", X, int.from_bytes(element, "little"), 42, 3)]


def test_nothing_is_filled_where_there_is_nothing(cuda: RecordedCuda) -> None:
    Launcher(Driver(), {}).prepare(plan(Fill("x", 1), x=(0, 7))).run(ADDRESSES)
    assert cuda.calls[1:] == []


FLOATS = [dtype for dtype in DTYPE_BITS if torch_dtype(dtype).is_floating_point]


@pytest.mark.parametrize("dtype", FLOATS)
@given(value=st.floats(width=32) | st.floats(min_value=-600, max_value=600, width=32) | st.sampled_from([464.0, 480.0]))
def test_an_element_is_rounded_as_pytorch_does(dtype: str, value: float) -> None:
    stored = torch.tensor([value], dtype=torch.float32).to(torch_dtype(dtype))
    expected = stored.view(torch.uint8).numpy().tobytes()
    if math.isnan(value):
        read = torch.frombuffer(bytearray(element_bytes(dtype, value)), dtype=torch_dtype(dtype))
        assert bool(torch.isnan(read.float()).all())
    else:
        assert element_bytes(dtype, value) == expected


@pytest.mark.parametrize(("dtype", "value"), [("u8", -1), ("i8", 128), ("i64", 1e300)])
def test_an_integer_that_does_not_fit_is_refused(dtype: str, value: float) -> None:
    with pytest.raises(Unlaunchable, match=f"does not fit {dtype}"):
        element_bytes(dtype, value)
