"""What a kernel launch does, counted without running it: tensor-core flops, element operations, bytes, trips.

The Tile IR is walked with the launch's sizes: scalar integers (sizes, block indices, loop bounds) are computed, tiles
are only counted.  Loops weigh their bodies by their trips; of a long outer loop the first, middle and last trip stand
for all, unless there are conditions in it.  Blocks are sampled where there are many.  Of a condition on loaded values
both sides count.  Where the trips of a loop depend on data the count is a lower bound, and says so; but a number
that is the smaller of data and something known (the keys of a cache, no more than it has room for) is taken to be
that, the most that it can be.

This is the model's input (:mod:`.model`), not the emulator: no value of a tile exists here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evaluator.kernel_counts import Counts, Totals
from evaluator.scalars import SCALAR_OPS
from evaluator.tileir import ir

SAMPLED_BLOCKS = 32
_GOLDEN = 0.6180339887498949
_MAX_TRIPS = 2048  # of a loop followed trip by trip; more than any honest kernel's
_LEAST_TRIPS = 1  # of a loop whose trips are not known


@dataclass(frozen=True)
class Work:
    """A launch's work: the ``mean`` of ``blocks``, and how they differ; ``mma`` is the largest (M, N, K).

    ``exact``: no condition depends on data.  ``bounded``: nor do a loop's trips; else there is more work than this.
    """

    blocks: int
    mean: Totals
    sizes: tuple[float, ...]  # of the sampled blocks in the order in which they start, ÷ mean: lanes, flops and bytes
    mma: tuple[int, int, int] | None
    exact: bool = True
    bounded: bool = True


def count(counts: Counts, arguments: Sequence[int | float | bool | None], grid: tuple[int, int, int]) -> Work:
    """The work of launching the kernel of ``counts`` with flattened arguments (None for a pointer) on ``grid``."""
    blocks = math.prod(grid)
    places = sorted(_sample(grid), key=lambda at: at[::-1])  # blocks start along x, then y, then z
    runs = [_block(counts, arguments, at, grid) for at in places]
    totals = [total for total, _ in runs]
    mean = Totals(phases=0.0)
    for one in totals:
        mean.add(one, 1 / len(totals))
        for name in ("phases", "steps", "mmas", "trips", "step_lanes", "step_special"):
            setattr(mean, name, getattr(mean, name) + getattr(one, name) / len(totals))
        mean.step_bytes = max(mean.step_bytes, one.step_bytes)
    sizes = [_weight(t) for t in totals]
    average = sum(sizes) / len(sizes)
    relative = tuple(size / average if average else 1.0 for size in sizes)
    exact, bounded = (all(getattr(run, name) for _, run in runs) for name in ("exact", "bounded"))
    return Work(blocks, mean, relative, counts.mma, exact, bounded)


def _weight(t: Totals) -> float:
    """One number for a block's size: lane operations, tensor flops at about a thousandth, bytes."""
    return t.lanes + 4 * t.special + sum(t.flops.values()) / 16 + sum(t.loads.values())


def _sample(grid: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """All blocks where there are few; else a Latin hypercube: every axis is covered evenly, in an order of its own.

    A long axis gets a jitter inside its strata, so that samples do not fall into step with ``block % tiles``.
    """
    n = SAMPLED_BLOCKS
    if math.prod(grid) <= n:
        yield from ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))
        return
    for i in range(n):
        place = []
        for axis, size in enumerate(grid):
            stratum = i * (1, 5, 11)[axis] % n  # 5 and 11 have no divisor in common with 32
            jitter = 0.5 if size <= n else ((i + 0.5) * _GOLDEN) % 1.0
            place.append(int((stratum + jitter) / n * size))
        yield place[0], place[1], place[2]


def _block(
    counts: Counts, arguments: Sequence[int | float | bool | None], at: tuple[int, int, int], grid: tuple[int, int, int]
) -> tuple[Totals, _Run]:
    """The totals of one block, and the walk that they are of."""
    env: Scalars = {
        value: int(word)
        for value, word in zip(counts.module.body.arguments, arguments, strict=True)
        if word is not None and not isinstance(word, float)
    }
    run = _Run(counts, at, grid)
    run.region(counts.module.body, env, 1.0)
    found = Totals(phases=1.0 + run.entries)
    for (region, segment), weight in run.times.items():
        part = counts.static[region][segment]
        found.add(part, weight)
        if part.steps:
            found.steps += weight
            found.mmas += weight * part.mmas
            found.step_lanes += weight * part.lanes
            found.step_special += weight * part.special
        elif part.loads:
            found.trips += weight
        found.step_bytes = max(found.step_bytes, sum(part.loads.values()) if weight > 0 else 0)
    return found, run


Scalars = dict[int, int]


class _Run:
    """One block's walk: how often each region runs (``times``), how many loading loops were entered.

    ``exact`` and ``bounded`` are those of :class:`Work`.
    """

    def __init__(self, counts: Counts, at: tuple[int, int, int], grid: tuple[int, int, int]) -> None:
        self.counts, self.at, self.grid = counts, at, grid
        self.times: Counter[tuple[int, int]] = Counter()  # by region and segment
        self.entries = 0.0
        self.exact = self.bounded = True
        self.most: set[int] = set()  # values in ``env`` that are the most that data can make of them

    def region(self, region: ir.Region, env: Scalars, weight: float) -> tuple[str, list[int | None]]:
        """Walks a region; returns its terminator and operands.  ``maybe`` ends one whose end depends on data."""
        segment = 0
        self.times[id(region), segment] += weight  # type: ignore[assignment]
        for op in self.counts.control[id(region)]:
            if op.name in ("yield", "continue", "break", "return"):
                return op.name, [self.sure(env, v) for v in op.operands]
            if op.name == "for":
                self.counted(op, env, weight)
            elif op.name == "loop":
                self.endless(op, env, weight)
            elif op.name == "if":
                end, values = self.branch(op, env, weight)
                if end != "yield":
                    return end, values
                segment += 1
                self.times[id(region), segment] += weight  # type: ignore[assignment]
            else:
                self.scalar(op, env)
        return "yield", []

    def sure(self, env: Scalars, value: int) -> int | None:
        """The number, if it is known and not only the most that data can make of it."""
        return None if value in self.most else env.get(value)

    def scalar(self, op: ir.Op, env: Scalars) -> None:
        if op.name in ("get_tile_block_id", "get_num_tile_blocks"):
            source = self.at if op.name == "get_tile_block_id" else self.grid
            env.update(zip(op.results, source, strict=True))
        elif op.name in ("get_index_space_shape", "get_tensor_shape"):
            for result, size in zip(op.results, self.extents(op, env), strict=False):
                if size is not None:
                    env[result] = size
        elif op.name == "constant":
            value = op.attrs["value"].values
            if isinstance(value, int):
                env[op.results[0]] = int(value)
        else:
            operands = [env.get(v) for v in op.operands]
            result, data = op.results[0], not self.most.isdisjoint(op.operands)
            value = None
            if None not in operands:
                value = SCALAR_OPS[op.name](op.attrs, *operands)
            elif op.name == "mini":
                value = next((n for n in operands if n is not None), None)
                data = True
            env.pop(result, None)
            self.most.discard(result)
            if value is not None:
                env[result] = int(value)
                if data:
                    self.most.add(result)

    def extents(self, op: ir.Op, env: Scalars) -> list[int | None]:
        known = self.counts.views.get(op.operands[0])
        if known is None:
            return []
        maker, kind = known
        dynamic = iter(maker.operands[1:])
        shape = [s if s is not None else env.get(next(dynamic)) for s in maker.attrs["shape"]]
        if op.name == "get_tensor_shape" or kind is None:
            return shape
        steps = kind.traversal if kind.kind == "strided" else kind.tile if kind.kind == "partition" else ()
        sizes = [shape[d] for d in kind.dim_map] if kind.dim_map else shape
        return [None if s is None else -(-s // t) for s, t in zip(sizes, steps, strict=False)]

    def counted(self, op: ir.Op, env: Scalars, weight: float) -> None:
        body = op.regions[0]
        low, high, step = (env.get(v) for v in op.operands[:3])
        data = [v in self.most for v in op.operands]
        if any(data):
            self.exact = False
        if data[2] or (data[0] and not data[1]):  # it may begin earlier
            low = None
        if low is None or high is None or not step:
            self.exact = self.bounded = False
            trips = _LEAST_TRIPS
        else:
            trips = max(0, -(-(high - low) // step))
        carried = [self.sure(env, v) for v in op.operands[3:]]
        for result in op.results:
            env.pop(result, None)
        if not trips:
            env.update((r, v) for r, v in zip(op.results, carried, strict=True) if v is not None)
            return
        if self.counts.loads(body):
            self.entries += weight
        if not self.counts.nested[id(body)]:
            self.times[id(body), 0] += weight * trips  # type: ignore[assignment]
            return
        # A number that is carried from trip to trip, or a condition, may make any trip unlike its neighbours.
        each = trips <= 3 or self.counts.branching[id(body)] or any(v is not None for v in carried)
        if each and trips > _MAX_TRIPS:
            self.exact = self.bounded = False
        chosen = range(min(trips, _MAX_TRIPS)) if each else (0, trips // 2, trips - 1)
        for k in chosen:
            inner = dict(env)
            if low is not None and step:
                inner[body.arguments[0]] = low + k * step
            if k == 0 or each:
                inner.update((a, v) for a, v in zip(body.arguments[1:], carried, strict=True) if v is not None)
            end, carried = self.region(body, inner, weight * trips / len(chosen))
            if end not in ("continue", "yield"):  # it may have ended there, as the data says
                self.exact = self.bounded = False
                return
        if each:
            env.update((r, v) for r, v in zip(op.results, carried, strict=True) if v is not None)

    def endless(self, op: ir.Op, env: Scalars, weight: float) -> None:
        body = op.regions[0]
        carried = [self.sure(env, v) for v in op.operands]
        if self.counts.loads(body):
            self.entries += weight
        end, values = "", list[int | None]()
        for _ in range(_MAX_TRIPS):
            inner = dict(env)
            inner.update({a: v for a, v in zip(body.arguments, carried, strict=False) if v is not None})
            end, values = self.region(body, inner, weight)
            if end != "continue":
                break
            carried = values
        if end not in ("break", "return"):  # it goes on for longer, or for as long as the data says
            self.exact = self.bounded = False
            values = []
        for result, value in zip(op.results, values, strict=False):
            env.pop(result, None)
            if value is not None:
                env[result] = value

    def branch(self, op: ir.Op, env: Scalars, weight: float) -> tuple[str, list[int | None]]:
        condition = self.sure(env, op.operands[0])
        for result in op.results:
            env.pop(result, None)
        if condition is None:
            self.exact = False
            ends = {self.region(side, dict(env), weight)[0] for side in op.regions}
            return ("maybe", []) if ends & {"break", "return", "maybe"} else ("yield", [])
        side = op.regions[0 if condition else 1]
        end, values = self.region(side, env, weight)
        if end == "yield":
            env.update({r: v for r, v in zip(op.results, values, strict=False) if v is not None})
        return end, values
