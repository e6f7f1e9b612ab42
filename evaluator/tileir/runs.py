"""Long vectors of few changes, kept by runs: what many launches wrote of one large buffer fits in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_AT_ONCE = 2**24  # places whose indices are listed


@dataclass(frozen=True)
class Spans:
    """Places that lie in a row of them, as the longest spans: from each of ``begins``, int64, to before its end."""

    begins: np.ndarray
    ends: np.ndarray

    @staticmethod
    def of(begins: np.ndarray, ends: np.ndarray) -> Spans:
        """Of spans that may touch or lie over each other, in any order."""
        order = np.argsort(begins, kind="stable")
        begins, reach = begins[order], np.maximum.accumulate(ends[order])
        new = np.ones(len(begins), dtype=bool)
        new[1:] = begins[1:] > reach[:-1]
        last = np.ones(len(begins), dtype=bool)
        last[:-1] = new[1:]
        return Spans(begins[new], reach[last])

    def __or__(self, other: Spans) -> Spans:
        return Spans.of(np.concatenate([self.begins, other.begins]), np.concatenate([self.ends, other.ends]))

    def __le__(self, other: Spans) -> bool:
        """Whether all these places are among the other's."""
        if not len(self.begins) or not len(other.begins):
            return not len(self.begins)
        around = np.searchsorted(other.begins, self.begins, side="right") - 1
        return bool(np.all((around >= 0) & (self.ends <= other.ends[around])))

    def outside(self, length: int) -> int | None:
        """The first of ``length`` places that is none of these; None: all are."""
        if not len(self.begins) or self.begins[0] > 0:
            return 0 if length else None
        return int(self.ends[0]) if self.ends[0] < length else None

    def grouped(self, size: int) -> Spans:
        """The groups of ``size`` places, from the first on, of which all are among these."""
        begins, ends = -(-self.begins // size), self.ends // size
        return Spans(begins[begins < ends], ends[begins < ends])

    def parted(self, size: int) -> Spans:
        """The same where each place is ``size`` smaller ones."""
        return Spans(self.begins * size, self.ends * size)

    def meet(self, wanted: np.ndarray) -> bool:
        """Whether ``wanted``, a flag for each place, marks any of these."""
        return any(wanted[b:e].any() for b, e in zip(self.begins.tolist(), self.ends.tolist(), strict=True))


NOWHERE = Spans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Runs:
    """An int32 number for each of ``length`` places, kept by runs of equal ones.

    starts: where each run begins, ascending from 0; None where there are so many that each place has its number.
    """

    starts: np.ndarray | None
    numbers: np.ndarray
    length: int

    @staticmethod
    def of(each: np.ndarray) -> Runs:
        """The runs of a vector."""
        turns = each[1:] != each[:-1]
        if 2 * np.count_nonzero(turns) >= len(each):
            return Runs(None, each, len(each))
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(turns) + 1])
        return Runs(starts, each[starts], len(each))

    def first(self, length: int) -> Runs:
        """Those of the first ``length`` places."""
        if self.starts is None:
            return Runs(None, self.numbers[:length], length)
        kept = int(np.searchsorted(self.starts, length))
        return Runs(self.starts[:kept], self.numbers[:kept], length)

    def of_groups(self, size: int) -> Runs | None:
        """The number of each group of ``size`` places, which fill the length; None where a group has several."""
        if self.starts is not None:
            whole = not (self.starts % size).any()
            return Runs(self.starts // size, self.numbers, self.length // size) if whole else None
        groups = self.numbers.reshape(-1, size)
        return Runs(None, groups[:, 0], len(groups)) if (groups == groups[:, :1]).all() else None

    def places(self, number: int) -> np.ndarray:
        """The places, ascending, that have the number."""
        if self.starts is None:
            return np.flatnonzero(self.numbers == number)
        hit = self.numbers == number
        spans = zip(self.starts[hit].tolist(), self._ends()[hit].tolist(), strict=True)
        return np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(b, e) for b, e in spans)])

    def among(self, wanted: np.ndarray) -> set[int]:
        """The numbers of the places that ``wanted``, a flag for each, marks."""
        if self.starts is None:
            return set(np.unique(self.numbers[wanted]).tolist())
        hit = np.zeros(len(self.starts), dtype=bool)
        for begin in range(0, self.length, _AT_ONCE):
            places = np.flatnonzero(wanted[begin : begin + _AT_ONCE]) + begin
            hit[np.searchsorted(self.starts, places, side="right") - 1] = True
        return set(np.unique(self.numbers[hit]).tolist())

    def marked(self) -> Spans:
        """The places whose number is not 0."""
        if self.starts is None:
            edges = np.flatnonzero(np.diff(self.numbers != 0, prepend=False, append=False))
            return Spans(edges[::2], edges[1::2])
        hit = self.numbers != 0
        return Spans.of(self.starts[hit], self._ends()[hit])

    def _ends(self) -> np.ndarray:
        assert self.starts is not None
        return np.append(self.starts[1:], self.length)
