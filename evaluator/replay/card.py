"""A launch plan on a GPU: memory with guard zones, poison where nobody has written, the launches, and what came of it.

It is a runner's :class:`evaluator.judging.executable.Machine`.  All buffers of a plan lie in one piece of memory, each
between two guard zones; a kernel that writes beyond its buffers is seen, if it does not fault, and has spoiled nothing
but this piece.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from evaluator.judging import Poison, admit, poison_of, reject, same_bits, text, torch_dtype
from kernels_generated.runtime import Buffer, Launchable, Launcher, LaunchPlan, PreparedPlan, Unlaunchable
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
        shapes = {name: tuple(given.shape) for name, given in buffers.items()}
        placed = self.place([Part(plan, sizes, shapes, {name: name for name in shapes})], GUARDS[poison.workspace < 0])
        for name, given in buffers.items():
            placed.views[name].copy_(given)
        placed.poison(poison.workspace, [*placed.workspaces, *placed.packed])
        placed.pack()
        prepared = {name: placed.views[name].clone() for name in placed.packed}
        placed.run()
        self._device.synchronize(self._device.stream)
        placed.check_guards()
        for name, before in prepared.items():
            if not same_bits(placed.views[name], before):
                message = f"packed {name} was modified after the weights were prepared"
                finding = Finding(kind="input-modified", message=message, buffer=name)
                raise reject(Status.UNSAFE, "input-modified", message, findings=(finding,))
        for name, given in buffers.items():
            given.copy_(placed.views[name])
        return ()

    def place(self, steps: Sequence[Part], guard: int = GUARDS[0]) -> Placed:
        """Plans with memory for all of them together, ready to run there one after another; it holds anything.

        Raises Rejected for a plan that is not to run.
        """
        prepared = []
        for number, step in enumerate(steps):
            bound = admit(step.plan, step.shapes, step.sizes, WORKSPACE_BYTES)
            try:
                packing, ready = map(self._launcher.prepare, bound.parts)
            except Unlaunchable as error:
                raise reject(Status.INVALID, error.error_class, f"{error} at {text(step.sizes)}") from None
            of = f" of call {number}" if len(steps) > 1 else ""
            own = {b.name: b.name + of for b in bound.buffers if b.internal}
            prepared.append((packing, ready, {**step.names, **own}))
        return Placed(self._device, prepared, guard)

    def close(self) -> None:
        self._launcher.close()


@dataclass(frozen=True)
class Part:
    """A plan to run at ``sizes``; of its arguments but the workspaces their shapes, and what they are called in memory.

    Steps that call something alike share it: one's result is another's argument.
    """

    plan: LaunchPlan
    sizes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]


class Placed:
    """Plans at sizes in one piece of memory, every buffer between guard zones, which are full of ``guard``.

    prepared: each plan, in its two parts, with the names that its buffers have in memory.  views: the buffers as
    tensors, by name, in the shape that the first plan has for them.  workspaces, packed: the names of those.
    """

    def __init__(
        self, device: Device, prepared: Sequence[tuple[PreparedPlan, PreparedPlan, Mapping[str, str]]], guard: int
    ) -> None:
        self._device, self._guard = device, guard
        self._buffers: dict[str, Buffer] = {}
        for packing, plan, names in prepared:
            for buffer in (*packing.bound.buffers, *plan.bound.buffers):
                first = self._buffers.setdefault(names[buffer.name], buffer)
                assert (first.nbytes, first.dtype) == (buffer.nbytes, buffer.dtype), (names[buffer.name], first, buffer)
        self.workspaces, self.packed = (
            [name for name, buffer in self._buffers.items() if buffer.role == role] for role in ("workspace", "packed")
        )
        starts: dict[str, int] = {}
        at = 0
        for name, buffer in self._buffers.items():
            starts[name] = at + GUARD_BYTES
            at += GUARD_BYTES + _aligned(buffer.nbytes) + GUARD_BYTES
        try:
            memory = device.empty(at)
        except torch.OutOfMemoryError:
            message = f"the GPU has no {at / 2**30:.1f} GiB left for the plan's buffers"
            raise reject(Status.UNSUPPORTED, "gpu-memory", message) from None
        self._memory = memory  # lives as long as its addresses are used
        self._addresses = {name: memory.data_ptr() + start for name, start in starts.items()}
        self._prepared = [
            (packing, plan, {name: self._addresses[at] for name, at in names.items() if at in self._addresses})
            for packing, plan, names in prepared
        ]
        self.views: dict[str, torch.Tensor] = {}
        self._zones: list[tuple[str, torch.Tensor, bool]] = []  # (buffer, zone, whether it is the one behind it)
        for name, buffer in self._buffers.items():
            start = starts[name]
            end = start + buffer.nbytes
            flat = memory[start:end] if buffer.nbytes else torch.empty(0, dtype=torch.uint8, device=memory.device)
            self.views[name] = flat.view(torch_dtype(buffer.dtype)).reshape(buffer.shape)
            self._zones.append((name, memory[start - GUARD_BYTES : start], False))
            self._zones.append((name, memory[end : start + _aligned(buffer.nbytes) + GUARD_BYTES], True))
        for _, zone, _ in self._zones:
            zone.fill_(guard)

    def poison(self, value: float, names: Collection[str]) -> None:
        """Puts fills of the buffers of these names on the device's stream.

        They then hold what :func:`evaluator.judging.admission.poisoned` gives.
        """
        for name in names:
            buffer = self._buffers[name]
            element = element_bytes(buffer.dtype, poison_of(buffer.dtype, value))
            self._device.fill(self._addresses[name], element, math.prod(buffer.shape), self._device.stream)

    def pack(self) -> None:
        """Puts what prepares the plans' weights on the device's stream."""
        for packing, _, addresses in self._prepared:
            packing.run(addresses, self._device.stream)

    def run(self) -> None:
        """Puts all else of the plans' steps on the device's stream, in order."""
        for _, plan, addresses in self._prepared:
            plan.run(addresses, self._device.stream)

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
