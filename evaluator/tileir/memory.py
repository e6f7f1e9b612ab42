"""Global memory of an emulated launch: the caller's torch tensors under virtual addresses of our own.

Every storage gets a window of ``SPACE`` bytes in a 63-bit address space and sits ``GUARD`` bytes behind its start, so
that an address says by itself which allocation it derives from, and a stray one (outside its storage, before or behind
it) is seen and never reaches memory of the host.  Addresses keep the storage's alignment.

What a kernel reads and writes are *typed flat views* of a storage; bounds are in elements of the view.  Shadow memory
and findings belong to the sanitizer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import dtypes

SPACE_BITS = 40  # 1 TiB of addresses per allocation: pointer arithmetic inside a tensor never leaves it
SPACE = 1 << SPACE_BITS
GUARD = 1 << 30  # addresses before the first byte: small negative offsets stay in the window of their allocation

# Bits of an element in memory: i1 is a byte, the 4-bit types are packed two a byte.
MEMORY_BITS = {**dtypes.BITS, "i1": 8}


def memory_dtype(elem: str) -> torch.dtype:
    """The torch dtype through which elements of ``elem`` are moved; i1 and packed types move as bytes."""
    return torch.uint8 if elem == "i1" or MEMORY_BITS[elem] < 8 else dtypes.STORAGE[elem]


class Allocation:
    """One storage.  ``base`` is the virtual address of its first byte."""

    def __init__(self, index: int, tensor: Tensor, name: str):
        self.index, self.name = index, name
        storage = tensor.untyped_storage()
        self.nbytes: int = storage.nbytes()
        self.host: int = storage.data_ptr()
        self.base = ((index + 1) << SPACE_BITS) + GUARD
        with torch.no_grad():
            self._bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._views: dict[torch.dtype, Tensor] = {torch.uint8: self._bytes}

    @property
    def end(self) -> int:
        """The address behind its last byte."""
        return self.base + self.nbytes

    def flat(self, dtype: torch.dtype) -> Tensor:
        """The whole storage as a 1-d tensor of ``dtype`` (a trailing part of an element is left out)."""
        view = self._views.get(dtype)
        if view is None:
            whole = self.nbytes // dtype.itemsize * dtype.itemsize
            view = self._views[dtype] = self._bytes[:whole].view(dtype)
        return view


class Memory:
    """The allocations a launch can reach."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.globals: dict[str, int] = {}
        self._by_host: dict[int, Allocation] = {}

    def register(self, tensor: Tensor, name: str = "") -> Allocation:
        """The allocation of ``tensor``'s storage, made known at the first call.  CPU tensors only."""
        if tensor.device.type != "cpu":
            raise ValueError(f"{name or 'tensor'}: the emulator takes CPU tensors, not {tensor.device}")
        host = tensor.untyped_storage().data_ptr()
        found = self._by_host.get(host) if host else None
        if found is None:
            found = Allocation(len(self.allocations), tensor, name)
            self.allocations.append(found)
            if host:  # empty storages have no address and are all different
                self._by_host[host] = found
        return found

    def address(self, tensor: Tensor, name: str = "") -> int:
        """The virtual address of ``tensor``'s first element."""
        return self.register(tensor, name).base + int(tensor.storage_offset()) * tensor.element_size()

    def define_global(self, name: str, contents: Tensor) -> None:
        """A module's buffer of its own, with fresh contents at each launch."""
        self.globals[name] = self.address(contents, f"global {name}")

    def owner(self, address: int) -> Allocation | None:
        """The allocation that ``address`` derives from; None for an address that derives from none."""
        index = (address >> SPACE_BITS) - 1
        return self.allocations[index] if 0 <= index < len(self.allocations) else None
