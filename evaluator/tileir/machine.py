"""Control flow of the emulator: blocks of a grid run in lockstep, and part where their paths part.

A :class:`Frame` is a set of *lanes* (blocks of the grid, by linear number, ascending) and an environment of values, one
slot a value number.  A value is a tensor whose first axis counts lanes, or has size 1 where all lanes agree.  Straight
code is a list of *steps*, callables on a frame.  Control operations take a frame and give back the frame that goes on
(fewer lanes, if some left) and the *exits* of those that left: by yield, continue, break or return.

Nothing here knows what an operation computes; :mod:`.program` binds that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from . import ir
from .memory import Allocation, Memory
from .tile_views import PerLane, TileView
from .windows import Lattice, Piece, Window

YIELD, CONTINUE, BREAK, RETURN = "yield", "continue", "break", "return"


@dataclass(frozen=True, slots=True)
class StepLimit:
    """How a kernel ended that was stopped: it ran out of time, or of loop iterations.

    ``location`` is that of the loop, or of the operation after which the time was over.
    """

    message: str
    iterations: int
    location: ir.Location | None = None
    in_loop: bool = False


@dataclass(frozen=True, slots=True)
class AssertionFailure:
    """An ``assert`` of a kernel that did not hold in a block (x, y, z)."""

    message: str
    block: tuple[int, int, int]
    location: ir.Location | None = None
    op: ir.Op | None = field(default=None, repr=False, compare=False)


class Stopped(Exception):
    """Raised through the machine when a limit is hit; the launch turns it into its ``limit`` record."""

    def __init__(self, limit: StepLimit):
        super().__init__(limit.message)
        self.limit = limit


class Watcher(Protocol):
    """Who is told of what a launch does, as it does it: the sanitizer.  It changes nothing."""

    def report(self, frame: Frame, op: ir.Op, kind: str, message: str, bad: Any, note: bool = False) -> None:
        """Something is wrong; ``bad`` marks lanes (and elements), None stands for all."""

    def indices(
        self, frame: Frame, op: ir.Op, view: TileView, at: Sequence[PerLane], sparse: Tensor | None = None
    ) -> None:
        """``op`` is about to access the tile of ``view`` that begins ``at``."""

    def windows(
        self, frame: Frame, op: ir.Op, allocation: Allocation, size: int, lattice: Lattice,
        found: Sequence[tuple[Piece, Window]], access: str,
    ) -> None:  # fmt: skip
        """Strided windows of elements of ``size`` bytes were accessed, by ``lattice.lanes``."""

    def elements(
        self, frame: Frame, op: ir.Op, allocation: Allocation, index: Tensor, active: Tensor | None, size: int,
        access: str,
    ) -> None:  # fmt: skip
        """Elements of ``size`` bytes are about to be accessed where ``active``, by index; its first axis is lanes."""

    def stray(self, frame: Frame, op: ir.Op, index: Tensor, where: Tensor | None, message: str, access: str) -> None:
        """An access outside all allocations or outside its own: ``index`` where ``where``."""


class Exit(NamedTuple):
    """Lanes that leave a region: how, which blocks, with which values."""

    kind: str
    ids: np.ndarray
    values: list[Any]


@dataclass(eq=False, slots=True)
class Run:
    """What is common to all frames of one launch.  ``deadline`` is a ``time.monotonic()`` value or None."""

    module: ir.Module
    memory: Memory
    grid: tuple[int, int, int]
    padding_fill: float
    watcher: Watcher | None
    write: Callable[[str], object]
    max_iterations: int
    deadline: float | None
    undefined: float | None = None  # see :func:`.launch.run`
    iterations: int = 0
    padded: bool = False  # whether a load has taken elements outside an array that no padding value was given for
    asserts: list[AssertionFailure] = field(default_factory=list)

    def failed_assert(self, frame: Frame, op: ir.Op, holds: np.ndarray) -> None:
        """Records the first failure of each ``assert`` with a block in which it does not hold; the kernel goes on."""
        if any(a.op is op for a in self.asserts):
            return
        lane = int(np.flatnonzero(~holds.reshape(len(holds), -1).all(1))[0])
        x, y, z = (int(c[0]) for c in self.coordinates(frame.ids[lane : lane + 1]))
        self.asserts.append(AssertionFailure(op.attrs["message"], (x, y, z), self.module.location(op), op))
        if self.watcher is not None:
            message = f"the kernel's assertion {op.attrs['message']!r} does not hold"
            self.watcher.report(frame, op, "assert", message, ~holds)

    def tick(self, op: ir.Op) -> None:
        """Counts a loop iteration (of all lanes together).  Raises Stopped past a limit."""
        self.iterations += 1
        if self.iterations > self.max_iterations:
            self._stop(f"more than {self.max_iterations} loop iterations", op)
        self.check_time(op)

    def check_time(self, op: ir.Op | None = None) -> None:
        """Raises Stopped past the deadline."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            self._stop("the time allowed is over", op)

    def _stop(self, why: str, op: ir.Op | None) -> None:
        where = None if op is None else self.module.location(op)
        in_loop = op is not None and op.name in ("for", "loop")
        place = ""
        if where is not None and in_loop:
            place = f" in the loop at {where} (blocks run in order: one that waits for a later one never ends)"
        elif where is not None:
            place = f" at {where}"
        raise Stopped(StepLimit(f"stopped: {why}{place}", self.iterations, where, in_loop))

    def coordinates(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Block coordinates (x, y, z) of linear numbers; x runs fastest."""
        x, y, _ = self.grid
        return ids % x, ids // x % y, ids // (x * y)


class Frame:
    """Lanes that run together and what they know."""

    __slots__ = ("env", "ids", "run")

    def __init__(self, run: Run, ids: np.ndarray, env: list[Any]):
        self.run, self.ids, self.env = run, ids, env

    def subset(self, positions: np.ndarray, keep: Sequence[int] | None = None) -> Frame:
        """The lanes at ``positions`` with the values ``keep`` (default: all that are known)."""
        env: list[Any] = [None] * len(self.env)
        index = torch.from_numpy(positions)
        for slot in range(len(env)) if keep is None else keep:
            env[slot] = take(self.env[slot], index)
        return Frame(self.run, self.ids[positions], env)


def take(value: Any, index: Tensor) -> Any:
    """A value's lanes at ``index``; uniform values and tokens stay as they are."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        return value.take(index)
    if value.shape[0] == 1:
        return value
    if 0 not in value.stride():
        return value.index_select(0, index)
    # Broadcast along some dimensions: those stay views, only what is there is copied.
    small = value
    for axis, stride in enumerate(value.stride()):
        if axis and stride == 0:
            small = small.narrow(axis, 0, 1)
    return small.index_select(0, index).expand(len(index), *value.shape[1:])


Step = Callable[[Frame], None]
Control = Callable[[Frame], "tuple[Frame | None, list[Exit]]"]


@dataclass(eq=False, slots=True)
class Block:
    """A region ready to run: straight runs of steps, each followed by a control operation (None: the end)."""

    arguments: tuple[int, ...]
    segments: list[tuple[list[Step], Control | None]]
    kind: str
    operands: tuple[int, ...]
    captures: tuple[int, ...]

    def run(self, frame: Frame) -> list[Exit]:
        """Runs ``frame``'s lanes to where they leave; their exits partition them."""
        exits: list[Exit] = []
        for steps, control in self.segments:
            for step in steps:
                step(frame)
            if control is None:
                break
            rest, left = control(frame)
            exits += left
            if rest is None:
                return exits
            frame = rest
        env = frame.env
        exits.append(Exit(self.kind, frame.ids, [env[v] for v in self.operands]))
        return exits


def merge(exits: Sequence[Exit]) -> tuple[np.ndarray, list[Any]]:
    """All lanes of ``exits`` in ascending order, and their values side by side."""
    if len(exits) == 1:
        return exits[0].ids, exits[0].values
    ids = np.concatenate([e.ids for e in exits])
    order = np.argsort(ids)
    index = torch.from_numpy(order)
    counts = [len(e.ids) for e in exits]
    values = [_merge_values(list(column), counts, index) for column in zip(*(e.values for e in exits), strict=True)]
    return ids[order], values


def _merge_values(parts: list[Any], counts: list[int], order: Tensor) -> Any:
    first = parts[0]
    if all(p is first for p in parts) and (first is None or first.shape[0] == 1):  # tokens are None
        return first
    spread = [p.expand(n, *p.shape[1:]) for p, n in zip(parts, counts, strict=True)]
    return torch.cat(spread).index_select(0, order)


def _go_on(frame: Frame, leaving: Sequence[Exit], results: Sequence[int]) -> Frame | None:
    """The frame after a control operation whose ``leaving`` lanes go on with values for ``results``."""
    if not leaving:
        return None
    ids, values = merge(leaving)
    if len(ids) != len(frame.ids):
        frame = frame.subset(np.searchsorted(frame.ids, ids))
    for slot, value in zip(results, values, strict=True):
        frame.env[slot] = value
    return frame


@dataclass(eq=False, slots=True)
class If:
    op: ir.Op
    then: Block
    other: Block

    def __call__(self, frame: Frame) -> tuple[Frame | None, list[Exit]]:
        chosen = frame.env[self.op.operands[0]].numpy()
        if chosen.all():
            exits = self.then.run(frame)
        elif not chosen.any():
            exits = self.other.run(frame)
        else:
            yes, no = np.flatnonzero(chosen), np.flatnonzero(~chosen)
            exits = self.then.run(frame.subset(yes, self.then.captures))
            exits += self.other.run(frame.subset(no, self.other.captures))
        yields = [e for e in exits if e.kind == YIELD]
        return _go_on(frame, yields, self.op.results), [e for e in exits if e.kind != YIELD]


@dataclass(eq=False, slots=True)
class Loop:
    """``for`` and ``loop``: both carry values; ``for`` counts, ``loop`` ends by break."""

    op: ir.Op
    body: Block
    counted: bool

    def __call__(self, frame: Frame) -> tuple[Frame | None, list[Exit]]:
        op, env = self.op, frame.env
        count = _Counter(op, frame) if self.counted else None
        carried = [env[v] for v in op.operands[3 if self.counted else 0 :]]
        arguments = self.body.arguments[1 if self.counted else 0 :]
        done: list[Exit] = []
        returned: list[Exit] = []
        active, k = frame, 0
        while True:
            if count is not None:
                over = count.over(k)
                if over is True:
                    done.append(Exit(BREAK, active.ids, carried))
                    break
                if over is not False:
                    out, stay = np.flatnonzero(over), np.flatnonzero(~over)
                    leaving = torch.from_numpy(out)
                    done.append(Exit(BREAK, active.ids[out], [take(c, leaving) for c in carried]))
                    active, carried = self._shrink(active, stay, carried)
                    count.shrink(stay)
                active.env[self.body.arguments[0]] = count.value(k)
            frame.run.tick(op)
            for slot, value in zip(arguments, carried, strict=True):
                active.env[slot] = value
            k += 1
            exits = self.body.run(active)
            if len(exits) == 1 and exits[0].kind == CONTINUE and len(exits[0].ids) == len(active.ids):
                carried = exits[0].values
                continue
            done += [e for e in exits if e.kind == BREAK]
            returned += [e for e in exits if e.kind == RETURN]
            going = [e for e in exits if e.kind == CONTINUE]
            if not going:
                break
            ids, carried = merge(going)
            if len(ids) != len(active.ids):
                stay = np.searchsorted(active.ids, ids)
                active = active.subset(stay, self.body.captures)
                if count is not None:
                    count.shrink(stay)
        return _go_on(frame, done, op.results), returned

    def _shrink(self, active: Frame, stay: np.ndarray, carried: list[Any]) -> tuple[Frame, list[Any]]:
        index = torch.from_numpy(stay)
        return active.subset(stay, self.body.captures), [take(c, index) for c in carried]


class _Counter:
    """The induction variable of a ``for``: first value, step and trip count of every lane, fixed at entry."""

    def __init__(self, op: ir.Op, frame: Frame):
        bounds = [frame.env[v] for v in op.operands[:3]]
        self.dtype: torch.dtype = bounds[0].dtype
        low, high, step = (b.to(torch.int64).numpy() for b in bounds)
        if op.attrs["unsigned"] and self.dtype != torch.int64:
            mask = (1 << (8 * self.dtype.itemsize)) - 1
            low, high, step = low & mask, high & mask, step & mask
        if (step <= 0).any() and frame.run.watcher is not None:
            frame.run.watcher.report(frame, op, "loop-step", "the step of a for loop is not positive", step <= 0)
        safe = np.maximum(step, 1)
        trips = np.where(step > 0, np.maximum(-((low - high) // safe), 0), 0)
        self.first, self.step, self.trips = low, step, trips

    def over(self, k: int) -> bool | np.ndarray:
        """Whether the loop is over before iteration ``k``: for all lanes, for none, or for which."""
        over = self.trips <= k
        return bool(over[0]) if over.all() or not over.any() else over

    def value(self, k: int) -> Tensor:
        return torch.from_numpy(self.first + k * self.step).to(self.dtype)

    def shrink(self, stay: np.ndarray) -> None:
        self.first, self.step, self.trips = (a if len(a) == 1 else a[stay] for a in (self.first, self.step, self.trips))
