"""A module made ready to run: every operation bound to a step, once.

What depends on nothing but the kernel's parameters is computed once a launch (the *prologue*): constants, views, index
arithmetic on sizes.  Values of more than a few elements are forgotten after their last use, so that a batch of blocks
needs little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from . import ir
from .dtypes import PADDING_CODES
from .errors import InvalidTileIR, OutOfMemory, Unsupported, out_of_memory
from .machine import CONTINUE, RETURN, YIELD, Block, Control, Frame, If, Loop, Step
from .ops_atomic import ATOMIC_OPS
from .ops_block import BLOCK_OPS
from .ops_float import FLOAT_OPS
from .ops_int import INT_OPS
from .ops_memory import MEMORY_OPS
from .ops_mma import MMA_OPS
from .ops_reduce import bind_reduce, bind_scan
from .ops_shape import SHAPE_OPS
from .ops_taint import TAINT_OPS
from .ops_touch import TOUCH_OPS
from .provenance import read_parameters, synchronises, waits, written_parameters
from .undefined import CHECKS
from .widening import uses_of, widens

TIMED = 1 << 16  # elements of a tile, an operation on which takes tens of microseconds

PURE_OPS: dict[str, Callable[..., Tensor]] = {**SHAPE_OPS, **INT_OPS, **FLOAT_OPS, **MMA_OPS}
TERMINATORS = frozenset({"yield", "continue", "break", "return"})
_VIEW_MAKERS = frozenset({"make_tensor_view", "make_partition_view", "make_strided_view", "make_gather_scatter_view",
                          "get_index_space_shape", "get_tensor_shape"})  # fmt: skip


@dataclass(eq=False)
class Program:
    """What :func:`build` makes of a module.

    ``sequential``: a loop holds an atomic, so blocks must run one by one.  ``writes``, ``reads``: the parameters
    through which it may write, or read; None: any memory.  ``synchronises``: blocks may order each other by atomics.
    """

    module: ir.Module
    prologue: list[Step]
    body: Block
    values: int
    sequential: bool
    largest_tile: int
    writes: frozenset[int] | None
    reads: frozenset[int] | None
    synchronises: bool
    text: str = ""


def walk(region: ir.Region) -> Iterable[ir.Op]:
    """All operations of a region and of the regions inside, in order."""
    for op in region.ops:
        yield op
        for inner in op.regions:
            yield from walk(inner)


def free_values(region: ir.Region, hoisted: Set[int] = frozenset()) -> set[int]:
    """Values used in ``region`` that are defined outside it, or ``hoisted`` out of it."""
    used: set[int] = set()
    defined: set[int] = set(region.arguments)
    for op in walk(region):
        used.update(op.operands)
        defined.update(op.results)
        for inner in op.regions:
            defined.update(inner.arguments)
    return used - (defined - hoisted)


class _Builder:
    def __init__(self, module: ir.Module):
        self.module = module
        self.prologue: list[Step] = []
        self.constant: set[int] = set(module.body.arguments)  # equal in all blocks, known before any runs
        self.sizes: dict[int, int] = {}
        self.promised = set(module.body.arguments)  # what is assumed of these a launch's arguments are held to
        self.uses = uses_of(module.body)

    def block(self, region: ir.Region, kind: str, top: bool) -> Block:
        segments: list[tuple[list[Step], Control | None]] = []
        steps: list[Step] = []
        operands: tuple[int, ...] = ()
        ops = [op for op in region.ops if not self.hoist(op, top)]
        if ops and ops[-1].name in TERMINATORS:
            kind, operands = ops[-1].name, ops[-1].operands
            ops.pop()
        kills = self.kills(region, ops, operands)
        for op, dying in zip(ops, kills, strict=True):
            if op.name in TERMINATORS:
                raise Unsupported(f"{op.name} in the middle of a region", op=op.name, location=self.module.location(op))
            bound = self.bind(op)
            if isinstance(bound, If | Loop):
                segments.append((steps, bound))
                steps = []
            elif bound is not None:
                steps.append(_timed(op, bound) if self.large(op) else bound)
            if dying:
                steps.append(_forget(dying))
        segments.append((steps, None))
        captures = free_values(region, self.constant)
        return Block(region.arguments, segments, kind, operands, tuple(sorted(captures)))

    def hoist(self, op: ir.Op, top: bool) -> bool:
        """Moves ``op`` to the prologue if it depends on parameters alone and can do no harm there.

        Operations that are undefined for some operands stay where they are inside regions: run where the program would
        not run them, they would be reported in vain.
        """
        if op.name in PURE_OPS or op.name in _VIEW_MAKERS or op.name == "assume":
            known = all(v in self.constant for v in op.operands)
            if known and (top or op.name not in CHECKS):
                self.constant.update(op.results)
                step = self.bind(op)
                if step is not None:
                    assert not isinstance(step, If | Loop)
                    self.prologue.append(_timed(op, step) if self.large(op) else step)
                return True
        return False

    def kills(self, region: ir.Region, ops: list[ir.Op], last: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Which values each operation may forget: defined in this region, used here for the last time."""
        local = {r for op in ops for r in op.results} | set(region.arguments)
        seen = set(last)
        out: list[tuple[int, ...]] = []
        for op in reversed(ops):
            used = set(op.operands) | set(op.results)
            for inner in op.regions:
                used |= free_values(inner)
            dying = {v for v in used - seen if v in local and v not in self.constant}
            out.append(tuple(v for v in dying if self.sizes.get(v, 0) > 64 or v in region.arguments))
            seen |= used
        return out[::-1]

    def large(self, op: ir.Op) -> bool:
        """Whether the operation takes so long that looking at the clock after it costs nothing."""
        return any(self.sizes.get(value, 0) >= TIMED for value in (*op.operands, *op.results))

    def bind(self, op: ir.Op) -> Step | If | Loop | None:
        for result, kind in zip(op.results, op.result_types, strict=True):
            if isinstance(kind, ir.TileType):
                size = 1
                for s in kind.shape:
                    size *= s
                self.sizes[result] = size
        name = op.name
        if name in PURE_OPS:
            step = _pure(op, PURE_OPS[name])
            return _checked(op, step) if name in CHECKS else step
        if name in MEMORY_OPS:
            self.refuse_padding(op)
            return MEMORY_OPS[name](op, name == "load_view_tko" and widens(op, self.uses))
        if name == "assume" and op.operands[0] not in self.promised:
            return _checked(op, BLOCK_OPS[name](op))
        if name in BLOCK_OPS:
            self.promised.update(op.results if name == "assume" else ())
            return BLOCK_OPS[name](op)
        if name in ATOMIC_OPS:
            return ATOMIC_OPS[name](op)
        if name in TOUCH_OPS:
            return TOUCH_OPS[name](op)
        if name in TAINT_OPS:
            return TAINT_OPS[name](op)
        if name == "if":
            return If(op, self.block(op.regions[0], YIELD, False), self.block(op.regions[1], YIELD, False))
        if name in ("for", "loop"):
            return Loop(op, self.block(op.regions[0], CONTINUE, False), name == "for")
        if name in ("reduce", "scan"):
            binder = bind_reduce if name == "reduce" else bind_scan
            return binder(op, self.straight(op), self.module)
        raise Unsupported(f"operation {name!r} is not emulated", op=name, location=self.module.location(op))

    def refuse_padding(self, op: ir.Op) -> None:
        """Raises InvalidTileIR for a load that pads with what its elements' format has not, as tileiras refuses it."""
        for view in op.operand_types:
            if isinstance(view, ir.TileViewType) and view.padding is not None and isinstance(view.tensor.elem, str):
                codes = PADDING_CODES.get(view.tensor.elem)
                if codes is not None and view.padding not in codes:
                    has = ", ".join(codes)
                    message = f"{view.tensor.elem} has no {view.padding} to pad with: it has {has}"
                    raise InvalidTileIR(message, op=op.name, location=self.module.location(op))

    def straight(self, op: ir.Op) -> Block:
        """The combine region of reduce or scan: straight code only."""
        body = self.block(op.regions[0], YIELD, False)
        if len(body.segments) != 1:
            where = self.module.location(op)
            raise Unsupported(f"{op.name}: control flow in its combine function", op=op.name, location=where)
        return body


def _pure(op: ir.Op, fn: Callable[..., Tensor]) -> Step:
    result = op.results[0]
    if len(op.operands) == 1:
        (a,) = op.operands

        def one(frame: Frame) -> None:
            env = frame.env
            env[result] = fn(op, env[a])

        return one
    if len(op.operands) == 2:
        a, b = op.operands

        def two(frame: Frame) -> None:
            env = frame.env
            env[result] = fn(op, env[a], env[b])

        return two
    operands = op.operands

    def many(frame: Frame) -> None:
        env = frame.env
        env[result] = fn(op, *[env[v] for v in operands])

    return many


def _checked(op: ir.Op, step: Step) -> Step:
    """The step, its operands looked at first: where it is undefined that is reported, and the result is no value."""
    kind, message, check = CHECKS[op.name]
    (result,) = op.results

    def checked(frame: Frame) -> None:
        watcher, undefined = frame.run.watcher, frame.run.undefined
        if watcher is None and undefined is None:
            step(frame)
            return
        bad = check(op, *[frame.env[v] for v in op.operands])
        step(frame)
        if bad is None or not bool(bad.any()):
            return
        if watcher is not None:
            # The front end moves what it assumes of an index above the branch that it lies in: no defect by itself.
            watcher.report(frame, op, kind, message, bad.numpy(), note=bad.dim() > 1 or op.name == "assume")
            if op.name == "assume":
                return  # what comes of the value itself is seen by who watches, and tells more
        value = frame.env[result]
        if undefined is not None and value.dtype != torch.bool:
            filled = torch.tensor(undefined if value.dtype.is_floating_point else int(undefined)).to(value.dtype)
            frame.env[result] = torch.where(bad.reshape(*bad.shape, *(1,) * (value.dim() - bad.dim())), filled, value)

    return checked


def _timed(op: ir.Op, step: Step) -> Step:
    """The step, and a look at the clock; where memory ran out it is said at which operation."""

    def timed(frame: Frame) -> None:
        try:
            step(frame)
        except (MemoryError, RuntimeError) as error:
            if out_of_memory(error):
                where = frame.run.module.location(op)
                raise OutOfMemory(f"{op.name} takes more memory than there is", op=op.name, location=where) from None
            raise
        frame.run.check_time(op)

    return timed


def _forget(slots: tuple[int, ...]) -> Step:
    def step(frame: Frame) -> None:
        for slot in slots:
            frame.env[slot] = None

    return step


def build(module: ir.Module, text: str = "") -> Program:
    """Binds every operation.  Raises Unsupported for what the emulator can not run."""
    builder = _Builder(module)
    body = builder.block(module.body, RETURN, True)
    return Program(
        module, builder.prologue, body, len(module.names), waits(module.body), max(builder.sizes.values(), default=1),
        written_parameters(module), read_parameters(module), synchronises(module.body), text,
    )  # fmt: skip
