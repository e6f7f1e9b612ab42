"""A GPU that is none: the calls of a runner's device, done by the emulator on the CPU's memory.

Results are real, what goes wrong is scripted.  A cubin is a Tile IR bytecode here, or a real cubin whose bytecode the
device was told.  Like a GPU it reads a launch's parameters where they lie, knows addresses and no arrays, and says what
went wrong in a kernel to whoever waits for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
import os
import random
import re
import struct
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from evaluator.kernel import Kernel
from evaluator.tileir import ir
from evaluator.tileir.launch import launch_words
from evaluator.tileir.memory import Memory
from evaluator.trace import Request, Traced, trace
from kernels_generated.runtime.driver import DriverError, LoadedKernel
from knowledge_base.chips import chip
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

_devices = itertools.count()  # of this process: no two have the same noise
LETTERS = {"i1": "B", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}


class DeviceDouble:
    """bytecodes: of cubins, by the SHA-256 of these.  script: what goes wrong, by name:

    illegal-address, hang, dies: in launch number so-and-so of the process (from 0).  stray: (launch, bytes) writes one
    byte so far behind the start of its last array.  idle: launches from that number on do nothing.  unsteady: every
    launch adds to a low byte of its last array.  off: every launch from that number on adds to a high one.  full:
    memory for no more than so many bytes.  lost: a file; once a process of the device has been lost, fills of those
    after it fail.  clock: (µs, the standard deviation of its logarithm); clock of 2: of a sample of two launches.
    unrecordable: no graph of samples that launch nothing of ours.
    """

    l2_bytes = 1 << 12

    place = torch.device("cpu")
    stream = 1

    def __init__(self, bytecodes: Mapping[str, bytes], script: Mapping[str, object]) -> None:
        self._bytecodes, self._script = dict(bytecodes), dict(script)
        self._regions: list[weakref.ref[torch.Tensor]] = []
        self._fault = ""
        self.launches = 0
        self.read: list[int] = []  # where the first array of each launch lies
        self._random = random.Random(f"{os.getpid()} {next(_devices)}")
        lost = self._script.get("lost")
        self._lost = bool(lost) and Path(str(lost)).exists()
        if lost:
            Path(str(lost)).touch()

    def describe(self) -> dict[str, str]:
        return {"product": "emulated", "arch": "sm_90", "driver": "0.0", "torch": torch.__version__}

    # ------------------------------------------------------------------------------------------------ memory

    def empty(self, nbytes: int) -> torch.Tensor:
        if nbytes > self._script.get("full", math.inf):  # type: ignore[operator]
            raise torch.OutOfMemoryError("scripted")
        made = torch.empty(nbytes, dtype=torch.uint8)
        self._regions.append(weakref.ref(made.untyped_storage()))  # type: ignore[arg-type]
        return made

    def adopt(self, tensor: torch.Tensor) -> None:
        """Makes memory known that somebody else has made."""
        self._regions.append(weakref.ref(tensor.untyped_storage()))  # type: ignore[arg-type]

    def fill(self, address: int, element: bytes, count: int, stream: int) -> None:
        if self._lost:
            raise DriverError("CUDA_ERROR_DEVICE_UNAVAILABLE", "cuMemsetD32Async")
        ctypes.memmove(address, element * count, len(element) * count)

    # ------------------------------------------------------------------------------------------------ kernels

    def load(self, cubin: bytes, symbol: str) -> LoadedKernel:
        bytecode = self._bytecodes.get(hashlib.sha256(cubin).hexdigest(), cubin)
        program = Kernel.of(bytecode).program
        sizes = tuple(struct.calcsize(f"={_letter(kind)}") for kind in program.module.args)
        return LoadedKernel(program, None, sizes)

    def unload(self, kernel: LoadedKernel) -> None:
        pass

    def launch(self, kernel: LoadedKernel, grid: tuple[int, int, int], parameters: int, stream: int) -> None:
        number, self.launches = self.launches, self.launches + 1
        if self._script.get("dies") == number:
            os._exit(7)
        if self._script.get("hang") == number:
            time.sleep(600)
        if number >= self._script.get("idle", math.inf):  # type: ignore[operator]
            return
        if self._script.get("illegal-address") == number:
            self._fault = "CUDA_ERROR_ILLEGAL_ADDRESS"
            return
        kinds = kernel.function.module.args
        places = (ctypes.c_void_p * len(kinds)).from_address(parameters)
        memory, words, arrays = Memory(), [], []
        for place, kind, size in zip(places, kinds, kernel.parameters, strict=True):
            (word,) = struct.unpack(f"<{_letter(kind)}", ctypes.string_at(place, size))
            if isinstance(kind.elem, ir.PtrElem):
                arrays.append(word)
                word = self._window(word, memory)
            words.append(bool(word) if kind.elem == "i1" else word)
        self.read.append(arrays[0])
        launch_words(kernel.function, grid, words, memory)
        stray = self._script.get("stray")
        if isinstance(stray, tuple) and stray[0] == number:
            ctypes.memset(arrays[-1] + stray[1], 1, 1)
        if "unsteady" in self._script:
            self._add(arrays[-1] + 8, self.launches % 5)
        if number >= self._script.get("off", math.inf):  # type: ignore[operator]
            self._add(arrays[-1] + 1, 1)

    def synchronize(self, stream: int) -> None:
        if self._fault:
            raise DriverError(self._fault, "cuStreamSynchronize")

    def record(self, samples: Sequence[tuple[Callable[[], None], Callable[[], None]]]) -> _Samples:
        if "unrecordable" in self._script:  # what launches nothing of ours
            before = self.launches
            for _, work in samples:
                work()
            if self.launches == before:
                raise RuntimeError("scripted: not while a graph is recorded\nmore of it")
        return _Samples(self, samples)

    def forget_persisting(self) -> None:
        pass

    def tick(self, launches: int) -> float:
        us, noise = self._script.get(f"clock of {launches}", self._script.get("clock", (100.0, 0.01)))  # type: ignore[misc]
        return us * math.exp(self._random.gauss(0.0, noise))

    def _window(self, address: int, memory: Memory) -> int:
        """The emulator's address for one of the host's."""
        for region in self._regions:
            storage = region()
            if storage is not None and storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes():
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                return memory.address(whole) + address - storage.data_ptr()
        raise AssertionError(f"an address that nobody has: {address:#x}")

    @staticmethod
    def _add(address: int, what: int) -> None:
        byte = ctypes.c_uint8.from_address(address)
        byte.value = (byte.value + what) % 256


class _Samples:
    """A graph of samples: what they do is done, what they take is scripted."""

    def __init__(self, device: DeviceDouble, samples: Sequence[tuple[Callable[[], None], Callable[[], None]]]) -> None:
        self._device, self._samples = device, samples

    def run(self) -> list[float]:
        took = []
        for before, work in self._samples:
            before()
            start = self._device.launches
            work()
            took.append(self._device.tick(self._device.launches - start))
        self._device.synchronize(self._device.stream)
        return took


def _letter(kind: ir.TileType) -> str:
    return "Q" if isinstance(kind.elem, ir.PtrElem) else LETTERS[kind.elem]


# ---------------------------------------------------------------------------------------------------- what runs on it

CHIP = chip("h200")
CANDIDATES = Path(__file__).parent / "candidates"
SIZES = {"M": 70, "N": 96, "K": 80, "B": 1, "T": 40, "H": 2, "D": 64}
DOUBLE = "device_double:DeviceDouble"  # for a runner's process, which needs tests/ on its path


def source(name: str) -> tuple[str, Task]:
    """A candidate's text, and its task at sizes that take no time."""
    text = (CANDIDATES / f"{name}.py").read_text()
    task = everyday(re.match(r"# task: (\w+)", text)[1])  # type: ignore[index]
    return text, task.at(**{d: SIZES[d] for d in task.sizes})


def traced(name: str) -> tuple[Task, Traced]:
    text, task = source(name)
    (answer,) = trace(text, task, [Request(task.sizes)], CHIP)
    assert isinstance(answer, Traced), answer
    return task, answer
