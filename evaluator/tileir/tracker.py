"""What memory holds that nobody has made, and who depends on it: the taints of one plan's launches.

Every allocation has a twin of its size, whose bytes are the taints of its own (:mod:`.taint`); it lies at the same
addresses, so that loads and stores of taints are those of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import ir
from .machine import Frame, Run
from .memory import Allocation, Memory
from .ops_taint import ORIGINS, PADDING
from .program import Program
from .promises import PassedArray
from .sanitizer import Sanitizer, Violation


class _Twins(Memory):
    """The memory of taints of ``real``; an allocation's twin is clean when it is first asked for."""

    def __init__(self, real: Memory):
        super().__init__()
        self.real = real
        self._twins: dict[int, Allocation] = {}

    def of(self, allocation: Allocation) -> Allocation:
        found = self._twins.get(allocation.index)
        if found is None:
            taints = torch.zeros(allocation.nbytes, dtype=torch.int8)
            found = self._twins[allocation.index] = Allocation(allocation.index, taints, allocation.name)
        return found

    def owner(self, address: int) -> Allocation | None:
        real = self.real.owner(address)
        return None if real is None else self.of(real)


class Tracker(Sanitizer):
    """Watches the launches of one plan instead of a sanitizer: programs made of :func:`.taint.tainted` modules.

    ``only``: the one load whose padding counts (default: all).  ``padded``: the loads that took any, and their lines.
    """

    def __init__(self, only: ir.Op | None = None) -> None:
        super().__init__()
        self.twins = _Twins(self.memory)
        self.stained = False  # whether any memory has been tainted
        self.only = only
        self.padded: dict[ir.Op, int | None] = {}
        self._run_of_twins: Run | None = None
        self._without_padding: Run | None = None

    # -- memory

    def unwritten(self, tensor: Tensor, name: str, taint: int) -> None:
        """Before the first launch: nobody has written ``tensor`` (CPU, contiguous)."""
        self.twins.of(self.memory.register(tensor, name)).flat(torch.uint8).fill_(taint)
        self.stained = self.stained or tensor.numel() > 0

    def filled(self, tensor: Tensor) -> None:
        """The host has written all of ``tensor`` (contiguous)."""
        self.twins.of(self.memory.register(tensor)).flat(torch.uint8).fill_(0)

    def taints(self, tensor: Tensor) -> Tensor:
        """int8 taints of the elements of ``tensor`` (contiguous), in its shape."""
        size = tensor.element_size()
        whole = self.twins.of(self.memory.register(tensor)).flat(torch.int8)[: tensor.numel() * size]
        out = whole.reshape(-1, size)[:, 0].clone()
        for k in range(1, size):
            out |= whole.reshape(-1, size)[:, k]
        return out.reshape(tensor.shape)

    def enters(self, taint: Tensor | None) -> bool:
        """Whether a store of values with this taint changes the taints of memory: it brings some, or may clear some."""
        if taint is not None and not self.stained:
            self.stained = bool(taint.any())
        return self.stained

    def frame(self, frame: Frame, load: ir.Op | None = None) -> Frame:
        """The lanes of ``frame`` at the twins; ``load``: whose padding they take."""
        run = self._run_of_twins if self.only in (None, load) else self._without_padding
        assert run is not None
        return Frame(run, frame.ids, [])

    def took_padding(self, load: ir.Op) -> None:
        """A load has taken undetermined padding."""
        if load not in self.padded and self._run is not None:
            where = self._run.module.location(load)
            self.padded[load] = where.line if where else None

    # -- findings

    def begin(self, run: Run, program: Program, words: Sequence[Any], arrays: Sequence[PassedArray]) -> None:
        self._run, self._start = run, len(self.findings)
        self._seen.clear()
        self._run_of_twins = replace(run, memory=self.twins, watcher=None, padding_fill=float(PADDING))
        self._without_padding = replace(self._run_of_twins, padding_fill=0.0)

    def end(self) -> tuple[Violation, ...]:
        self.launches += 1
        return tuple(self.findings[self._start :])

    def depends(self, op: ir.Op, frame: Frame, taint: Tensor) -> None:
        """What ``op`` does depends on ``taint``."""
        what = {"if": "a branch", "for": "the number of a loop's turns", "make_tensor_view": "an array's place or size"}
        place = "where a store goes" if op.name.startswith("store") else "where an atomic goes"
        lanes = taint.reshape(taint.shape[0], -1)
        _, kind, source = _origin(taint)
        lane = int((lanes != 0).any(1).nonzero()[0])
        block = int(frame.ids[lane if len(lanes) == len(frame.ids) else 0])
        self.add(kind, f"{what.get(op.name, place)} depends on {source}", op=op, block=block)

    def result(self, tensor: Tensor, name: str, but: Tensor) -> Violation | None:
        """What is wrong with the elements of a result, ``but`` those where this mask is set."""
        taints = torch.where(but, 0, self.taints(tensor))
        if not bool(taints.any()):
            return None
        bit, kind, source = _origin(taints)
        at = (taints & bit) != 0
        element = int(at.reshape(-1).nonzero()[0])
        message = f"{name}{at.nonzero()[0].tolist()} depends on {source}"
        return Violation(kind, message, self.launches - 1, buffer=name, element=element)

    def report(self, frame: Frame, op: ir.Op, kind: str, message: str, bad: Any, note: bool = False) -> None:
        """Nothing: the sanitizer's own run has looked for it, as for what the methods below are told."""

    def indices(self, *args: Any) -> None: ...

    def windows(self, *args: Any) -> None: ...

    def elements(self, *args: Any) -> None: ...

    def stray(self, *args: Any) -> None: ...


def _origin(taint: Tensor) -> tuple[int, str, str]:
    """The first origin of any element: its bit, the kind of finding, and what that is."""
    bit = next(bit for bit in ORIGINS if bool(((taint & bit) != 0).any()))
    return bit, *ORIGINS[bit]
