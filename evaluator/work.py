"""What a kernel launch does, counted without running it: tensor-core flops, element operations, bytes, trips.

The Tile IR is walked with the launch's sizes: scalar integers (sizes, block indices, loop bounds) are computed, tiles
are only counted.  Loops weigh their bodies by their trips; of a long outer loop the first, middle and last trip stand
for all.  Blocks are sampled where there are many.  What depends on data (a condition on loaded values) counts half for
each side.

This is the model's input (:mod:`evaluator.model`), not the emulator: no value of a tile exists here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evaluator.tileir import ir

SAMPLED_BLOCKS = 32
_GOLDEN = 0.6180339887498949
_MAX_TRIPS = 2048  # of a `loop` followed concretely; more than any honest kernel's
_UNKNOWN_TRIPS = 1

# Cost of one element beside the default (1, 0): instructions of a 32-bit lane, results of the special function unit.
# Counted in the SASS of tileiras 13.4.92 for sm_90 and sm_120 (which differ by at most 2); where a slow path stands
# beside the usual one (divf, sqrt, sin, cos: denormals, large arguments) the usual one counts.
_COST = {
    "divf": (10, 1), "exp": (9, 1), "exp2": (4, 1), "log": (20, 0), "log2": (20, 0), "rsqrt": (4, 1), "sqrt": (9, 1),
    "tanh": (16, 2), "sin": (40, 0), "cos": (40, 0), "tan": (60, 1), "sinh": (20, 2), "cosh": (20, 2),
    "fpowf": (60, 1), "atan2": (40, 1), "divi": (34, 1), "remi": (36, 1), "remf": (40, 1), "fpowi": (12, 0),
}  # fmt: skip
_COST_APPROX = {"divf": (5, 1), "tanh": (0, 1), "exp2": (0, 1), "sqrt": (2, 1), "exp": (1, 1), "rsqrt": (0, 1)}
_FREE = frozenset({
    "constant", "reshape", "broadcast", "permute", "assume", "bitcast", "iota", "make_token", "join_tokens", "extract",
    "get_tile_block_id", "get_num_tile_blocks", "get_index_space_shape", "get_tensor_shape", "get_global", "ptr_to_ptr",
    "make_tensor_view", "make_partition_view", "make_strided_view", "make_gather_scatter_view",
})  # fmt: skip
_LOADS = frozenset({"load_view_tko", "load_ptr_tko"})
_STORES = frozenset({"store_view_tko", "store_ptr_tko", "atomic_red_view_tko", "atomic_rmw_tko", "atomic_cas_tko"})
_MMA = frozenset({"mmaf", "mmai", "mmaf_scaled"})
_BITS = {"i1": 8, "tf32": 32, "i4": 4, "f4E2M1FN": 4}


@dataclass
class Totals:
    """Work of one block (or a mean over blocks).

    flops: by operand type of the mma; loads and stores: bytes by the index of the kernel's parameter (-1: unknown).
    phases: how often a loop that loads is entered, plus one: each waits for its first tile.  steps: trips of loops that
    hold an mma.  step_bytes: bytes that the largest single trip (or the straight code) loads.
    """

    flops: Counter[str] = field(default_factory=Counter)
    lanes: float = 0.0
    special: float = 0.0
    loads: Counter[int] = field(default_factory=Counter)
    stores: Counter[int] = field(default_factory=Counter)
    phases: float = 1.0
    steps: float = 0.0
    step_bytes: float = 0.0

    def add(self, other: Totals, weight: float) -> None:
        for mine, theirs in ((self.loads, other.loads), (self.stores, other.stores)):
            for index, count in theirs.items():
                mine[index] += count * weight  # type: ignore[assignment]
        for kind, count in other.flops.items():
            self.flops[kind] += count * weight  # type: ignore[assignment]
        self.lanes += other.lanes * weight
        self.special += other.special * weight


@dataclass(frozen=True)
class Work:
    """A launch's work: the ``mean`` of ``blocks``, how much ``longest`` one is; ``mma`` is the largest (M, N, K)."""

    blocks: int
    mean: Totals
    longest: float  # ÷ mean, by lanes, flops and bytes
    mma: tuple[int, int, int] | None


def count(module: ir.Module, arguments: Sequence[int | float | bool | None], grid: tuple[int, int, int]) -> Work:
    """The work of launching ``module`` with flattened arguments (None for a pointer) on ``grid``."""
    walker = _Walker(module)
    blocks = math.prod(grid)
    totals = [walker.block(arguments, at, grid) for at in _sample(grid)]
    mean = Totals(phases=0.0)
    for one in totals:
        mean.add(one, 1 / len(totals))
        mean.phases += one.phases / len(totals)
        mean.steps += one.steps / len(totals)
        mean.step_bytes = max(mean.step_bytes, one.step_bytes)
    sizes = [_weight(t) for t in totals]
    average = sum(sizes) / len(sizes)
    longest = max(sizes) / average if average else 1.0
    return Work(blocks, mean, longest, walker.mma)


def accumulator_bytes(module: ir.Module) -> int:
    """Bytes of the largest mma result: what has to fit the register file (or tensor memory)."""
    walker = _Walker(module)
    return 4 * walker.accumulator


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


def element_bytes(elem: ir.Elem) -> float:
    """Bytes of an element in memory: i1 a byte, f4 and i4 half of one, a pointer eight."""
    if isinstance(elem, ir.PtrElem):
        return 8
    if elem in _BITS:
        return _BITS[elem] / 8
    digits = "".join(c if c.isdigit() else " " for c in elem).split()
    return int(digits[0]) / 8 if digits else 4


def _elements(kind: ir.Type) -> int:
    return math.prod(kind.shape) if isinstance(kind, ir.TileType) else 0


Scalars = dict[int, int]


class _Walker:
    """Static counts per region, and the walk that says how often each region runs for a block."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.mma: tuple[int, int, int] | None = None
        self.accumulator = 0
        self.origin: dict[int, int] = {}  # pointer or view value → index of the kernel's parameter it comes from
        self.static: dict[int, list[Totals]] = {}  # of a region: before its first `if`, between, after the last
        self.control: dict[int, tuple[ir.Op, ...]] = {}
        self.nested: dict[int, bool] = {}
        self.views: dict[int, tuple[ir.Op, ir.TileViewType | None]] = {}
        for i, (value, kind) in enumerate(zip(module.body.arguments, module.args, strict=True)):
            if isinstance(kind, ir.TileType) and isinstance(kind.elem, ir.PtrElem):
                self.origin[value] = i
        self._scan(module.body)

    # ------------------------------------------------------------------------------------------------ once per kernel

    def _scan(self, region: ir.Region) -> None:
        segments = [Totals()]
        control = []
        for op in region.ops:
            self._trace_origin(op)
            self._cost(op, segments[-1])
            if op.name == "if":
                segments.append(Totals())
            if op.name in ("for", "if", "loop"):
                carried = {"for": op.operands[3:], "loop": op.operands}.get(op.name, ())
                for inner in op.regions:
                    for argument, value in zip(reversed(inner.arguments), reversed(carried), strict=False):
                        if value in self.origin:
                            self.origin[argument] = self.origin[value]
                    self._scan(inner)
            if op.name in _CONTROL or _is_scalar(op):
                control.append(op)
        self.static[id(region)] = segments
        self.control[id(region)] = tuple(control)
        self.nested[id(region)] = any(op.name in ("for", "if", "loop") for op in region.ops)

    def _trace_origin(self, op: ir.Op) -> None:
        if op.name == "make_tensor_view":
            self.views[op.results[0]] = (op, None)
        elif op.name.startswith("make_") and op.name.endswith("_view"):
            tensor = self.views.get(op.operands[0])
            kind = op.result_types[0]
            if tensor is not None and isinstance(kind, ir.TileViewType):
                self.views[op.results[0]] = (tensor[0], kind)
        for value in op.operands:
            if value in self.origin and op.results and op.name not in _LOADS | _STORES and op.name not in _CONTROL:
                self.origin[op.results[0]] = self.origin[value]
                break

    def _cost(self, op: ir.Op, into: Totals) -> None:
        name = op.name
        if name in _FREE or name in _CONTROL:
            return
        if name in _MMA:
            left, result = op.operand_types[0], op.result_types[0]
            assert isinstance(left, ir.TileType)
            assert isinstance(result, ir.TileType)
            depth, size = left.shape[-1], _elements(result)
            into.flops[str(left.elem)] += 2 * size * depth
            into.steps += 1
            self.accumulator = max(self.accumulator, size)
            shape = (result.shape[-2], result.shape[-1], depth)
            if self.mma is None or math.prod(shape) > math.prod(self.mma):
                self.mma = shape
            return
        if name in _LOADS or name in _STORES:
            self._memory(op, into)
            return
        size = max((_elements(t) for t in (*op.operand_types, *op.result_types)), default=0)
        approximate = op.attrs.get("rounding") == "approx" or op.attrs.get("flush_to_zero")
        lanes, special = (_COST_APPROX if approximate else _COST).get(name) or _COST.get(name, (1, 0))
        into.lanes += lanes * size
        into.special += special * size

    def _memory(self, op: ir.Op, into: Totals) -> None:
        load = op.name in _LOADS
        tile = op.result_types[0] if load or op.name.startswith("atomic_r") else op.operand_types[0]
        if not load:
            tile = next((t for t in op.operand_types if isinstance(t, ir.TileType) and not _pointer(t)), tile)
        if not isinstance(tile, ir.TileType):
            return
        moved = _elements(tile) * element_bytes(tile.elem)
        origin = next((self.origin[v] for v in op.operands if v in self.origin), -1)
        (into.loads if load else into.stores)[origin] += moved  # type: ignore[assignment]
        if op.name not in ("load_view_tko", "store_view_tko"):
            into.lanes += 2 * _elements(tile)  # an address and an access each

    # ------------------------------------------------------------------------------------------------ once per block

    def block(
        self, arguments: Sequence[int | float | bool | None], at: tuple[int, int, int], grid: tuple[int, int, int]
    ) -> Totals:
        """The totals of one block."""
        env: Scalars = {
            value: int(word)
            for value, word in zip(self.module.body.arguments, arguments, strict=True)
            if word is not None and not isinstance(word, float)
        }
        run = _Run(self, at, grid)
        run.region(self.module.body, env, 1.0)
        found = Totals(phases=1.0 + run.entries)
        for (region, segment), weight in run.times.items():
            part = self.static[region][segment]
            found.add(part, weight)
            found.steps += weight if part.steps else 0.0
            found.step_bytes = max(found.step_bytes, sum(part.loads.values()) if weight > 0 else 0)
        return found

    def loads(self, region: ir.Region) -> bool:
        """Whether the region itself loads, apart from the regions in it."""
        return any(part.loads for part in self.static[id(region)])


_CONTROL = frozenset({"for", "if", "loop", "yield", "continue", "break", "return"})


def _pointer(kind: ir.TileType) -> bool:
    return isinstance(kind.elem, ir.PtrElem)


def _is_scalar(op: ir.Op) -> bool:
    """Whether the walk computes ``op``: integers without shape, and questions about views and the grid."""
    return bool(op.results) and op.name in _SCALAR_OPS and all(
        isinstance(t, ir.TileType) and t.shape == () and str(t.elem).startswith("i") for t in op.result_types
    )  # fmt: skip


class _Run:
    """One block's walk: how often each region runs (``times``), how many loading loops were entered."""

    def __init__(self, walker: _Walker, at: tuple[int, int, int], grid: tuple[int, int, int]) -> None:
        self.walker, self.at, self.grid = walker, at, grid
        self.times: Counter[tuple[int, int]] = Counter()  # by region and segment
        self.entries = 0.0

    def region(self, region: ir.Region, env: Scalars, weight: float) -> tuple[str, list[int | None]]:
        """Walks a region; returns its terminator and operands.  ``maybe`` ends one whose end depends on data."""
        segment = 0
        self.times[id(region), segment] += weight  # type: ignore[assignment]
        for op in self.walker.control[id(region)]:
            if op.name in ("yield", "continue", "break", "return"):
                return op.name, [env.get(v) for v in op.operands]
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
            value = _SCALAR_OPS[op.name](op.attrs, *operands) if None not in operands else None
            env.pop(op.results[0], None)
            if value is not None:
                env[op.results[0]] = int(value)

    def extents(self, op: ir.Op, env: Scalars) -> list[int | None]:
        known = self.walker.views.get(op.operands[0])
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
        trips = _UNKNOWN_TRIPS if low is None or high is None or not step else max(0, -(-(high - low) // step))
        for result in op.results:
            env.pop(result, None)
        if not trips:
            for result, value in zip(op.results, op.operands[3:], strict=True):
                if value in env:
                    env[result] = env[value]
            return
        if self.walker.loads(body):
            self.entries += weight
        if not self.walker.nested[id(body)]:
            self.times[id(body), 0] += weight * trips  # type: ignore[assignment]
            return
        chosen = range(trips) if trips <= 3 else (0, trips // 2, trips - 1)
        for k in chosen:
            inner = dict(env)
            if low is not None and step:
                inner[body.arguments[0]] = low + k * step
            if k == 0:
                inner.update({a: env[v] for a, v in zip(body.arguments[1:], op.operands[3:], strict=True) if v in env})
            self.region(body, inner, weight * trips / len(chosen))

    def endless(self, op: ir.Op, env: Scalars, weight: float) -> None:
        body = op.regions[0]
        carried: list[int | None] = [env.get(v) for v in op.operands]
        if self.walker.loads(body):
            self.entries += weight
        values: list[int | None] = []
        for _ in range(_MAX_TRIPS):
            inner = dict(env)
            inner.update({a: v for a, v in zip(body.arguments, carried, strict=False) if v is not None})
            end, values = self.region(body, inner, weight)
            if end != "continue":
                break
            carried = values
        for result, value in zip(op.results, values, strict=False):
            env.pop(result, None)
            if value is not None:
                env[result] = value

    def branch(self, op: ir.Op, env: Scalars, weight: float) -> tuple[str, list[int | None]]:
        condition = env.get(op.operands[0])
        for result in op.results:
            env.pop(result, None)
        if condition is None:
            ends = [self.region(side, dict(env), weight / 2)[0] for side in op.regions]
            return ("maybe", []) if any(end == "break" for end in ends) else ("yield", [])
        side = op.regions[0 if condition else 1]
        end, values = self.region(side, env, weight)
        if end == "yield":
            env.update({r: v for r, v in zip(op.results, values, strict=False) if v is not None})
        return end, values


def _divide(attrs: Mapping[str, object], a: int, b: int) -> int | None:
    if b == 0:
        return None
    if attrs["rounding"] == "positive_inf":
        return -(-a // b)
    if attrs["rounding"] == "negative_inf":
        return a // b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(_: Mapping[str, object], a: int, b: int) -> int | None:
    return None if b == 0 else int(math.fmod(a, b))


_COMPARE = {
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less_than": lambda a, b: a < b,
    "less_than_or_equal": lambda a, b: a <= b,
    "greater_than": lambda a, b: a > b,
    "greater_than_or_equal": lambda a, b: a >= b,
}

# Scalar integer operations by name: (attributes, operands) → value.  32-bit wrap-around is left out: sizes do not wrap.
_SCALAR_OPS: dict[str, Callable[..., int | bool | None]] = {
    "constant": lambda attrs: None,
    "get_tile_block_id": lambda attrs: None,
    "get_num_tile_blocks": lambda attrs: None,
    "get_index_space_shape": lambda attrs: None,
    "get_tensor_shape": lambda attrs: None,
    "assume": lambda attrs, a: a,
    "reshape": lambda attrs, a: a,
    "broadcast": lambda attrs, a: a,
    "exti": lambda attrs, a: a,
    "trunci": lambda attrs, a: a,
    "addi": lambda attrs, a, b: a + b,
    "subi": lambda attrs, a, b: a - b,
    "muli": lambda attrs, a, b: a * b,
    "divi": _divide,
    "remi": _remainder,
    "mini": lambda attrs, a, b: min(a, b),
    "maxi": lambda attrs, a, b: max(a, b),
    "negi": lambda attrs, a: -a,
    "absi": lambda attrs, a: abs(a),
    "andi": lambda attrs, a, b: a & b,
    "ori": lambda attrs, a, b: a | b,
    "xori": lambda attrs, a, b: a ^ b,
    "shli": lambda attrs, a, b: a << min(b, 63),
    "shri": lambda attrs, a, b: a >> min(b, 63),
    "select": lambda attrs, c, a, b: a if c else b,
    "cmpi": lambda attrs, a, b: _COMPARE[attrs["predicate"]](a, b),
}
