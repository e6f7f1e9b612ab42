"""Bindings of a CUDA driver that records: what cuda.bindings.driver offers of what the product calls, and no GPU.

A cubin is a JSON document here: by symbol, the bytes that each parameter takes.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any


class CUresult(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_LAUNCH_FAILED = 719


OK, END = CUresult.CUDA_SUCCESS, CUresult.CUDA_ERROR_INVALID_VALUE


def cubin(**symbols: tuple[int, ...]) -> bytes:
    return json.dumps(symbols).encode()


class RecordedCuda:
    """``calls``: what was asked for that changes something, in order; ``failing``: the result of calls by name.

    A thread launches and fills in the context that it made current, and not without one.
    """

    def __init__(self) -> None:
        self.CUresult = CUresult
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, CUresult] = {}
        self.libraries: dict[int, dict[str, list[int]]] = {}
        self._current = threading.local()

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        if not name.startswith("cuMemset"):
            raise AttributeError(name)
        return lambda *arguments: self._work(name, *arguments)

    def cuInit(self, flags: int) -> tuple[CUresult]:
        return (self.failing.get("cuInit", OK),)

    def cuDeviceGet(self, number: int) -> tuple[CUresult, int]:
        return OK, number

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, str]:
        return OK, f"context {device}"

    def cuCtxSetCurrent(self, context: str) -> tuple[CUresult]:
        self._current.context = context
        return self._said("cuCtxSetCurrent", context)

    def cuLibraryLoadData(self, code: bytes, *options: Any) -> tuple[CUresult, int]:
        assert options == ([], [], 0, [], [], 0)
        number = 100 + len(self.libraries)
        self.libraries[number] = json.loads(code)
        return self.failing.get("cuLibraryLoadData", OK), number

    def cuLibraryUnload(self, library: int) -> tuple[CUresult]:
        return self._said("cuLibraryUnload", library)

    def cuLibraryGetKernel(self, library: int, symbol: bytes) -> tuple[CUresult, Any]:
        known = symbol.decode() in self.libraries[library]
        return (OK if known else CUresult.CUDA_ERROR_NOT_FOUND), (library, symbol.decode())

    def cuKernelGetFunction(self, kernel: tuple[int, str]) -> tuple[CUresult, tuple[int, str]]:
        return OK, kernel

    def cuKernelGetParamInfo(self, kernel: tuple[int, str], number: int) -> tuple[CUresult, int, int]:
        sizes = self.libraries[kernel[0]][kernel[1]]
        return (OK, 0, sizes[number]) if number < len(sizes) else (END, 0, 0)

    def cuLaunchKernel(self, function: tuple[int, str], *rest: Any) -> tuple[CUresult]:
        """Reads the parameters where they lie, as the driver does before it returns."""
        *numbers, stream, parameters, extra = rest
        assert extra == 0
        sizes = self.libraries[function[0]][function[1]]
        places = (ctypes.c_void_p * len(sizes)).from_address(parameters)
        words = tuple(ctypes.string_at(at, size) for at, size in zip(places, sizes, strict=True))
        assert all(at % size == 0 for at, size in zip(places, sizes, strict=True))
        return self._work("cuLaunchKernel", function, tuple(numbers), stream, words)

    def cuStreamSynchronize(self, stream: int) -> tuple[CUresult]:
        return self._said("cuStreamSynchronize", stream)

    def _work(self, name: str, *what: Any) -> tuple[CUresult]:
        if not hasattr(self._current, "context"):
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        return self._said(name, *what)

    def _said(self, name: str, *what: Any) -> tuple[CUresult]:
        self.calls.append((name, *what))
        return (self.failing.get(name, OK),)
