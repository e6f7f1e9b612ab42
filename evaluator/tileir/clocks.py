"""Vector clocks: which accesses of other blocks are ordered before what a block does now.

The happens-before relation of the memory model: a release on a location passes everything the block did to whoever
acquires there later.  Clock vectors have an entry a block (Fidge and Mattern, 1988); accesses are remembered by epoch,
the block's own entry at that time (Flanagan and Freund, "FastTrack", PLDI 2009).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .shadow import MANY

# Clocks of all blocks take blocks² · 4 bytes at most; larger grids are taken as ordered by any synchronisation.
MAX_BLOCKS = 4096


class Clocks:
    """The clocks of the blocks of one launch; marks number blocks from 1, as in shadow memory."""

    def __init__(self, blocks: int):
        self.blocks = blocks
        self.tracked = blocks <= MAX_BLOCKS
        self._clock: dict[int, np.ndarray] = {}
        self._location: dict[Any, np.ndarray] = {}
        self._own = np.ones(blocks + 1, dtype=np.int32)  # by mark; entry 0 is unused
        self._touched: dict[tuple[int, str], np.ndarray] = {}

    def _vector(self, block: int) -> np.ndarray:
        vector = self._clock.get(block)
        if vector is None:
            vector = self._clock[block] = np.zeros(self.blocks, dtype=np.int32)
            vector[block] = self._own[block + 1]
        return vector

    def synchronise(self, block: int, location: Any, order: str) -> None:
        """Block (from 0) runs an atomic with ordering acquire, release or acq_rel on ``location``."""
        if not self.tracked:
            return
        mine = self._vector(block)
        there = self._location.get(location)
        if order != "release" and there is not None:
            np.maximum(mine, there, out=mine)
        if order != "acquire":
            if there is None:
                self._location[location] = mine.copy()
            else:
                np.maximum(there, mine, out=there)
            self._own[block + 1] += 1
            mine[block] = self._own[block + 1]

    def now(self, marks: np.ndarray) -> np.ndarray:
        """The epochs of accesses by ``marks`` (MANY: 0, never asked for)."""
        return np.where(marks > 0, self._own[np.maximum(marks, 0)], 0).astype(np.int32)

    def touched(self, allocation: int, access: str, marks: np.ndarray) -> None:
        """Remembers that the blocks ``marks`` accessed an allocation now, for elements that many blocks accessed."""
        last = self._touched.setdefault((allocation, access), np.zeros(self.blocks, dtype=np.int32))
        for mark in np.unique(marks):
            if mark == MANY:
                last[:] = np.maximum(last, self._own[1:])
            else:
                last[mark - 1] = self._own[mark]

    def ordered(
        self, who: np.ndarray, others: np.ndarray, epochs: np.ndarray, allocation: int, access: str
    ) -> np.ndarray:
        """Whether each access by others[i] at epochs[i] happened before what who[i] does now."""
        if not self.tracked:
            return np.ones(len(who), dtype=bool)
        out = np.zeros(len(who), dtype=bool)
        for mark in np.unique(who):
            if mark == MANY:
                continue
            clock = self._vector(int(mark) - 1)
            here = who == mark
            single = here & (others > 0)
            out[single] = clock[others[single] - 1] >= epochs[single]
            if (here & (others == MANY)).any():
                last = self._touched.get((allocation, access))
                if last is not None:
                    late = last > clock
                    late[int(mark) - 1] = False
                    out[here & (others == MANY)] = not late.any()
        return out
