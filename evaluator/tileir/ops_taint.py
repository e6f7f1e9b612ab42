"""How each operation hands taints on: the rules behind :func:`.taint.tainted`, bound to steps of the machine.

A taint is an int8 tile of bits (:data:`ORIGINS`) of the shape of its value; a clean one is a zero, expanded.  A
result is tainted where an operand is, but where another operand makes that one count for nothing: a select drops what
it does not choose, a zero ends a product.  Memory that was never written may hold NaN, which no zero ends; padding and
undefined results are taken for finite numbers, as honest attention kernels multiply padding by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from . import ir
from .machine import Frame, Step
from .memory import MEMORY_BITS, memory_dtype
from .ops_atomic import ATOMIC_OPS, MODES, transact
from .ops_shape import SHAPE_OPS
from .pointers import gather, scatter
from .tile_views import TensorView, TileView
from .tiles import addresses_of, load_tiles, store_tiles
from .undefined import CHECKS

WORKSPACE, PADDING, UNDEFINED, OUTPUT = 1, 2, 4, 8
# taint: (kind of finding, what a result depends on)
ORIGINS: dict[int, tuple[str, str]] = {
    WORKSPACE: ("uninitialised", "uninitialised workspace"),
    OUTPUT: ("output-read", "the output's content before launch"),
    UNDEFINED: ("undefined-value", "what an operation gives for operands that it is undefined for"),
    PADDING: ("undetermined-padding", "undetermined padding"),
}
LOADS = frozenset({"load_view_tko", "load_ptr_tko"})
# Elements of their tiles may have undefined operands; for scalars these are findings by themselves.
PARTIAL = frozenset({"divi", "remi", "shli", "shri", "ftoi"})
# Where an operand of these is zero (or all ones) another counts for nothing.
PRODUCTS = frozenset({"mulf", "muli", "fma", "andi", "ori"})
TILES = {"extract": 1, "insert": 2}  # operands that are tiles; the others say where
MASKING = PRODUCTS | {"mmaf", "mmai", "mmaf_scaled", "select"}

Values = Sequence[Any]
Taints = Sequence[Tensor | None]
Rule = Callable[[ir.Op, Frame, Values, Taints], Tensor | None]
_ZERO = torch.zeros((), dtype=torch.int8)
_FINITE = PADDING | UNDEFINED
_ALL = WORKSPACE | PADDING | UNDEFINED | OUTPUT
_MOVES = frozenset({"reshape", "broadcast", "permute", "cat", "extract", "insert"})


def clean(shape: Sequence[int]) -> Tensor:
    """No taint."""
    return _ZERO.expand(1, *shape)


def stained(taint: Tensor | None) -> bool:
    """Whether any element is tainted."""
    if taint is None or not taint.numel():
        return False
    if not any(taint.stride()):
        return bool(taint[(0,) * taint.dim()])
    return bool(taint.any())


def _or(taints: Sequence[Tensor]) -> Tensor:
    out = taints[0]
    for taint in taints[1:]:
        out = out | taint
    return out


def _over(taint: Tensor, dim: int) -> Tensor:
    """The bits that any element along a dimension has."""
    return _or([((taint & bit) != 0).any(dim).to(torch.int8) * bit for bit in ORIGINS])


def _per_lane(taint: Tensor, rank: int) -> Tensor:
    """The bits that any element of a lane's tile has, to be joined with tiles of ``rank`` dimensions."""
    return _over(taint.reshape(taint.shape[0], -1), 1).reshape(-1, *(1,) * rank)


def _shape(op: ir.Op) -> tuple[int, ...]:
    kind = op.result_types[0]
    assert isinstance(kind, ir.TileType)
    return kind.shape


# ---------------------------------------------------------------------------------------------------- pure operations


def _joined(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    """Element by element; where shapes differ, each element of the result depends on all of the operand's."""
    shape = _shape(op)
    live = [t if t.shape[1:] == shape else _per_lane(t, len(shape)) for t in taints if t is not None and stained(t)]
    if not live:
        return clean(shape)
    joined = _or(live)
    return joined.expand(joined.shape[0], *shape)


def _partial(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    """And where the operation is undefined for its operands; a scalar so used is a finding of the sanitizer's."""
    out = _joined(op, frame, values, taints)
    if not _shape(op):
        return out
    bad = CHECKS[op.name][2](op, *values)
    if bad is None or not bool(bad.any()):
        return out
    return out | (bad.to(torch.int8) * UNDEFINED)


def _moved(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    """The elements move, so do their taints."""
    tiles = TILES.get(op.name, len(taints))
    shapes = [k.shape for k in op.operand_types if isinstance(k, ir.TileType)]
    if not any(stained(t) for t in taints):
        return clean(_shape(op))
    moving = [clean(s) if t is None else t for t, s in zip(taints[:tiles], shapes, strict=False)]
    indices = [t for t in taints[tiles:] if t is not None and stained(t)]
    moved: Tensor = SHAPE_OPS[op.name](op, *moving, *values[tiles:])
    return _or([moved, *(_per_lane(t, moved.dim() - 1) for t in indices)])


def _idle(value: Tensor, taint: Tensor | None, ones: bool = False) -> Tensor:
    """Where an operand is zero (or all ones), and certainly so."""
    end = value == 0 if not ones else value if value.dtype == torch.bool else value == -1
    return end if taint is None else end & (taint == 0)


def _product(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    """``mulf``, ``muli``, ``andi``, ``ori``, and ``fma``'s first two operands."""
    if not any(stained(t) for t in taints):
        return clean(_shape(op))
    ended = _FINITE if op.name in ("mulf", "fma") else _ALL
    out = [t for t in taints[2:] if t is not None]
    for k in (0, 1):
        mine = taints[k]
        if mine is not None and stained(mine):
            idle = _idle(values[1 - k], taints[1 - k], ones=op.name == "ori")
            out.append(torch.where(idle, mine & ~ended, mine))
    return _or(out) if out else clean(_shape(op))


def _select(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    if not any(stained(t) for t in taints):
        return clean(_shape(op))
    shape = _shape(op)
    a, b = (clean(shape) if t is None else t for t in taints[1:])
    chosen: Tensor = SHAPE_OPS["select"](op, values[0], a, b)
    condition = taints[0]
    if condition is None or not stained(condition):
        return chosen
    return chosen | (condition if condition.dim() > 1 else condition.reshape(-1, *(1,) * len(shape)))


def _mma(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    """Of a·b + c: an element of a row or column that meets a zero alone counts for nothing where it is finite."""
    if not any(stained(t) for t in taints):
        return clean(_shape(op))
    a, b = (torch.zeros((), dtype=torch.int8) if t is None else t for t in taints[:2])
    if op.name == "mmaf_scaled":
        for k in (0, 1):
            scale, dim = taints[3 + k], -1 - k
            if scale is not None and stained(scale):
                wide = scale.repeat_interleave(values[k].shape[dim] // scale.shape[dim], dim=dim)
                a, b = (a | wide, b) if k == 0 else (a, b | wide)
    out = clean(_shape(op)) if taints[2] is None else taints[2]
    for bit in ORIGINS:
        left, right = (((t & bit) != 0).expand_as(v) for t, v in zip((a, b), values[:2], strict=True))
        if not (stained(left) or stained(right)):
            continue
        all_count = op.name != "mmai" and not bit & _FINITE
        left_counts, right_counts = (
            torch.ones_like(t) if all_count else (v != 0) | t for t, v in zip((left, right), values[:2], strict=True)
        )
        met = torch.matmul(left.float(), right_counts.float()) + torch.matmul(left_counts.float(), right.float())
        out = out | ((met > 0).to(torch.int8) * bit)
    return out


def _reduction(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    """All results of ``reduce`` and ``scan`` alike: what any element that was combined has."""
    live = [t for t in taints if t is not None and stained(t)]
    shape = _shape(op)
    if not live:
        return clean(shape)
    kind = op.operand_types[0]
    assert isinstance(kind, ir.TileType)
    joined = _or([t if t.dim() == len(kind.shape) + 1 else _per_lane(t, len(kind.shape)) for t in live])
    joined = joined.expand(joined.shape[0], *kind.shape)
    axis = op.attrs["dim"] + 1
    if op.name == "reduce":
        return _over(joined, axis)
    turned = joined.flip(axis) if op.attrs["reverse"] else joined
    out = _or([((turned & bit) != 0).to(torch.int8).cummax(axis).values * bit for bit in ORIGINS])
    return out.flip(axis) if op.attrs["reverse"] else out


# ---------------------------------------------------------------------------------------------------- memory


class Following(Protocol):
    """Who watches a launch that follows taints, and has those of memory: :class:`.tracker.Tracker`."""

    stained: bool  # whether any memory has been tainted

    def enters(self, taint: Tensor | None) -> bool:
        """Whether a store of values with this taint changes the taints of memory."""

    def frame(self, frame: Frame, load: ir.Op | None = None) -> Frame:
        """The lanes of ``frame``, whose memory is that of taints; ``load``: whose padding they take."""

    def took_padding(self, load: ir.Op) -> None:
        """A load has taken undetermined padding."""

    def depends(self, op: ir.Op, frame: Frame, taint: Tensor) -> None:
        """What ``op`` does depends on ``taint``."""


def _tracker(frame: Frame) -> Following:
    tracker: Any = frame.run.watcher
    return tracker  # type: ignore[no-any-return]


def _integer(elem: str) -> str:
    """The integer type of the element's width, as which taints of memory are moved."""
    return f"i{MEMORY_BITS[elem]}"


def _elem(kind: ir.Type) -> str:
    assert isinstance(kind, ir.TileType)
    return "i64" if isinstance(kind.elem, ir.PtrElem) else str(kind.elem)


def _from_memory(raw: Tensor) -> Tensor:
    """The bits that any byte of an element has."""
    if raw.dtype.itemsize == 1:
        return raw.to(torch.int8) & _ALL
    if not bool(raw.any()):
        return clean(raw.shape[1:])
    parts = raw.contiguous().view(torch.int8).reshape(*raw.shape, raw.dtype.itemsize)
    return _or([parts[..., k] for k in range(raw.dtype.itemsize)])


def _to_memory(taint: Tensor, elem: str) -> Tensor:
    """The taint in every byte of an element."""
    dtype = memory_dtype(elem)
    return taint.to(dtype) * int.from_bytes(b"\1" * dtype.itemsize, "little")


def _twin(view: TileView) -> TileView:
    tensor = view.tensor
    return TileView(view.kind, TensorView(_integer(tensor.elem), tensor.base, tensor.shape, tensor.strides))


def _load_view(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    tracker = _tracker(frame)
    view, *indices = values
    inbounds = op.attrs.get("inbounds", ())
    whole = view.kind.padding is not None or (bool(inbounds) and all(inbounds))
    if whole and not tracker.stained:
        out = clean(_shape(op))
    else:
        twin = _twin(view)
        some = tracker.frame(frame, op)
        raw = load_tiles(some, op, twin, indices, memory_dtype(twin.tensor.elem))
        if some.run.padded:
            tracker.took_padding(op)
            some.run.padded = False
        out = _from_memory(raw)
    return _with_places(out, taints)


def _with_places(out: Tensor, taints: Taints) -> Tensor:
    """A load depends on where it looks."""
    live = [t for t in taints if t is not None and stained(t)]
    return _or([out, *(t if t.dim() == out.dim() else _per_lane(t, out.dim() - 1) for t in live)])


def _load_pointer(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor:
    tracker = _tracker(frame)
    pointer, *rest = values
    mask = rest[0] if len(rest) == 2 else None
    out = clean(_shape(op))
    if tracker.stained:
        out = _from_memory(gather(tracker.frame(frame), op, pointer, mask, _integer(_elem(op.result_types[0]))))
    if mask is not None:
        padding = taints[2]
        out = torch.where(mask, out, clean(_shape(op)) if padding is None else padding)
    return _with_places(out, taints[: 2 if mask is not None else 1])


def _store_view(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> None:
    tracker = _tracker(frame)
    _, view, *indices = values
    look(op, frame, taints[2:])
    if tracker.enters(taints[0]):
        twin = _twin(view)
        given = clean(view.kind.tile) if taints[0] is None else taints[0]
        store_tiles(tracker.frame(frame), op, twin, indices, _to_memory(given, twin.tensor.elem))


def _look_at_places(op: ir.Op, frame: Frame, pointer: Tensor | None, mask: Tensor | None, at: Tensor | None) -> None:
    """Whether places depend on taints: of addresses only those that are used count."""
    if at is not None and stained(at):
        look(op, frame, [at])
    elif pointer is not None and stained(pointer):
        look(op, frame, [pointer if mask is None else torch.where(mask, pointer, 0)])


def _store_pointer(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> None:
    tracker = _tracker(frame)
    pointer, _, *rest = values
    mask = rest[0] if rest else None
    _look_at_places(op, frame, taints[0], mask, taints[2] if rest else None)
    if tracker.enters(taints[1]):
        elem = _integer(_elem(op.operand_types[1]))
        address = pointer.expand(max(len(frame.ids), pointer.shape[0]), *pointer.shape[1:])
        given = clean(pointer.shape[1:]) if taints[1] is None else taints[1]
        scatter(tracker.frame(frame), op, address, mask, _to_memory(given, elem), elem)


def _atomic(op: ir.Op, frame: Frame, values: Values, taints: Taints) -> Tensor | None:
    """Of what stands there and what is added both remain, but an exchange leaves the new value."""
    tracker = _tracker(frame)
    if op.name == "atomic_red_view_tko":
        view = values[0]
        look(op, frame, taints[1:-1])
        elem, address, mask = view.tensor.elem, None, None
        given = taints[-1:]
    else:
        count = 2 if op.name == "atomic_cas_tko" else 1
        address, mask = values[0], values[1 + count] if len(values) > 1 + count else None
        _look_at_places(op, frame, taints[0], mask, taints[1 + count] if mask is not None else None)
        elem, given = _elem(op.operand_types[1]), taints[1 : 1 + count]
    shape = () if not op.results or op.name == "atomic_red_view_tko" else _shape(op)
    if not any(tracker.enters(t) for t in given):
        return clean(shape)
    elem = _integer(elem)
    some = tracker.frame(frame)
    if address is None:
        address, mask = addresses_of(some, op, _twin(view), values[1:-1])
        shape = tuple(address.shape[1:])
    taint = _or([clean(shape) if t is None else t for t in given])
    update = MODES["xchg" if op.attrs.get("mode") == "xchg" else "or"]
    return _from_memory(transact(some, op, address, mask, [_to_memory(taint, elem)], update, elem, None))


def look(op: ir.Op, frame: Frame, taints: Taints) -> None:
    """Reports what ``op`` does if it depends on any of these."""
    for taint in taints:
        if taint is not None and stained(taint):
            _tracker(frame).depends(op, frame, taint)


# ---------------------------------------------------------------------------------------------------- binding

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_MOVES, _moved),
    **dict.fromkeys(PARTIAL, _partial),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(("mmaf", "mmai", "mmaf_scaled"), _mma),
    **dict.fromkeys(("reduce", "scan"), _reduction),
    **dict.fromkeys(ATOMIC_OPS, _atomic),
    "select": _select,
    "load_view_tko": _load_view,
    "load_ptr_tko": _load_pointer,
    "store_view_tko": _store_view,
    "store_ptr_tko": _store_pointer,
}


def _bind_taint(op: ir.Op) -> Step:
    of, outside = op.attrs["of"], op.attrs["outside"]
    rule = _RULES.get(of.name, _joined)
    value_slots, taint_slots = op.attrs["values"], (*op.attrs["taints"], *outside)

    def step(frame: Frame) -> None:
        env = frame.env
        values = [None if v is None else env[v] for v in value_slots]
        taints = [None if t is None else env[t] for t in taint_slots]
        out = rule(of, frame, values, taints)
        for slot in op.results:
            env[slot] = out

    return step


def _bind_look(op: ir.Op) -> Step:
    of, slots = op.attrs["of"], op.attrs["taints"]
    return lambda frame: look(of, frame, [frame.env[t] for t in slots])


def _bind_clean(op: ir.Op) -> Step:
    (slot,), made = op.results, clean(_shape(op))

    def step(frame: Frame) -> None:
        frame.env[slot] = made

    return step


TAINT_OPS: dict[str, Callable[[ir.Op], Step]] = {
    "taint": _bind_taint,
    "taint_looked_at": _bind_look,
    "taint_clean": _bind_clean,
}
