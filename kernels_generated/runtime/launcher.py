"""The one place where a launch plan runs: bytes of arguments, fills and launches, by the CUDA driver alone.

No compiler and no cuda.tile: what is needed is the plan and a cubin of each of its kernels.  How a kernel takes its
arguments (found with cuTile 1.7.0's own launches): each word is a parameter of its own.  An array is its address, 8
bytes, then its sizes, then its strides, each of the index's 4 or 8 bytes; a scalar has the size of its type, a bool one
byte; constants are part of the kernel.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .bound import BoundLaunch, BoundPlan, Scalar, Unlaunchable, check
from .driver import LaunchDriver, LoadedKernel
from .plan import DTYPE_BITS, Fill

_FORMATS = {"bool": "?", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
_POINTER = "Q"
# Exponent and mantissa bits of the floats that the struct module has no letter for.
_SMALL_FLOATS = {"bf16": (8, 7), "f16": (5, 10), "f8e4m3": (4, 3), "f8e5m2": (5, 2)}


@dataclass(frozen=True)
class ArgumentLayout:
    """The parameters of one launch: ``block`` holds them, the i-th at ``offsets[i]`` with ``sizes[i]`` bytes.

    pointers: (offset in the block, buffer, bytes into that buffer) of each address, which the block holds as zero.
    """

    block: bytes
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    pointers: tuple[tuple[int, str, int], ...]


def layout(launch: BoundLaunch) -> ArgumentLayout:
    """The parameters of a launch; each stands at a multiple of its size, as the driver reads them."""
    block, offsets, sizes = bytearray(), [], []
    pointers: list[tuple[int, str, int]] = []

    def put(letter: str, value: float | int) -> None:
        size = struct.calcsize(f"={letter}")
        block.extend(b"\0" * (-len(block) % size))
        offsets.append(len(block))
        sizes.append(size)
        block.extend(struct.pack(f"<{letter}", value))

    for argument in launch.arguments:
        if isinstance(argument, Scalar):
            value = argument.value
            # beyond float32's range C gives an infinity, where struct refuses
            put(_FORMATS[argument.dtype], ctypes.c_float(value).value if argument.dtype == "f32" else value)
            continue
        put(_POINTER, 0)
        pointers.append((offsets[-1], argument.buffer, argument.offset * argument.itemsize))
        for number in (*argument.shape, *argument.strides):
            put(_FORMATS[argument.index], number)
    return ArgumentLayout(bytes(block), tuple(offsets), tuple(sizes), tuple(pointers))


class _ReadyLaunch:
    """A launch whose argument block lies in memory; addresses are written into it, then the driver copies it."""

    def __init__(
        self, grid: tuple[int, int, int], kernel: LoadedKernel, found: ArgumentLayout, numbers: Mapping[str, int]
    ) -> None:
        self.grid, self.kernel = grid, kernel
        # An address stands at a multiple of its 8 bytes: which of the block's words it is.
        self._pointers = tuple((offset // 8, numbers[buffer], into) for offset, buffer, into in found.pointers)
        self._block = ctypes.create_string_buffer(found.block, max(8, -(-len(found.block) // 8) * 8))
        self._words = memoryview(self._block).cast("B").cast("Q")
        start = ctypes.addressof(self._block)
        self._parameters = (ctypes.c_void_p * max(1, len(found.offsets)))(*(start + at for at in found.offsets))
        self._address = ctypes.addressof(self._parameters)

    def run(self, driver: LaunchDriver, addresses: Sequence[int], stream: int) -> None:
        for word, buffer, into in self._pointers:
            self._words[word] = addresses[buffer] + into
        driver.launch(self.kernel, self.grid, self._address, stream)


class PreparedPlan:
    """A plan at sizes whose kernels are loaded and whose argument bytes are laid out; for one thread at a time."""

    def __init__(self, bound: BoundPlan, steps: tuple[Fill | _ReadyLaunch, ...], driver: LaunchDriver) -> None:
        self.bound = bound
        self._steps, self._driver = steps, driver
        self._numbers = _numbers(bound)

    def run(self, addresses: Mapping[str, int], stream: int = 0) -> None:
        """Puts every step on a stream, in order.  addresses: of every buffer's first byte, by name.

        Returns before the work is done.  Raises DriverError.
        """
        self.run_at([addresses[buffer.name] for buffer in self.bound.buffers], stream)

    def run_at(self, addresses: Sequence[int], stream: int) -> None:
        """The same, with addresses in the order of the plan's buffers."""
        for step in self._steps:
            if isinstance(step, _ReadyLaunch):
                step.run(self._driver, addresses, stream)
            else:
                number = self._numbers[step.argument]
                buffer = self.bound.buffers[number]
                element = element_bytes(buffer.dtype, step.value)
                self._driver.fill(addresses[number], element, math.prod(buffer.shape), stream)


class Launcher:
    """Kernels of cubins, loaded once, and plans that launch them.

    cubins: by the SHA-256 of the bytecode that they were assembled from, for the driver's device.
    """

    def __init__(self, driver: LaunchDriver, cubins: Mapping[str, bytes]) -> None:
        self._driver, self._cubins = driver, cubins
        self._loaded: dict[tuple[str, str], LoadedKernel] = {}

    def prepare(self, bound: BoundPlan) -> PreparedPlan:
        """The plan, ready to run any number of times.

        Raises Unlaunchable where no machine should run it or an argument is not what its kernel takes, KeyError for a
        kernel without cubin, DriverError for a cubin that the driver cannot load.
        """
        check(bound)
        numbers = _numbers(bound)
        steps = (step if isinstance(step, Fill) else self._ready(step, numbers) for step in bound.steps)
        return PreparedPlan(bound, tuple(steps), self._driver)

    def close(self) -> None:
        """Unloads the kernels.  Nothing that runs, and no graph, may still need them."""
        while self._loaded:
            self._driver.unload(self._loaded.popitem()[1])

    def _ready(self, launch: BoundLaunch, numbers: Mapping[str, int]) -> _ReadyLaunch:
        name = (launch.kernel, launch.symbol)
        if name not in self._loaded:
            self._loaded[name] = self._driver.load(self._cubins[launch.kernel], launch.symbol)
        kernel, found = self._loaded[name], layout(launch)
        if found.sizes != kernel.parameters:  # the driver would read beyond the block
            takes, has = _text(kernel.parameters), _text(found.sizes)
            message = f"{launch.symbol} takes parameters of {takes} bytes, the plan has {has}"
            raise Unlaunchable("kernel-arguments", message)
        return _ReadyLaunch(launch.grid, kernel, found, numbers)


def _numbers(bound: BoundPlan) -> dict[str, int]:
    """Each buffer's place among the plan's, by name."""
    return {buffer.name: number for number, buffer in enumerate(bound.buffers)}


def _text(sizes: tuple[int, ...]) -> str:
    return " ".join(map(str, sizes)) or "no"


def element_bytes(dtype: str, value: float | int) -> bytes:
    """One element of ``dtype`` (DTYPE_BITS) that is nearest to ``value``, ties to even, in memory's order.

    Beyond a float's range it is an infinity; f8e4m3 has none, and takes its largest number, as in PyTorch.
    Raises Unlaunchable for an integer that the dtype does not hold.
    """
    if dtype == "bool":
        return b"\1" if value else b"\0"
    if dtype in _SMALL_FLOATS:
        return _small_float(dtype, float(value)).to_bytes(DTYPE_BITS[dtype] // 8, "little")
    if dtype == "f64":
        return struct.pack("<d", value)
    if dtype == "f32":
        return struct.pack("<f", ctypes.c_float(value).value)
    try:
        return int(value).to_bytes(DTYPE_BITS[dtype] // 8, "little", signed=dtype.startswith("i"))
    except OverflowError:
        raise Unlaunchable("fill-range", f"{value} does not fit {dtype}") from None


def _small_float(dtype: str, value: float) -> int:
    """The bits of a float with few of them."""
    exponent_bits, mantissa_bits = _SMALL_FLOATS[dtype]
    bias = 2 ** (exponent_bits - 1) - 1
    sign = 1 << (exponent_bits + mantissa_bits) if math.copysign(1.0, value) < 0 else 0
    infinity = (2**exponent_bits - 1) << mantissa_bits
    largest, nan = infinity, infinity | 1 << (mantissa_bits - 1)
    if dtype == "f8e4m3":  # its largest exponent holds numbers, too; all ones is its NaN
        nan = infinity | (2**mantissa_bits - 1)
        largest = nan - 1
    if math.isnan(value):
        return nan
    if value == 0 or math.isinf(value):
        return sign | (largest if value else 0)
    exponent = max(math.frexp(value)[1] - 1, 1 - bias)  # of subnormals the least one
    units = round(math.ldexp(abs(value), mantissa_bits - exponent))  # exact but for this rounding, ties to even
    # A mantissa that is rounded up to the next power of two carries into the exponent by itself.
    return sign | min(units + ((exponent + bias - 1) << mantissa_bits), largest)
