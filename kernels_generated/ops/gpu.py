"""An NVIDIA GPU as a backend: cubins that ship, loaded by the CUDA driver.

A compiler is asked only for a chip that no cubin ships for.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels_generated.runtime.assembler import AssemblerError, assembled, located
from kernels_generated.runtime.backend import NO_MEMORY, NoKernel, Run
from kernels_generated.runtime.bound import BoundPlan
from kernels_generated.runtime.driver import Driver, DriverError, LaunchDriver
from kernels_generated.runtime.launcher import Launcher
from kernels_generated.runtime.manifest import Manifest


class Gpu:
    """The device that ``driver`` drives.

    here: a context in which the device is PyTorch's current one.  stream: the handle of the stream that work goes on,
    asked at each run.
    """

    def __init__(
        self,
        driver: LaunchDriver,
        arch: str,
        num_sms: int,
        stream: Callable[[], int],
        here: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.arch, self.num_sms = arch, num_sms
        self._stream, self._here = stream, here
        self._cubins: dict[str, bytes] = {}
        self._launcher = Launcher(driver, self._cubins)
        self._lock = threading.Lock()

    def prepare(self, bound: BoundPlan, manifest: Manifest) -> Run:
        """What runs the plan on its tensors' addresses.  Raises NoKernel, Unlaunchable, ManifestError."""
        what = "its cubin"
        with self._lock, self._here():
            for kernel in {launch.kernel for launch in bound.launches} - set(self._cubins):
                self._cubins[kernel], what = self._loadable(kernel, manifest)
            try:
                prepared = self._launcher.prepare(bound)
            except DriverError as error:
                raise NoKernel(f"the driver does not load {what}: {error}") from None
        lock, stream, here = threading.Lock(), self._stream, self._here

        def run(tensors: Sequence[Any]) -> None:
            addresses = [tensor.data_ptr() for tensor in tensors]
            if 0 in addresses:
                raise RuntimeError(NO_MEMORY)
            with lock, here():  # the arguments of its launches lie in one place: one thread at a time
                prepared.run_at(addresses, stream())

        return run

    def _loadable(self, kernel: str, manifest: Manifest) -> tuple[bytes, str]:
        """What the driver is given of a kernel: the cubin that ships; what the assembler makes of its Tile IR, where
        one is installed; else that itself, which newer drivers read.  And what that is, in words."""
        cubin = manifest.cubin(kernel, self.arch)
        if cubin is not None:
            return cubin, "its cubin"
        tileiras = located("tileiras")
        bytecode = manifest.bytecode(kernel)
        if tileiras is None:
            return bytecode, f"its Tile IR (no cubin for {self.arch} ships, and no tileiras is installed)"
        try:
            return assembled(kernel, bytecode, self.arch, tileiras), "what tileiras made of its Tile IR"
        except AssemblerError as error:
            raise NoKernel(str(error)) from None


@functools.cache
def gpu(index: int) -> Gpu | str:
    """The CUDA device of that number; why not, where the driver is not at hand."""
    here = functools.partial(_current, index)
    try:
        with torch.cuda.device(index):  # a driver makes its context current, and this puts back the one before
            driver = Driver(index)
    except (ImportError, RuntimeError) as error:
        return f"the CUDA driver is not at hand (pip install cuda-bindings): {error}"
    major, minor = torch.cuda.get_device_capability(index)
    multiprocessors = torch.cuda.get_device_properties(index).multi_processor_count
    stream = functools.partial(torch._C._cuda_getCurrentRawStream, index)
    return Gpu(driver, f"sm_{major}{minor}", multiprocessors, stream, here)


def _current(index: int) -> contextlib.AbstractContextManager[Any]:
    """Nothing where the device is current, as it nearly always is: entering it takes longer than asking."""
    return _NOTHING if torch._C._cuda_getDevice() == index else torch.cuda.device(index)


_NOTHING = contextlib.nullcontext()
