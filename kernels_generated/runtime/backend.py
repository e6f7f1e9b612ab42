"""Who runs the plans of the operators: something for each of PyTorch's device types, chosen when a tensor lies there.

The CUDA driver serves ``cuda`` by itself.  Others register: ``evaluator.emulator.install()`` puts the emulator of Tile
IR in place for ``cpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .bound import BoundPlan
from .manifest import Manifest

Run = Callable[[Sequence[Any]], None]  # of a torch tensor for each buffer of the plan, in their order

NO_MEMORY = "one of the operator's tensors has no memory: its storage was resized to 0 bytes"


class NoKernel(LookupError):
    """A plan that this backend has no kernel for; the message says what is missing."""


class Backend(Protocol):
    """One device.  ``arch``: whose kernels it runs, as sm_90.  ``num_sms``: its multiprocessors."""

    arch: str
    num_sms: int

    def prepare(self, bound: BoundPlan, manifest: Manifest) -> Run:
        """What runs the plan, any number of times, on tensors of its buffers; it raises RuntimeError (``NO_MEMORY``)
        where one of these lies at address 0.

        Raises NoKernel, Unlaunchable, ManifestError.
        """


_INSTALLED: dict[str, Backend] = {}
_changes = [0]


def install(device_type: str, backend: Backend | None) -> None:
    """Has the operators run by ``backend`` on tensors of that device type (``cpu``); None takes it back."""
    if backend is None:
        _INSTALLED.pop(device_type, None)
    else:
        _INSTALLED[device_type] = backend
    _changes[0] += 1


def installed(device_type: str) -> Backend | None:
    """Who was installed for the device type."""
    return _INSTALLED.get(device_type)


def changes() -> int:
    """How often a backend was installed or taken back: what was chosen before is void after."""
    return _changes[0]
