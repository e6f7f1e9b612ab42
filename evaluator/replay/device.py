"""A GPU as a runner has it: the driver that launches, and PyTorch's memory beside it.

A runner asks for nothing else of a GPU, so that a test can give it one that runs on the emulator.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from kernels_generated.runtime.driver import Driver, LaunchDriver

Sample = tuple[Callable[[], None], Callable[[], None]]  # what comes before the clock, and what is timed


class Recorded(Protocol):
    """A graph of samples."""

    def run(self) -> list[float]:
        """Runs them all and waits: the µs of each."""


class Device(LaunchDriver, Protocol):
    """``place``: where tensors are made.  ``stream``: the number of the stream on which everything happens there."""

    place: torch.device
    stream: int
    l2_bytes: int

    def synchronize(self, stream: int) -> None: ...

    def empty(self, nbytes: int) -> torch.Tensor: ...

    def describe(self) -> dict[str, str]: ...

    def record(self, samples: Sequence[Sample]) -> Recorded: ...

    def forget_persisting(self) -> None: ...


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
        self.l2_bytes: int = torch.cuda.get_device_properties(self.place).L2_cache_size

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

    def record(self, samples: Sequence[Sample]) -> Recorded:
        """A graph of the samples, with an event before and one behind what is timed of each.

        Everything that the callables put on the device's stream is part of the graph; they may call PyTorch.
        """
        clocks = [(self._call("cuEventCreate", 0), self._call("cuEventCreate", 0)) for _ in samples]
        graph = torch.cuda.CUDAGraph()
        self.synchronize(self.stream)
        # torch.cuda.graph would collect garbage and empty PyTorch's pool first: a tenth of a second a contestant.
        # Without that no garbage may be collected meanwhile: a kernel that is unloaded then breaks the recording.
        collecting = gc.isenabled()
        gc.disable()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for (before, work), (start, end) in zip(samples, clocks, strict=True):
                before()
                self._event(start)
                work()
                self._event(end)
        finally:
            graph.capture_end()
            if collecting:
                gc.enable()
        return CudaGraph(self, graph, clocks)

    def forget_persisting(self) -> None:
        """Lines of L2 that were marked persisting, which a flush does not reach, become ordinary ones."""
        self._call("cuCtxResetPersistingL2Cache")

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Between two events that have happened."""
        return 1000.0 * float(self._call("cuEventElapsedTime", start, end))

    def _event(self, event: Any) -> None:
        """Puts an event on the stream, as a node of its own where a graph is recorded."""
        external = self._cuda.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        self._call("cuEventRecordWithFlags", event, self.stream, int(external))


class CudaGraph:
    """A recorded graph with its pairs of events."""

    def __init__(self, device: CudaDevice, graph: torch.cuda.CUDAGraph, clocks: Sequence[tuple[Any, Any]]) -> None:
        self._device, self._graph, self._clocks = device, graph, clocks

    def run(self) -> list[float]:
        self._graph.replay()
        self._device.synchronize(self._device.stream)
        return [self._device.elapsed_us(start, end) for start, end in self._clocks]
