"""What a launch does that no correct kernel does: findings as records, gathered while the machine runs.

Kinds of findings:

    out-of-bounds     an element outside the buffer that its address derives from
    view-extent       a view whose sizes reach beyond its buffer (found where an element there is touched)
    index             a tile that lies entirely outside its array (undefined), or partly under check_bounds=False
    misaligned        an address that is no multiple of the element's size
    race              an element written by one block and written or read by another, unordered
    written-twice     an element that one tile writes more than once
    input-modified    a write, or an atomic, to a buffer that may only be read
    divide-by-zero, shift, loop-step, float-to-int, sub-tile      operands for which an operation is undefined (elements
                      of tiles, which may be padding that is thrown away, only give ``notes``, as do values that are not
                      as the kernel assumes)
    assert            an assertion of the kernel's own that failed
    assumption        an argument that breaks what the kernel was compiled to assume (divisibility, bounds)
    overlap           array arguments that share memory although the kernel assumes that they do not

Two accesses do not race if both are atomic, or if acquire and release operations order them: blocks carry vector
clocks, which synchronising atomics of few elements pass on (:data:`.provenance.SYNC_ELEMENTS`).  Reads are only tracked
in buffers that the kernel may write, so that read-only inputs cost nothing.  One finding is kept for each kind,
operation and buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import ir
from .clocks import Clocks
from .machine import Frame, Run
from .memory import MEMORY_BITS, Allocation, Memory, memory_dtype
from .program import Program
from .promises import PassedArray, broken
from .provenance import SYNC_ELEMENTS
from .shadow import ATOMIC, ATOMIC_READ, CONFLICTS, MANY, READ, WRITE, Shadow
from .tile_views import PerLane, TileView
from .windows import Lattice, Piece, Window

_ORDERS = frozenset({"acquire", "release", "acq_rel"})
BLOCK_SCOPE = "tl_blk"  # of atomics that are so for their own block alone
SCATTERING = frozenset({"store_view_tko", "store_ptr_tko", "touch_view", "touch_pointer"})
TWICE = "a tile writes an element of its array twice, and which value stays is not defined"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing found.  ``block`` is (x, y, z), ``element`` an index into ``buffer`` in elements of the access.

    ``launch`` counts the sanitizer's launches from 0.  Fields that do not apply are None or empty.
    """

    kind: str
    message: str
    launch: int
    block: tuple[int, int, int] | None = None
    op: str = ""
    file: str = ""
    line: int = 0
    buffer: str = ""
    element: int | None = None

    def __str__(self) -> str:
        place = f" at {self.file}:{self.line}" if self.file else ""
        block = f" in block {self.block}" if self.block else ""
        return f"{self.kind}: {self.message}{block}{place}"


class Sanitizer:
    """Watches the launches of one plan, which share ``memory`` (buffers keep their names and addresses).

    ``read_only``: by name, what the buffers are that no launch may write; who runs launches may change it in between.
    """

    def __init__(self, read_only: Mapping[str, str] | None = None) -> None:
        self.memory = Memory()
        self.read_only = dict(read_only or {})
        self.findings: list[Violation] = []
        self.notes: list[Violation] = []
        self.launches = 0
        self._seen: set[tuple[Any, ...]] = set()
        self._shadows: dict[int, Shadow] = {}
        self._written: dict[int, Tensor] = {}
        self._watched: set[int] | None = None
        self._clocks: Clocks | None = None
        self._run: Run | None = None
        self._start = 0

    # -- the launch

    def begin(self, run: Run, program: Program, words: Sequence[Any], arrays: Sequence[PassedArray]) -> None:
        """A launch starts: forgets the marks of the one before, checks the arguments."""
        self._run, self._start = run, len(self.findings)
        self._seen.clear()
        self._shadows.clear()
        blocks = run.grid[0] * run.grid[1] * run.grid[2]
        self._clocks = Clocks(blocks) if program.synchronises else None
        self._watched = None
        if program.writes is not None:
            owners = [self.memory.owner(int(words[p])) for p in program.writes]
            self._watched = {a.index for a in owners if a is not None}
        for promise in broken(program, words, arrays, self.memory):
            self.add(promise.kind, promise.message, op=promise.op, allocation=promise.allocation)

    def end(self) -> tuple[Violation, ...]:
        """A launch ends: its findings."""
        for index, shadow in self._shadows.items():
            self._note_written(self.memory.allocations[index], shadow)
        self.launches += 1
        self._shadows.clear()
        return tuple(self.findings[self._start :])

    def _note_written(self, allocation: Allocation, shadow: Shadow) -> None:
        touched = torch.zeros(allocation.nbytes, dtype=torch.bool)
        for kind in (WRITE, ATOMIC):
            if kind in shadow.marks:
                touched |= (shadow.marks[kind] != 0).repeat_interleave(shadow.granule)[: allocation.nbytes]
        before = self._written.get(allocation.index)
        self._written[allocation.index] = touched if before is None else before | touched

    def written(self, tensor: Tensor) -> Tensor:
        """Which elements of ``tensor`` (CPU, registered) any launch wrote, as a bool tensor of its shape."""
        allocation = self.memory.register(tensor)
        mask = self._written.get(allocation.index)
        if mask is None:
            return torch.zeros(tensor.shape, dtype=torch.bool)
        size = tensor.element_size()
        whole = mask[: allocation.nbytes // size * size].reshape(-1, size).all(1)
        return torch.as_strided(whole, tensor.shape, tensor.stride(), int(tensor.storage_offset())).clone()

    # -- findings

    def add(
        self, kind: str, message: str, *, op: ir.Op | None = None, block: int | None = None,
        allocation: Allocation | None = None, element: int | None = None, note: bool = False,
    ) -> None:  # fmt: skip
        """Records a finding (or a note), unless one of this kind, operation and buffer is known in this launch."""
        key = (kind, id(op), None if allocation is None else allocation.index, message if op is None else "")
        if key in self._seen:
            return
        self._seen.add(key)
        where = self._run.module.location(op) if self._run is not None and op is not None else None
        coordinates = None
        if block is not None and self._run is not None:
            x, y, z = self._run.coordinates(np.array([block]))
            coordinates = (int(x[0]), int(y[0]), int(z[0]))
        name = "" if allocation is None else allocation.name
        (self.notes if note else self.findings).append(
            Violation(
                kind, message, self.launches, coordinates, op.name if op is not None else "",
                where.file if where else "", where.line if where else 0, name, element,
            )
        )  # fmt: skip

    def report(self, frame: Frame, op: ir.Op, kind: str, message: str, bad: Any, note: bool = False) -> None:
        """A finding about an operation's operands; ``bad`` marks lanes (and elements) or is None."""
        block: int | None = int(frame.ids[0])
        if bad is not None:
            array: np.ndarray = np.asarray(bad)
            flags = array.reshape(array.shape[0], -1).any(1)
            if not flags.any():
                return
            if flags.size == len(frame.ids):
                block = int(frame.ids[int(np.flatnonzero(flags)[0])])
        self.add(kind, message, op=op, block=block, note=note)

    def stray(self, frame: Frame, op: ir.Op, index: Tensor, where: Tensor | None, message: str, access: str) -> None:
        """An access outside all allocations or outside its own: ``index`` where ``where``."""
        flags = torch.ones(index.shape, dtype=torch.bool) if where is None else where
        position = int(flags.reshape(-1).nonzero()[0])
        lane = position // max(flags[0].numel(), 1)
        block = int(frame.ids[lane if flags.shape[0] == len(frame.ids) else 0])
        element = int(index.expand(flags.shape).reshape(-1)[position])
        self.add("out-of-bounds", f"{access} of {message}", op=op, block=block, element=element)

    # -- views

    def indices(
        self, frame: Frame, op: ir.Op, view: TileView, at: Sequence[PerLane], sparse: Tensor | None = None
    ) -> None:
        """Tiles entirely outside their array; partly outside where the kernel promised that they are not."""
        promised = op.attrs.get("inbounds", ())
        for k, (start, extent, tile) in enumerate(zip(at, view.extents, view.kind.tile, strict=True)):
            if sparse is not None and k == view.kind.sparse_dim:
                continue
            outside = np.greater_equal(start, extent).reshape(-1)
            if outside.any():
                self.report(frame, op, "index", f"a tile entirely outside its array along axis {k}", outside)
            elif k < len(promised) and promised[k]:
                over = np.greater(np.add(start, tile), extent).reshape(-1)
                if over.any():
                    message = f"check_bounds=False, but the tile reaches over the array's end along axis {k}"
                    self.report(frame, op, "index", message, over)

    # -- memory

    def _shadow(self, allocation: Allocation, size: int, access: str) -> Shadow | None:
        if access in (READ, ATOMIC_READ) and self._watched is not None and allocation.index not in self._watched:
            return None
        shadow = self._shadows.get(allocation.index)
        if shadow is None:
            shadow = self._shadows[allocation.index] = Shadow(allocation.nbytes, size, self._clocks is not None)
        return shadow

    def windows(
        self, frame: Frame, op: ir.Op, allocation: Allocation, size: int, lattice: Lattice,
        found: Sequence[tuple[Piece, Window]], access: str,
    ) -> None:  # fmt: skip
        """Strided accesses: ``found`` are windows of elements of ``size`` bytes, rows of ``lattice``."""
        shadow = self._shadow(allocation, size, access)
        if shadow is None or not found:
            return
        self._may_write(frame, op, allocation, access)
        rows, shared = _row_blocks(frame.ids[lattice.lanes], lattice, self._several)
        if shared is not None and access == WRITE:
            _, first = shared
            message = f"blocks write the same tile of {_quote(allocation)}: each needs its own, or atomics"
            self.add("race", message, op=op, block=int(first), allocation=allocation)
        for piece, window in found:
            granules = shadow.window(window, size)
            me = rows[piece.where[: len(lattice.axes)]]
            me = me.reshape(*me.shape, *(1,) * (len(granules[0]) - me.dim()))
            self._check(op, allocation, shadow, access, lambda a, g=granules: torch.as_strided(a, *g), me, granules)  # type: ignore[misc]

    def _check(
        self, op: ir.Op, allocation: Allocation, shadow: Shadow, access: str, view: Any, me: Tensor, place: Window
    ) -> None:
        for kind in CONFLICTS[access]:
            if kind not in shadow.marks:
                continue
            marks = view(shadow.mark(kind))
            bad = (marks != 0) & ((marks != me) | (marks < 0))  # of several blocks none is alone
            if not bad.any():
                continue
            self._conflict(op, allocation, shadow, access, kind, bad, marks, me, view, place)
        mine = view(shadow.mark(access))
        epochs = None if self._clocks is None else view(shadow.epoch(access))
        self._enter(access, me.expand(mine.shape), mine, epochs)

    def _several(self, blocks: np.ndarray) -> int:
        """The mark of what several blocks do at once."""
        return MANY if self._clocks is None else self._clocks.several(blocks)

    def _enter(self, access: str, me: Tensor, marks: Tensor, epochs: Tensor | None) -> None:
        """Notes in ``marks`` (and ``epochs``), of elements each once, that ``me`` access them."""
        if self._clocks is None or epochs is None:
            other = (marks != 0) & (marks != me)
            marks.copy_(me if access == WRITE else torch.where(other, MANY, me))
            return
        before = torch.zeros_like(marks) if access == WRITE else marks
        new, now = self._clocks.joined(before.numpy().copy(), epochs.numpy().copy(), me.numpy().copy())
        marks.copy_(torch.from_numpy(new))
        epochs.copy_(torch.from_numpy(now))

    def _conflict(
        self, op: ir.Op, allocation: Allocation, shadow: Shadow, access: str, kind: str, bad: Tensor, marks: Tensor,
        me: Tensor, view: Any, place: Window,
    ) -> None:  # fmt: skip
        who = me.expand(bad.shape)[bad]
        others = marks[bad]
        chosen = 0
        if self._clocks is not None:
            epochs = view(shadow.epoch(kind))[bad]
            ordered = self._clocks.ordered(who.numpy(), others.numpy(), epochs.numpy())
            if ordered.all():
                return
            chosen = int(np.flatnonzero(~ordered)[0])
        at = bad.nonzero()[chosen].tolist()
        granule = place[2] + sum(i * s for i, s in zip(at, place[1], strict=True))
        self._race(op, allocation, access, kind, int(who[chosen]), int(others[chosen]), granule * shadow.granule)

    def _race(
        self, op: ir.Op, allocation: Allocation, access: str, kind: str, who: int, other: int, byte: int
    ) -> None:  # fmt: skip
        verb = {WRITE: "written", READ: "read", ATOMIC: "updated atomically", ATOMIC_READ: "read atomically"}
        by = "other blocks" if other < 0 else f"block {self._name(other)}"
        elem = byte // self._element_size(op)
        here = "several blocks" if who < 0 else None
        message = (
            f"element {elem} of {_quote(allocation)} is {verb[access]}{f' by {here}' if here else ''}, and was "
            f"{verb[kind]} by {by}, unordered"
        )
        block = None if who < 0 else who - 1
        self.add("race", message, op=op, block=block, allocation=allocation, element=elem)

    def _name(self, mark: int) -> str:
        assert self._run is not None
        x, y, z = self._run.coordinates(np.array([mark - 1]))
        return f"({int(x[0])}, {int(y[0])}, {int(z[0])})"

    def _element(self, op: ir.Op) -> str:
        for kind in op.operand_types:
            if isinstance(kind, ir.TileViewType):
                return kind.tensor.elem
            if isinstance(kind, ir.TileType) and isinstance(kind.elem, ir.PtrElem):
                return kind.elem.pointee
        return "i8"

    def _element_size(self, op: ir.Op) -> int:
        return memory_dtype(self._element(op)).itemsize

    def elements(
        self, frame: Frame, op: ir.Op, allocation: Allocation, index: Tensor, active: Tensor | None, size: int,
        access: str,
    ) -> None:  # fmt: skip
        """Accesses by element index (of ``size`` bytes) where ``active``; the first axis is lanes or 1."""
        if op.attrs["scope"] == BLOCK_SCOPE:  # for other blocks no more than what is not atomic
            access = READ if access == READ else WRITE
        elif access in (READ, WRITE) and op.attrs["semantics"] != "weak":
            access = ATOMIC_READ if access == READ else ATOMIC
        shadow = self._shadow(allocation, size, access)
        lanes = len(frame.ids)
        if self._clocks is not None and access in (ATOMIC, ATOMIC_READ):
            self._synchronise(frame, op, allocation, index, active)
        if shadow is None:
            return
        self._may_write(frame, op, allocation, access)
        blocks = torch.from_numpy(frame.ids + 1).to(torch.int32)
        if index.shape[0] == 1 and lanes > 1:  # all lanes access the same
            blocks = torch.full((1,), self._several(frame.ids), dtype=torch.int32)
        me = blocks.reshape(-1, *(1,) * (index.dim() - 1)).expand(index.shape)
        flat = index.reshape(-1) if active is None else index[active]
        who = me.reshape(-1) if active is None else me[active]
        if access == WRITE:
            self._inside_batch(op, allocation, flat, who)
        where = shadow.indices(flat, size)
        self._check_scattered(op, allocation, shadow, access, where, who[:, None])

    def _may_write(self, frame: Frame, op: ir.Op, allocation: Allocation, access: str) -> None:
        role = self.read_only.get(allocation.name)
        if role is not None and access in (WRITE, ATOMIC):
            message = f"{role} {allocation.name} is written"
            self.add("input-modified", message, op=op, block=int(frame.ids[0]), allocation=allocation)

    def _inside_batch(self, op: ir.Op, allocation: Allocation, flat: Tensor, who: Tensor) -> None:
        """Writes of two blocks of the batch to one element in one operation, which nothing can order, or of one."""
        if bool((who < 0).any()):
            message = f"blocks write the same element of {_quote(allocation)}"
            self.add("race", message, op=op, allocation=allocation, element=int(flat[0]))
            return
        if flat.numel() < 2:
            return
        order = torch.argsort(flat, stable=True)
        at, by = flat[order], who[order]
        same = at[1:] == at[:-1]
        clash = same & (by[1:] != by[:-1])
        if clash.any():
            k = int(clash.nonzero()[0])
            size = self._element_size(op)
            self._race(op, allocation, WRITE, WRITE, int(by[k + 1]), int(by[k]), int(at[k]) * size)
        elif same.any() and op.name in SCATTERING and MEMORY_BITS[self._element(op)] >= 8:  # packed ones share bytes
            k = int(same.nonzero()[0])
            block, element = int(by[k]) - 1, int(at[k])
            self.add("written-twice", TWICE, op=op, block=block, allocation=allocation, element=element)

    def _check_scattered(
        self, op: ir.Op, allocation: Allocation, shadow: Shadow, access: str, where: Tensor, who: Tensor
    ) -> None:
        me = who.expand(where.shape)
        for kind in CONFLICTS[access]:
            if kind not in shadow.marks:
                continue
            marks = shadow.mark(kind)[where]
            bad = (marks != 0) & ((marks != me) | (marks < 0))
            if not bad.any():
                continue
            others, mine = marks[bad], me[bad]
            chosen = 0
            if self._clocks is not None:
                epochs = shadow.epoch(kind)[where][bad]
                ordered = self._clocks.ordered(mine.numpy(), others.numpy(), epochs.numpy())
                if ordered.all():
                    continue
                chosen = int(np.flatnonzero(~ordered)[0])
            granule = int(where[bad][chosen])
            self._race(op, allocation, access, kind, int(mine[chosen]), int(others[chosen]), granule * shadow.granule)
        marks = shadow.mark(access)
        times = None if self._clocks is None else shadow.epoch(access)
        before = marks[where]
        marks[where] = me
        together = marks[where] != me  # several blocks of the batch at one element: one of them stands there now
        marks[where] = before
        for some in _parted(where, me, together):
            at, by = where[some], me[some]
            now = marks[at]
            then = None if times is None else times[at]
            self._enter(access, by, now, then)
            marks[at] = now
            if times is not None and then is not None:
                times[at] = then

    def _synchronise(
        self, frame: Frame, op: ir.Op, allocation: Allocation, index: Tensor, active: Tensor | None
    ) -> None:  # fmt: skip
        assert self._clocks is not None
        order = op.attrs["semantics"]
        if op.attrs["scope"] == BLOCK_SCOPE or order not in _ORDERS or index[0].numel() > SYNC_ELEMENTS:
            return
        spread = index.expand(len(frame.ids), *index.shape[1:])
        chosen = torch.ones(spread.shape, dtype=torch.bool) if active is None else active.expand(spread.shape)
        for lane, block in enumerate(frame.ids.tolist()):
            for element in spread[lane][chosen[lane]].tolist():
                self._clocks.synchronise(block, (allocation.index, element), order)


def _parted(where: Tensor, me: Tensor, together: Tensor) -> Iterator[Tensor]:
    """Masks of ``where`` that each hold an element of one block alone: all, or one for each block that shares any."""
    shared = torch.isin(where, where[together]) if bool(together.any()) else together
    if bool((~shared).any()):
        yield ~shared
    for mark in torch.unique(me[shared]):
        yield shared & (me == mark)


def _quote(allocation: Allocation) -> str:
    return repr(allocation.name) if allocation.name else f"allocation {allocation.index}"


def _row_blocks(
    ids: np.ndarray, lattice: Lattice, several: Callable[[np.ndarray], int]
) -> tuple[Tensor, tuple[int, int] | None]:
    """The block (from 1) that accesses each row of the lattice, shaped as its axes; a row that several share.

    ids: the blocks of the lattice's lanes.
    several: the mark of a row of several blocks.
    """
    if lattice.inverse is None and lattice.axes:
        return torch.from_numpy(ids + 1).to(torch.int32).reshape(lattice.counts), None
    if not lattice.axes:
        if len(ids) == 1:
            return torch.tensor(int(ids[0]) + 1, dtype=torch.int32), None
        return torch.tensor(several(ids), dtype=torch.int32), (0, int(ids[1]))
    assert lattice.inverse is not None
    blocks = np.zeros(lattice.rows, dtype=np.int32)
    blocks[lattice.inverse] = ids + 1
    many = np.bincount(lattice.inverse, minlength=lattice.rows) > 1
    for shared_row in np.flatnonzero(many).tolist():
        blocks[shared_row] = several(ids[lattice.inverse == shared_row])
    shared = None
    if many.any():
        row = int(np.flatnonzero(many)[0])
        shared = (row, int(ids[np.flatnonzero(lattice.inverse == row)[-1]]))
    return torch.from_numpy(blocks).reshape(lattice.counts), shared
