"""The CUDA driver, as far as a launch plan needs it: kernels are loaded and launched, memory is filled.

What a plan runs on is an object with these methods, so that a test can give a recorded or an emulated one.  The package
cuda-bindings is imported when a :class:`Driver` is made: a machine without a GPU can read this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class DriverError(RuntimeError):
    """The driver refused a call.  ``code`` is the name of its CUresult, as CUDA_ERROR_ILLEGAL_ADDRESS."""

    def __init__(self, code: str, call: str) -> None:
        super().__init__(f"{call}: {code}")
        self.code = code


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that can be launched.  ``parameters``: the bytes that each of its parameters takes, in order."""

    function: Any
    library: Any
    parameters: tuple[int, ...]


class LaunchDriver(Protocol):
    """What a :class:`.launcher.Launcher` asks of a driver.  Streams are the driver's handles as numbers."""

    def load(self, cubin: bytes, symbol: str) -> LoadedKernel: ...

    def unload(self, kernel: LoadedKernel) -> None: ...

    def launch(self, kernel: LoadedKernel, grid: tuple[int, int, int], parameters: int, stream: int) -> None: ...

    def fill(self, address: int, element: bytes, count: int, stream: int) -> None: ...


class Driver:
    """One device by the driver, in its primary context, which is also PyTorch's.

    The context becomes current in the thread that makes the object, and in any other that has none when it first needs
    one: PyTorch gives a thread its context no sooner than the thread asks for memory.

    Raises ImportError without cuda-bindings, RuntimeError without a driver, DriverError where there is no such device.
    """

    def __init__(self, device: int = 0) -> None:
        from cuda.bindings import driver

        self._cuda: Any = driver
        self._launch, self._success = driver.cuLaunchKernel, driver.CUresult.CUDA_SUCCESS
        self._call("cuInit", 0)
        self.context = self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", device))
        self._call("cuCtxSetCurrent", self.context)

    def load(self, cubin: bytes, symbol: str) -> LoadedKernel:
        """The kernel ``symbol`` of a cubin.  Raises DriverError: the cubin is for another chip, or no cubin at all."""
        library = self._call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
        try:
            kernel = self._call("cuLibraryGetKernel", library, symbol.encode())
            return LoadedKernel(self._call("cuKernelGetFunction", kernel), library, self._parameters(kernel))
        except DriverError:
            self._call("cuLibraryUnload", library)
            raise

    def unload(self, kernel: LoadedKernel) -> None:
        """Lets go of a kernel.  Neither work in flight nor a graph may still need it."""
        self._call("cuLibraryUnload", kernel.library)

    def launch(self, kernel: LoadedKernel, grid: tuple[int, int, int], parameters: int, stream: int) -> None:
        """Puts a launch on a stream.  ``parameters`` is the address of an array of the parameters' addresses.

        A tile kernel brings its number of threads and its cluster with it: the block that is asked for is (1, 1, 1).
        """
        x, y, z = grid
        (code,) = self._launch(kernel.function, x, y, z, 1, 1, 1, 0, stream, parameters, 0)
        if code != self._success:  # no context is current in this thread yet, or it is refused
            self._call("cuLaunchKernel", kernel.function, x, y, z, 1, 1, 1, 0, stream, parameters, 0)

    def fill(self, address: int, element: bytes, count: int, stream: int) -> None:
        """Puts a fill on a stream: ``count`` elements of 1, 2, 4 or 8 bytes, which are equal to ``element``."""
        if not count:
            return
        if len(element) == 8:  # the driver fills with four bytes at most: first every even word, then every odd one
            for half in (0, 4):
                word = int.from_bytes(element[half : half + 4], "little")
                self._call("cuMemsetD2D32Async", address + half, 8, word, 1, count, stream)
        else:
            bits = 8 * len(element)
            self._call(f"cuMemsetD{bits}Async", address, int.from_bytes(element, "little"), count, stream)

    def synchronize(self, stream: int) -> None:
        """Waits until the stream's work is done.  Raises DriverError for what went wrong in it.

        After a fault of a kernel (an illegal address, say) every further call fails: the process has lost its context.
        """
        self._call("cuStreamSynchronize", stream)

    def _parameters(self, kernel: Any) -> tuple[int, ...]:
        sizes: list[int] = []
        while True:
            code, _, size = self._cuda.cuKernelGetParamInfo(kernel, len(sizes))
            if code == self._cuda.CUresult.CUDA_ERROR_INVALID_VALUE:  # there are no more
                return tuple(sizes)
            if code != self._cuda.CUresult.CUDA_SUCCESS:
                raise DriverError(code.name, "cuKernelGetParamInfo")
            sizes.append(int(size))

    def _call(self, name: str, *arguments: Any) -> Any:
        call = getattr(self._cuda, name)
        code, *results = call(*arguments)
        if code == self._cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT and name != "cuCtxSetCurrent":
            self._call("cuCtxSetCurrent", self.context)
            code, *results = call(*arguments)
        if code != self._cuda.CUresult.CUDA_SUCCESS:
            raise DriverError(code.name, name)
        return results[0] if results else None
