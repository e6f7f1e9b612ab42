"""A GPU as a runner has it: the driver that launches, and PyTorch's memory beside it.

A runner asks for nothing else of a GPU, so that a test can give it one that runs on the emulator.
"""

from __future__ import annotations

from typing import Protocol

import torch

from kernels_generated.runtime.driver import Driver, LaunchDriver


class Device(LaunchDriver, Protocol):
    """``place``: where tensors are made.  ``stream``: the number of the stream on which everything happens there."""

    place: torch.device
    stream: int

    def synchronize(self, stream: int) -> None: ...

    def empty(self, nbytes: int) -> torch.Tensor: ...

    def describe(self) -> dict[str, str]: ...


class CudaDevice(Driver):
    """A GPU of this machine.  PyTorch's work and ours go to one stream, in order."""

    def __init__(self, number: int = 0) -> None:
        self.place = torch.device("cuda", number)
        torch.cuda.set_device(self.place)
        super().__init__(number)
        # A stream of our own: the default one cannot be recorded into a graph.
        self._stream = torch.cuda.Stream(self.place)
        torch.cuda.set_stream(self._stream)
        self.stream: int = self._stream.cuda_stream

    def empty(self, nbytes: int) -> torch.Tensor:
        """Bytes of the GPU's memory, at a multiple of 256.  Raises torch.OutOfMemoryError."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.place)

    def describe(self) -> dict[str, str]:
        """Product and driver, for what is stored beside a measurement."""
        found = torch.cuda.get_device_properties(self.place)
        version = self._call("cuDriverGetVersion")
        return {
            "product": found.name,
            "arch": f"sm_{found.major}{found.minor}",
            "driver": f"{version // 1000}.{version % 1000 // 10}",
            "torch": torch.__version__,
        }
