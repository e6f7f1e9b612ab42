"""A launch plan on a GPU: memory with guard zones, poison where nobody has written, the launches, and what came of it.

It is a runner's :class:`evaluator.judging.executable.Machine`.  All buffers of a plan lie in one piece of memory, each
between two guard zones; a kernel that writes beyond its buffers is seen, if it does not fault, and has spoiled nothing
but this piece.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evaluator.judging import Poison, admit, poisoned, reject, text, torch_dtype
from kernels_generated.runtime import BoundPlan, Launchable, Launcher, LaunchPlan, Unlaunchable
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
        bound = admit(plan, buffers, sizes, WORKSPACE_BYTES)
        try:
            prepared = ready.prepare(bound)
        except Unlaunchable as error:
            raise reject(Status.INVALID, error.error_class, f"{error} at {text(sizes)}") from None
        arena = Arena(self._device, bound, GUARDS[poison.workspace < 0])
        for buffer in bound.buffers:
            given = buffers.get(buffer.name)
            arena.views[buffer.name].copy_(
                poisoned(buffer.shape, buffer.dtype, poison.workspace) if given is None else given
            )
        prepared.run(arena.addresses, self._device.stream)
        self._device.synchronize(self._device.stream)
        arena.check()
        for name, given in buffers.items():
            given.copy_(arena.views[name])
        return ()

    def close(self) -> None:
        self._launcher.close()


class Arena:
    """One piece of memory with every buffer of a plan between guard zones, which are full of ``guard``.

    views: the buffers as tensors, by name.  addresses: of their first bytes.
    """

    def __init__(self, device: Device, bound: BoundPlan, guard: int) -> None:
        self._guard = guard
        starts: dict[str, int] = {}
        at = 0
        for buffer in bound.buffers:
            starts[buffer.name] = at + GUARD_BYTES
            at += GUARD_BYTES + _aligned(buffer.nbytes) + GUARD_BYTES
        try:
            self._memory = device.empty(at)
        except torch.OutOfMemoryError:
            message = f"the GPU has no {at / 2**30:.1f} GiB left for the plan's buffers"
            raise reject(Status.UNSUPPORTED, "gpu-memory", message) from None
        self.views: dict[str, torch.Tensor] = {}
        self._zones: list[tuple[str, torch.Tensor, bool]] = []  # (buffer, zone, whether it is the one behind it)
        self.addresses = {name: self._memory.data_ptr() + start for name, start in starts.items()}
        for buffer in bound.buffers:
            start = starts[buffer.name]
            end = start + buffer.nbytes
            self.views[buffer.name] = (
                self._memory[start:end].view(torch_dtype(buffer.dtype)).reshape(buffer.shape)
                if buffer.nbytes
                else torch.empty(buffer.shape, dtype=torch_dtype(buffer.dtype), device=self._memory.device)
            )
            behind = start + _aligned(buffer.nbytes) + GUARD_BYTES
            self._zones.append((buffer.name, self._memory[start - GUARD_BYTES : start], False))
            self._zones.append((buffer.name, self._memory[end:behind], True))
        for _, zone, _ in self._zones:
            zone.fill_(guard)

    def check(self) -> None:
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
