"""Vector clocks: which accesses of other blocks are ordered before what a block does now.

The happens-before relation of the memory model: a release on a location passes everything the block did to whoever
acquires there later.  Clock vectors have an entry a block (Fidge and Mattern, 1988); an access is remembered by its
block and epoch, the block's own entry at that time, and an element that several blocks accessed by all of theirs that
no later one is ordered after (Flanagan and Freund, "FastTrack", PLDI 2009).  Elements with the same accesses share
them: their mark is the number of that set.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Accesses = tuple[tuple[int, int], ...]  # (block, epoch), in order
FIRST_SET = -2  # the mark of the first set of accesses; those of the others lie below

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
        self._sets: list[Accesses] = []
        self._marks: dict[Accesses, int] = {}

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
        """The epochs of accesses by ``marks`` (0 where that is a set, which holds its own)."""
        return np.where(marks > 0, self._own[np.maximum(marks, 0)], 0).astype(np.int32)

    def several(self, blocks: np.ndarray) -> int:
        """The mark of an access that all these blocks (from 0) make now."""
        return self._mark({int(block): int(self._own[block + 1]) for block in blocks})

    def _mark(self, accesses: dict[int, int]) -> int:
        found = tuple(sorted(accesses.items()))
        if found not in self._marks:
            self._marks[found] = FIRST_SET - len(self._sets)
            self._sets.append(found)
        return self._marks[found]

    def _accesses(self, mark: int, epoch: int) -> Accesses:
        return ((mark - 1, epoch),) if mark > 0 else self._sets[FIRST_SET - mark] if mark <= FIRST_SET else ()

    def joined(self, marks: np.ndarray, epochs: np.ndarray, me: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Marks and epochs of elements that have ``marks`` and ``epochs`` and are accessed by ``me`` now."""
        now = self.now(me)
        new, new_epochs = me.copy(), now.copy()
        if not self.tracked:
            return new, new_epochs
        old = (marks != 0) & ((marks != me) | (marks <= FIRST_SET))
        kinds, place = np.unique(np.stack([marks[old], epochs[old], me[old]]), axis=1, return_inverse=True)
        made = np.zeros((2, kinds.shape[1]), dtype=np.int32)
        for k, (mark, epoch, own) in enumerate(kinds.T.tolist()):
            mine = dict(self._accesses(own, int(self._own[max(own, 0)])))
            before = {
                block: at
                for block, at in self._accesses(mark, epoch)
                if not any(self._before(block, at, reader) for reader in mine)
            }
            alone = own > 0 and not before
            made[:, k] = (own, mine[own - 1]) if alone else (self._mark(before | mine), 0)
        new[old], new_epochs[old] = made[:, place.reshape(-1)]
        return new, new_epochs

    def _before(self, block: int, epoch: int, other: int) -> bool:
        """Whether an access by ``block`` happened before what ``other`` does now."""
        return block == other or bool(self._vector(other)[block] >= epoch)

    def ordered(self, who: np.ndarray, others: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Whether each access that has the mark others[i], at epochs[i], happened before what who[i] does now."""
        if not self.tracked:
            return np.ones(len(who), dtype=bool)
        kinds, place = np.unique(np.stack([who, others, epochs]), axis=1, return_inverse=True)
        out = np.zeros(kinds.shape[1], dtype=bool)
        for k, (mine, mark, epoch) in enumerate(kinds.T.tolist()):
            readers, accesses = self._accesses(mine, 0), self._accesses(mark, epoch)
            out[k] = bool(readers and accesses) and all(
                self._before(block, at, reader) for block, at in accesses for reader, _ in readers
            )
        found: np.ndarray = out[place.reshape(-1)]
        return found
