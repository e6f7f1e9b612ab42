"""What a kernel's regions hold, counted once per kernel: operations, bytes, flops, and where pointers come from.

How often a region runs is another question (:mod:`evaluator.timing.work`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from evaluator.scalars import is_scalar
from evaluator.tileir import ir

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
_REDUCES = frozenset({"reduce", "scan"})
_MMA = frozenset({"mmaf", "mmai", "mmaf_scaled"})
_BITS = {"i1": 8, "tf32": 32, "i4": 4, "f4E2M1FN": 4}


CONTROL = frozenset({"for", "if", "loop", "yield", "continue", "break", "return"})


@dataclass
class Totals:
    """Work of one block (or a mean over blocks).

    flops: by operand type of the mma; loads and stores: bytes by the index of the kernel's parameter (-1: unknown).
    phases: how often a loop that loads is entered, plus one: each waits for its first tile.  steps: trips of loops that
    hold an mma, mmas: what they run of them, but only one of those that share a left operand; trips: of loops that load
    and hold none.  reduces: reductions and scans.  step_lanes, step_special: the part of lanes and special in those
    steps.  step_bytes: bytes that the largest single trip (or the straight code) loads.
    """

    flops: Counter[str] = field(default_factory=Counter)
    lanes: float = 0.0
    special: float = 0.0
    loads: Counter[int] = field(default_factory=Counter)
    stores: Counter[int] = field(default_factory=Counter)
    phases: float = 1.0
    steps: float = 0.0
    mmas: float = 0.0
    trips: float = 0.0
    reduces: float = 0.0
    step_lanes: float = 0.0
    step_special: float = 0.0
    step_bytes: float = 0.0

    def add(self, other: Totals, weight: float) -> None:
        for mine, theirs in ((self.loads, other.loads), (self.stores, other.stores)):
            for index, count in theirs.items():
                mine[index] += count * weight  # type: ignore[assignment]
        for kind, count in other.flops.items():
            self.flops[kind] += count * weight  # type: ignore[assignment]
        self.lanes += other.lanes * weight
        self.special += other.special * weight
        self.reduces += other.reduces * weight


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


class Counts:
    """Static counts of a kernel, per region and segment of it (before, between and after its `if`s).

    mma: (M, N, K) of the largest contraction; accumulator: elements of the largest result of one.
    """

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.mma: tuple[int, int, int] | None = None
        self.accumulator = 0
        self._lefts: set[int] = set()  # left operands of contractions
        self.origin: dict[int, int] = {}  # pointer or view value → index of the kernel's parameter it comes from
        self.static: dict[int, list[Totals]] = {}  # of a region: before its first `if`, between, after the last
        self.control: dict[int, tuple[ir.Op, ...]] = {}
        self.nested: dict[int, bool] = {}
        self.branching: dict[int, bool] = {}  # of a region: whether there is an `if` in it, at any depth
        self.views: dict[int, tuple[ir.Op, ir.TileViewType | None]] = {}
        for i, (value, kind) in enumerate(zip(module.body.arguments, module.args, strict=True)):
            if isinstance(kind, ir.TileType) and isinstance(kind.elem, ir.PtrElem):
                self.origin[value] = i
        self._scan(module.body)

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
            if op.name in CONTROL or is_scalar(op):
                control.append(op)
        self.static[id(region)] = segments
        self.control[id(region)] = tuple(control)
        self.nested[id(region)] = any(op.name in ("for", "if", "loop") for op in region.ops)
        inside = (self.branching[id(inner)] for op in region.ops for inner in op.regions if id(inner) in self.branching)
        self.branching[id(region)] = any(op.name == "if" for op in region.ops) or any(inside)

    def _trace_origin(self, op: ir.Op) -> None:
        if op.name == "make_tensor_view":
            self.views[op.results[0]] = (op, None)
        elif op.name.startswith("make_") and op.name.endswith("_view"):
            tensor = self.views.get(op.operands[0])
            kind = op.result_types[0]
            if tensor is not None and isinstance(kind, ir.TileViewType):
                self.views[op.results[0]] = (tensor[0], kind)
        for value in op.operands:
            if value in self.origin and op.results and op.name not in _LOADS | _STORES and op.name not in CONTROL:
                self.origin[op.results[0]] = self.origin[value]
                break

    def _cost(self, op: ir.Op, into: Totals) -> None:
        name = op.name
        if name in _FREE or name in CONTROL:
            return
        if name in _MMA:
            left, result = op.operand_types[0], op.result_types[0]
            assert isinstance(left, ir.TileType)
            assert isinstance(result, ir.TileType)
            depth, size = left.shape[-1], _elements(result)
            into.flops[str(left.elem)] += 2 * size * depth
            into.steps += 1
            into.mmas += op.operands[0] not in self._lefts
            self._lefts.add(op.operands[0])
            self.accumulator = max(self.accumulator, size)
            shape = (result.shape[-2], result.shape[-1], depth)
            if self.mma is None or math.prod(shape) > math.prod(self.mma):
                self.mma = shape
            return
        if name in _LOADS or name in _STORES:
            self._memory(op, into)
            return
        size = max((_elements(t) for t in (*op.operand_types, *op.result_types)), default=0)
        into.reduces += name in _REDUCES
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

    @property
    def accumulator_bytes(self) -> int:
        """Bytes of the largest mma result: what has to fit the register file (or tensor memory)."""
        return 4 * self.accumulator

    def loads(self, region: ir.Region) -> bool:
        """Whether the region itself loads, apart from the regions in it."""
        return any(part.loads for part in self.static[id(region)])


def _pointer(kind: ir.TileType) -> bool:
    return isinstance(kind.elem, ir.PtrElem)
