"""Who touched what: shadow memory of one allocation during one launch.

Four marks an element: the block that last wrote it plainly, that read it plainly, that updated it atomically, that read
it atomically (a load that is not weak); 0 is nobody, ``MANY`` several blocks, what lies below a set of accesses of
:mod:`.clocks`, where these are kept.  Blocks are numbered from 1.  Marks are kept per *granule*, the smallest element
size seen, so that views of one buffer under different dtypes agree.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .windows import Window

MANY = -1
WRITE, READ, ATOMIC, ATOMIC_READ = "write", "read", "atomic", "atomic read"
# An access conflicts with these marks of other blocks.
CONFLICTS = {
    WRITE: (WRITE, READ, ATOMIC, ATOMIC_READ), READ: (WRITE, ATOMIC), ATOMIC: (WRITE, READ), ATOMIC_READ: (WRITE,),
}  # fmt: skip


class Shadow:
    """Marks of an allocation of ``nbytes``; ``epochs`` keeps, where wanted, the clock of the last access by kind."""

    def __init__(self, nbytes: int, granule: int, epochs: bool):
        self.nbytes, self.granule = nbytes, granule
        self.marks: dict[str, Tensor] = {}
        self.epochs: dict[str, Tensor] | None = {} if epochs else None

    def mark(self, kind: str) -> Tensor:
        """int32 marks of ``kind``, an entry a granule."""
        return self._array(self.marks, kind)

    def epoch(self, kind: str) -> Tensor:
        assert self.epochs is not None
        return self._array(self.epochs, kind)

    def _array(self, arrays: dict[str, Tensor], kind: str) -> Tensor:
        array = arrays.get(kind)
        if array is None:
            # numpy's zeros, not torch's: pages that nobody touches take no time.
            array = arrays[kind] = torch.from_numpy(np.zeros(-(-self.nbytes // self.granule), dtype=np.int32))
        return array

    def refine(self, size: int) -> int:
        """Makes granules of at most ``size`` bytes; gives the number of granules in an element of ``size``."""
        if size < self.granule:
            times = self.granule // size
            for arrays in (self.marks, self.epochs or {}):
                for kind, array in arrays.items():
                    arrays[kind] = array.repeat_interleave(times)
            self.granule = size
        return size // self.granule

    def window(self, window: Window, size: int) -> Window:
        """A window of elements of ``size`` as one of granules, with a trailing axis where an element has several."""
        times = self.refine(size)
        sizes, strides, offset = window
        if times == 1:
            return window
        return (*sizes, times), (*(s * times for s in strides), 1), offset * times

    def indices(self, index: Tensor, size: int) -> Tensor:
        """Element indices (1-d) as granule indices, [elements, granules an element]."""
        times = self.refine(size)
        return index[:, None] * times + torch.arange(times)
