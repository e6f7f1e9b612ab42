"""A launch plan on a GPU: memory with guard zones, poison where nobody has written, the launches, and what came of it.

It is a runner's :class:`evaluator.judging.executable.Machine`.  All buffers of a plan lie in one piece of memory, each
between two guard zones; a kernel that writes beyond its buffers is seen, if it does not fault, and has spoiled nothing
but this piece.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch

from evaluator.judging import Poison, admit, poison_of, reject, text, torch_dtype
from kernels_generated.runtime import Launchable, Launcher, LaunchPlan, PreparedPlan, Unlaunchable
from kernels_generated.runtime.launcher import element_bytes
from knowledge_base.records import Finding, Status

from .device import Device

GUARD_BYTES = 1 << 16  # before and behind every buffer: more than a row of most tensors
ALIGNMENT = 256  # of a buffer, as the driver's own allocations have it
GUARDS = (0xA5, 0x5A)  # the bytes of guard zones in a first and a second run
WORKSPACE_BYTES = 2**33  # of all workspaces of a plan at full size


class Card:
    """``cubins``: for the device, by the hash of their bytecode.  To be closed when nothing runs any more."""

    in_order = False

    def __init__(self, device: Device, cubins: Mapping[str, bytes]) -> None:
        self._device = device
        self._launcher = Launcher(device, cubins)

    def ready(self, traced: Launchable) -> Launcher:
        return self._launcher

    def run(
        self,
        plan: LaunchPlan,
        ready: Launcher,
        buffers: Mapping[str, torch.Tensor],
        sizes: Mapping[str, int],
        *,
        poison: Poison,
        sanitize: bool,
        deadline: float,
    ) -> tuple[Finding, ...]:
        """Runs the plan and waits for it.  Nothing watches a kernel on a GPU but its guard zones and its results.

        Raises Rejected, DriverError for a kernel that faults.
        """
        placed = self.place(plan, buffers, sizes, GUARDS[poison.workspace < 0])
        placed.poison(poison.workspace, [b.name for b in placed.bound.buffers if b.internal])
        placed.run()
        self._device.synchronize(self._device.stream)
        placed.check_guards()
        for name, given in buffers.items():
            given.copy_(placed.views[name])
        return ()

    def place(
        self, plan: LaunchPlan, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int], guard: int = GUARDS[0]
    ) -> Placed:
        """The plan with memory of its own, ready to run there: ``buffers`` are copied, workspaces hold anything.

        buffers: every argument but the workspaces.  Raises Rejected for a plan that is not to run.
        """
        bound = admit(plan, buffers, sizes, WORKSPACE_BYTES)
        try:
            prepared = self._launcher.prepare(bound)
        except Unlaunchable as error:
            raise reject(Status.INVALID, error.error_class, f"{error} at {text(sizes)}") from None
        placed = Placed(self._device, prepared, guard)
        for name, given in buffers.items():
            placed.views[name].copy_(given)
        return placed

    def close(self) -> None:
        self._launcher.close()


class Placed:
    """A plan at sizes in one piece of memory, every buffer between guard zones, which are full of ``guard``.

    views: the buffers as tensors, by name.
    """

    def __init__(self, device: Device, prepared: PreparedPlan, guard: int) -> None:
        self.bound = prepared.bound
        self._device, self._prepared, self._guard = device, prepared, guard
        starts: dict[str, int] = {}
        at = 0
        for buffer in self.bound.buffers:
            starts[buffer.name] = at + GUARD_BYTES
            at += GUARD_BYTES + _aligned(buffer.nbytes) + GUARD_BYTES
        try:
            memory = device.empty(at)
        except torch.OutOfMemoryError:
            message = f"the GPU has no {at / 2**30:.1f} GiB left for the plan's buffers"
            raise reject(Status.UNSUPPORTED, "gpu-memory", message) from None
        self._memory = memory  # lives as long as its addresses are used
        self._addresses = {name: memory.data_ptr() + start for name, start in starts.items()}
        self.views: dict[str, torch.Tensor] = {}
        self._zones: list[tuple[str, torch.Tensor, bool]] = []  # (buffer, zone, whether it is the one behind it)
        for buffer in self.bound.buffers:
            start = starts[buffer.name]
            end = start + buffer.nbytes
            flat = memory[start:end] if buffer.nbytes else torch.empty(0, dtype=torch.uint8, device=memory.device)
            self.views[buffer.name] = flat.view(torch_dtype(buffer.dtype)).reshape(buffer.shape)
            self._zones.append((buffer.name, memory[start - GUARD_BYTES : start], False))
            self._zones.append((buffer.name, memory[end : start + _aligned(buffer.nbytes) + GUARD_BYTES], True))
        for _, zone, _ in self._zones:
            zone.fill_(guard)

    def poison(self, value: float, names: Collection[str]) -> None:
        """Puts fills of the buffers of these names on the device's stream.

        They then hold what :func:`evaluator.judging.admission.poisoned` gives.
        """
        for buffer in self.bound.buffers:
            if buffer.name in names:
                element = element_bytes(buffer.dtype, poison_of(buffer.dtype, value))
                count = math.prod(buffer.shape)
                self._device.fill(self._addresses[buffer.name], element, count, self._device.stream)

    def run(self) -> None:
        """Puts the plan's steps on the device's stream."""
        self._prepared.run(self._addresses, self._device.stream)

    def check_guards(self) -> None:
        """Raises Rejected where a guard zone has changed."""
        for name, zone, behind in self._zones:
            changed = torch.nonzero(zone != self._guard).reshape(-1)
            if not changed.numel():
                continue
            far = int(changed[0]) + 1 if behind else zone.numel() - int(changed[-1])
            where = f"{far} bytes {'behind the end' if behind else 'before the start'} of {name}"
            message = f"the kernel wrote outside its arrays on the GPU, first {where}: {changed.numel()} bytes changed"
            finding = Finding(kind="guard-zone", message=message, buffer=name)
            raise reject(Status.UNSAFE, "guard-zone", message, findings=(finding,))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
