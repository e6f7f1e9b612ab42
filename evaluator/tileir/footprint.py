"""Which block writes each element, and what a launch reads: watchers that keep what the sanitizer forgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from . import ir
from .machine import Frame
from .memory import Allocation, Memory
from .runs import NOWHERE, Runs, Spans
from .sanitizer import Sanitizer, Violation
from .shadow import ATOMIC, ATOMIC_READ, READ, WRITE, Shadow
from .windows import Lattice, Piece, Window


class Footprint(Sanitizer):
    """Watches one launch of a module without values (:func:`.slicing.stores_alone`) and keeps who wrote what.

    read: names of the buffers that addresses, masks or trip counts were read from.
    """

    def __init__(self, read_only: Mapping[str, str] | None = None) -> None:
        super().__init__(read_only)
        self.read: set[str] = set()
        self._marks: dict[str, tuple[int, dict[str, Runs]]] = {}  # granules of so many bytes, and their marks by kind

    def writers(self, name: str, tensor: Tensor) -> Runs | None:
        """The number of the block, from 1, that writes each element of the buffer, which is ``tensor``; 0: none.

        None where an element is written by several blocks (atomics), or by parts.
        """
        granule, marks = self._marks.get(name, (tensor.element_size(), {}))
        times = tensor.element_size() // granule
        written = marks.get(WRITE) or Runs.of(np.zeros(tensor.numel() * times, dtype=np.int32))
        if ATOMIC in marks or not times or (written.numbers < 0).any():
            return None
        return written.first(tensor.numel() * times).of_groups(times)

    def reaches(self, name: str, tensor: Tensor) -> Spans:
        """Which elements of the buffer, which is ``tensor``, any block writes, atomically or not."""
        size = tensor.element_size()
        granule, marks = self._marks.get(name, (size, {}))
        granules = -(-tensor.nbytes // granule)
        reached = NOWHERE
        for runs in marks.values():
            reached |= runs.first(granules).marked()
        return reached.parted(granule // size) if granule > size else reached.grouped(size // granule)

    def end(self) -> tuple[Violation, ...]:
        for index, shadow in self._shadows.items():
            kinds = [kind for kind in (WRITE, ATOMIC) if kind in shadow.marks]
            runs = {kind: Runs.of(shadow.marks.pop(kind).numpy()) for kind in kinds}
            self._marks[self.memory.allocations[index].name] = (shadow.granule, runs)
        self._shadows.clear()
        self.memory = Memory()  # it holds the buffers, which may be large, and others are made for the values
        self.launches += 1
        return tuple(self.findings[self._start :])

    def windows(
        self, frame: Frame, op: ir.Op, allocation: Allocation, size: int, lattice: Lattice,
        found: Sequence[tuple[Piece, Window]], access: str,
    ) -> None:  # fmt: skip
        if access in (READ, ATOMIC_READ):
            self.read.add(allocation.name)
        else:
            super().windows(frame, op, allocation, size, lattice, found, access)

    def elements(
        self, frame: Frame, op: ir.Op, allocation: Allocation, index: Tensor, active: Tensor | None, size: int,
        access: str,
    ) -> None:  # fmt: skip
        if access in (READ, ATOMIC_READ):
            self.read.add(allocation.name)
        else:
            super().elements(frame, op, allocation, index, active, size, access)


class _OfBuffer(Footprint):
    """Looks at what is written of one buffer, and at nothing else."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _counts(self, allocation: Allocation, access: str) -> bool:
        return access not in (READ, ATOMIC_READ) and allocation.name == self.name


class Places(_OfBuffer):
    """Keeps the numbers of the elements of a buffer that the blocks which run write."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._found: list[tuple[Tensor, int]] = []  # numbers of elements, and the bytes of each

    def of(self, tensor: Tensor) -> Tensor:
        """The numbers, ascending, in elements of ``tensor``."""
        size = tensor.element_size()
        numbers = [
            at * bytes_ // size
            if bytes_ <= size
            else (at[:, None] * (bytes_ // size) + torch.arange(bytes_ // size)).reshape(-1)
            for at, bytes_ in self._found
        ]
        return torch.unique(torch.cat(numbers)) if numbers else torch.zeros(0, dtype=torch.int64)

    def windows(
        self, frame: Frame, op: ir.Op, allocation: Allocation, size: int, lattice: Lattice,
        found: Sequence[tuple[Piece, Window]], access: str,
    ) -> None:  # fmt: skip
        for _, (sizes, strides, offset) in found if self._counts(allocation, access) else ():
            at = torch.full((1,), offset)
            for extent, stride in zip(sizes, strides, strict=True):
                at = at[..., None] + torch.arange(extent) * stride
            self._found.append((at.reshape(-1), size))

    def elements(
        self, frame: Frame, op: ir.Op, allocation: Allocation, index: Tensor, active: Tensor | None, size: int,
        access: str,
    ) -> None:  # fmt: skip
        if self._counts(allocation, access):
            self._found.append((index.reshape(-1) if active is None else index[active], size))


class Touching(_OfBuffer):
    """Keeps which blocks write any of some elements of a buffer; ``wanted`` marks them, one by one."""

    def __init__(self, name: str, wanted: Tensor) -> None:
        super().__init__(name)
        self.wanted = wanted
        self.blocks: set[int] = set()

    def windows(
        self, frame: Frame, op: ir.Op, allocation: Allocation, size: int, lattice: Lattice,
        found: Sequence[tuple[Piece, Window]], access: str,
    ) -> None:  # fmt: skip
        if not self._counts(allocation, access):
            return
        hit = torch.zeros(lattice.counts, dtype=torch.bool)
        for piece, window in found:
            here = torch.as_strided(self._by_size(allocation, size), *window)
            axes = len(lattice.axes)
            hit[piece.where[:axes]] |= here.flatten(axes).any(-1) if here.dim() > axes else here
        flat = hit.reshape(-1).numpy()
        ids = frame.ids[lattice.lanes]
        lanes = flat[lattice.inverse] if lattice.inverse is not None else np.broadcast_to(flat, len(ids))
        self.blocks |= set(ids[lanes].tolist())

    def elements(
        self, frame: Frame, op: ir.Op, allocation: Allocation, index: Tensor, active: Tensor | None, size: int,
        access: str,
    ) -> None:  # fmt: skip
        if not self._counts(allocation, access):
            return
        hit = self._by_size(allocation, size)[torch.where(active, index, 0) if active is not None else index]
        hit = hit & active if active is not None else hit
        lanes = hit.expand(len(frame.ids), *hit.shape[1:]).reshape(len(frame.ids), -1).any(1)
        self.blocks |= set(frame.ids[lanes.numpy()].tolist())

    def _by_size(self, allocation: Allocation, size: int) -> Tensor:
        """The marks, one an element of ``size`` bytes."""
        elements = allocation.nbytes // size
        if elements <= len(self.wanted):
            return self.wanted.reshape(elements, -1).any(1)
        return self.wanted.repeat_interleave(elements // len(self.wanted))


class Reads(Sanitizer):
    """A sanitizer that also keeps which elements of some buffers a launch reads."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = frozenset(names)
        self.read: dict[str, Shadow] = {}

    def end(self) -> tuple[Violation, ...]:
        self._shadows.clear()
        self.launches += 1
        return tuple(self.findings[self._start :])

    def elements_read(self, name: str, tensor: Tensor) -> Tensor | None:
        """Which elements of the buffer, which is ``tensor``, were read; None: none."""
        shadow = self.read.get(name)
        if shadow is None:
            return None
        times = max(1, tensor.element_size() // shadow.granule)
        marks = shadow.mark(READ)[: tensor.numel() * times]
        return (marks.reshape(-1, times) != 0).any(1)

    def windows(
        self, frame: Frame, op: ir.Op, allocation: Allocation, size: int, lattice: Lattice,
        found: Sequence[tuple[Piece, Window]], access: str,
    ) -> None:  # fmt: skip
        if access == READ and allocation.name in self.names:
            shadow = self._kept_of(allocation, size)
            for _, window in found:
                torch.as_strided(shadow.mark(READ), *shadow.window(window, size)).fill_(1)
        super().windows(frame, op, allocation, size, lattice, found, access)

    def elements(
        self, frame: Frame, op: ir.Op, allocation: Allocation, index: Tensor, active: Tensor | None, size: int,
        access: str,
    ) -> None:  # fmt: skip
        if access == READ and allocation.name in self.names:
            shadow = self._kept_of(allocation, size)
            flat = index.reshape(-1) if active is None else index[active]
            shadow.mark(READ)[shadow.indices(flat, size)] = 1
        super().elements(frame, op, allocation, index, active, size, access)

    def _kept_of(self, allocation: Allocation, size: int) -> Shadow:
        if allocation.name not in self.read:
            self.read[allocation.name] = Shadow(allocation.nbytes, size, False)
        return self.read[allocation.name]
