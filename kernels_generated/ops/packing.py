"""Weights that are prepared once for kernels that want them so, and used as long as they stay what they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernels_generated.runtime.bound import BoundPlan

Layouts = Mapping[BoundPlan, Sequence[torch.Tensor]]


class PackedWeights:
    """What ``ops.pack`` made of an operator's weights.  It lasts until :meth:`release`, or until they are gone.

    operator: its name.  forms: of the weights, as calls are told apart.  reason: why nothing was made; empty where
    something was.
    """

    def __init__(
        self,
        operator: str,
        weights: Sequence[torch.Tensor],
        forms: tuple[Any, ...],
        layouts: Layouts,
        reason: str,
        forget: Callable[[PackedWeights], None],
    ) -> None:
        self.operator, self.forms, self.reason = operator, forms, reason
        self._versions = [one._version for one in weights]
        # While their memory is theirs nobody else's tensor can lie there.
        self._memory = [StorageWeakRef(one.untyped_storage()) for one in weights]
        self._layouts, self._forget = dict(layouts), forget

    @property
    def nbytes(self) -> int:
        """Bytes of what was made."""
        return sum(tensor.nbytes for made in self._layouts.values() for tensor in made)

    @property
    def gone(self) -> bool:
        """Whether the memory of a weight was freed."""
        return any(one.expired() for one in self._memory)

    def current(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether the weights, which these are, were not changed in place since."""
        return [one._version for one in weights] == self._versions

    def layout(self, packing: BoundPlan) -> Sequence[torch.Tensor] | None:
        """What a plan whose weights are prepared so reads, in the order of its packed buffers; None: not made."""
        return self._layouts.get(packing)

    def release(self) -> None:
        """Frees what was made; the operator takes the weights as they are again.

        Nothing that runs, and no CUDA graph, may still need it.
        """
        self._forget(self)
        self._layouts, self.reason = {}, self.reason or "released"

    def __repr__(self) -> str:
        count = len(self._layouts)
        made = f"{self.nbytes:,} bytes in {count} layout{'' if count == 1 else 's'}" if count else self.reason
        return f"<packed weights of {self.operator}: {made}>"
