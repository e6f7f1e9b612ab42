"""Writes one kernel's body: values become lines of cuTile, each in the outermost loop in which it can stand.

:meth:`KernelWriter.emit` turns a primitive at an index into a tile, recursively down to loads; the same value at the
same place is computed once per loop.  It knows nothing of anchors: their results are put in by
:meth:`KernelWriter.define`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise

from kernels_generated.runtime.expr import Expr, decide, show, symbols
from knowledge_base.snf import op_table
from knowledge_base.snf.op_table import OPS

from .arithmetic import APPROXIMATE, COMPARISONS, CT_DTYPES, FLOAT, HELPERS, INTEGER, literal, powers
from .body import Body, Frame, Parameter, Place, Tile
from .index import (
    ZERO,
    At,
    Axis,
    Index,
    Loaded,
    Quotient,
    broadcast_at,
    fixed,
    plus,
    shifted_axis,
    through_reshape,
    through_view,
    tiled_axes,
)
from .primitives import ELEMENTWISE, VIEWS, Prim, work_dtype

# What a value without a name of its own is called after its op.
NOUNS = {
    "add": "total", "sub": "difference", "mul": "product", "div": "quotient", "pow": "power", "abs": "size",
    "max": "top", "neg": "minus", "square": "squared", "where": "chosen", "minimum": "least", "maximum": "most",
}  # fmt: skip

# Numbers in Python, as factors.
NUMBERS = {
    "mul": "({} * {})", "div": "({} / {})", "add": "({} + {})", "sub": "({} - {})", "neg": "(-{})",
    "sqrt": "math.sqrt({})", "rsqrt": "(1 / math.sqrt({}))", "square": "({} ** 2)", "exp": "math.exp({})",
}  # fmt: skip

# Ops that make 0 of nothing but zeros.  A product with one zero is none of them: 0 times an infinity is NaN.
KEEP_ZERO = frozenset(("neg", "abs", "square", "relu", "tanh", "erf", "add", "sub", "mul"))


def plain_name(value: Prim) -> str:
    """The name that a person gave the value; empty for one that was numbered or called after its op."""
    stem = value.name.rstrip("0123456789").rstrip("_")
    return "" if value.name.startswith("$") or stem in OPS or stem in ("t", "permute") else value.name


class KernelWriter(Body):
    """One kernel under construction, from primitives."""

    def emit(self, value: Prim, at: At, frame: Frame, raw: bool = False, hint: str = "") -> Tile:
        """The tile of ``value`` at ``at``, in its working dtype (``raw``: in the stored one, for a leaf).

        hint: what a leaf's tile is called, where views gave it a name.
        """
        anchor = self.known(value)  # a reduction's or a contraction's result: its place is the group's
        if anchor is not None:
            return anchor
        if value.op == "const":
            return Tile(str(value.attr("value")), "const")
        if value.op in VIEWS:
            hint = hint or plain_name(value)
            return self.emit(value.args[0], through_view(value, at), frame, raw, hint)
        # a value that does not extend along an axis is the same in every frame without it
        extends = frozenset().union(*(tiled_axes(i) for i in at))
        key = (value, at, tuple(a if a in extends else None for a in frame), raw)
        known = self.known(key)
        if known is not None:
            return known
        if value.op in ELEMENTWISE:
            return self._elementwise(key, value, at, frame)
        if value.op == "leaf":
            return self._leaf(key, value, at, frame, raw, hint or value.name)
        if value.op == "gather":
            table, index = value.args
            rank = len(index.shape)
            row = at[0] if index.op == "iota" else Index(((Loaded(index, at[:rank]), 1),))
            return self.emit(table, (row, *at[rank:]), frame, raw, hint)
        return {
            "dim": self._dim, "iota": self._iota, "causal": self._causal, "concat": self._concat,
        }[value.op](key, value, at, frame)  # fmt: skip

    def convert(self, tile: Tile, dtype: str) -> str:
        """The tile's text in ``dtype``."""
        if tile.dtype == "const":
            return literal(float(tile.text) if tile.text not in ("True", "False") else tile.text == "True", dtype)
        if tile.dtype == dtype:
            return tile.text
        if dtype == "bool":
            return f"({tile.text} != 0)"
        return f"{tile.text}.astype({CT_DTYPES[dtype]})" if tile.axes else f"ct.astype({tile.text}, {CT_DTYPES[dtype]})"

    def _elementwise(self, key: object, value: Prim, at: At, frame: Frame) -> Tile:
        args = [self.emit(a, at if self.flat is not None else broadcast_at(at, a.shape), frame) for a in value.args]
        axes: frozenset[Axis] = frozenset().union(*(a.axes for a in args))
        depth = max(a.depth for a in args)
        work = self.float_dtype if value.scalar else work_dtype(value.dtype)
        op = value.op
        zero: frozenset[Axis] = frozenset()
        if op == "cast":
            (x,) = args
            if x.dtype == work or (x.dtype == "const"):
                return x if x.dtype == work else Tile(self.convert(x, work), work)
            text = self.convert(x, work)
            zero = x.zero
        elif op in COMPARISONS:
            common = op_table.promote([a.dtype for a in args if a.dtype != "const"] or ["f32"])
            if common in ("i32", "i64", "bool") and any(
                a.dtype == "const" and not float(a.text).is_integer() for a in args
            ):
                common = "f32"
            left, right = (self.convert(a, common) for a in args)
            text, work = f"{left} {COMPARISONS[op]} {right}", "bool"
        elif op == "where":
            condition = self.convert(args[0], "bool")
            yes, no = (self.convert(a, work) for a in args[1:])
            if args[1].dtype == args[2].dtype == "const":
                yes = f"ct.astype({yes}, {CT_DTYPES[work]})"
            text = f"ct.where({condition}, {yes}, {no})"
        else:
            texts = [self.convert(a, work) for a in args]
            if op == "div" and self.approximate and work == "f32" and args[1].axes and args[1].axes < args[0].axes:
                text = f"{texts[0]} * {self._reciprocal(args[1], texts[1])}"
            elif op == "sub" and _below_its_largest(value):
                text = (
                    f"ct.sub({', '.join(texts)}, flush_to_zero=True)"
                    if work == "f32"
                    else f"({texts[0]} + 0.0) - {texts[1]}"
                )
            else:
                text = self._template(value, work, args).format(*texts)
            if op in KEEP_ZERO:  # a row's one number is not 0 beyond the row's end: all operands must be
                zero = frozenset.intersection(*(a.zero for a in args))
        return self.assign(key, plain_name(value) or NOUNS.get(op, op), text, Tile("", work, axes, depth, zero))

    def _reciprocal(self, tile: Tile, text: str) -> str:
        """One over what several elements are divided by: a multiplication takes half the time of a division."""
        key = ("reciprocal", text)
        known = self.known(key)
        if known is None:
            known = self.assign(
                key, "reciprocal", APPROXIMATE["div"].format("1.0", text), replace(tile, zero=frozenset())
            )
        return known.text

    def _template(self, value: Prim, work: str, args: Sequence[Tile]) -> str:
        op = value.op
        if op == "gelu":
            exact = value.attr("approximate") == "none"
            close = "gelu_f64" if work == "f64" else "gelu"
            return f"{self.helper('gelu_erf' if exact else 'gelu_approx' if self.approximate else close)}({{0}})"
        if op == "erf":
            return f"{self.helper('erf')}({{0}})"
        if op == "pow" and args[1].dtype == "const":
            short = powers(float(args[1].text))
            if short is not None and (work in ("f32", "f64") or float(args[1].text) >= 2):
                return short
        if self.approximate and work == "f32" and op in APPROXIMATE and any(a.axes for a in args):
            if f"{op}_approx" in HELPERS:
                self.helper(f"{op}_approx")
            return APPROXIMATE[op]
        return (FLOAT if work in ("f32", "f64") else INTEGER)[op]

    def number(self, value: Prim, dims: Set[str]) -> str | None:
        """A number made of constants and of sizes in ``dims``, as Python text of ``launch``; None if it is none."""
        if value.op == "const":
            return repr(float(value.attr("value")))
        if value.op == "dim":
            e = value.attr("expr")
            return self.names.factor(e) if symbols(e) <= dims else None
        args = [self.number(a, dims) for a in value.args]
        text = NUMBERS.get(value.op)
        return None if text is None or None in args else text.format(*args)

    def _dim(self, key: object, value: Prim, at: At, frame: Frame) -> Tile:
        e = value.attr("expr")
        return self.assign(
            key, f"{show(e)}_f" if isinstance(e, str) else "size",
            f"ct.astype({self.expr(e)}, {CT_DTYPES[self.float_dtype]})", Tile("", self.float_dtype),
        )  # fmt: skip

    def _iota(self, key: object, value: Prim, at: At, frame: Frame) -> Tile:
        number = self.index(at[0], frame)
        return self.assign(
            key, value.name or "iota", self.convert(number, "i64"), Tile("", "i64", number.axes, number.depth)
        )

    def _causal(self, key: object, value: Prim, at: At, frame: Frame) -> Tile:
        queries, keys = value.shape
        row = self.index(plus(at[0], fixed(op_table.build("-", keys, queries))), frame)
        column = self.index(at[1], frame)
        text = f"ct.where({column.text} <= {row.text}, ct.astype(0.0, {CT_DTYPES[self.float_dtype]}), -INF)"
        tile = Tile("", self.float_dtype, row.axes | column.axes, max(row.depth, column.depth))
        return self.assign(key, "causal", text, tile)

    def _concat(self, key: object, value: Prim, at: At, frame: Frame) -> Tile:
        axis = value.attr("axis")
        work = work_dtype(value.dtype)
        inside = self._part_of(value, axis, at[axis])
        if inside is not None:
            part, start = inside
            place = plus(at[axis], fixed(op_table.build("-", 0, start)))
            tile = self.emit(part, (*at[:axis], place, *at[axis + 1 :]), frame)
            if tile.dtype == work:
                return tile
            return self.assign(key, value.name or "concat", self.convert(tile, work), replace(tile, dtype=work))
        position = self.index(at[axis], frame)
        # A quotient by 1 is the same number, but no longer a plain run along an axis: a tile of it may miss the part
        # altogether, where a tile load has no meaning and a gather gives its padding.
        ends: Expr = 0
        parts: list[tuple[Expr, Tile]] = []
        for part in value.args:
            inner = plus(at[axis], fixed(op_table.build("-", 0, ends)))
            place = Index(((Quotient(inner, 1, False), 1),))
            parts.append((ends, self.emit(part, (*at[:axis], place, *at[axis + 1 :]), frame)))
            ends = op_table.build("+", ends, part.shape[axis])
        text = self.convert(parts[-1][1], work)
        for (_, tile), (start, _) in reversed(list(pairwise(parts))):
            text = f"ct.where({position.text} < {self.expr(start)}, {self.convert(tile, work)}, {text})"
        axes = position.axes.union(*(t.axes for _, t in parts))
        depth = max(position.depth, *(t.depth for _, t in parts))
        return self.assign(key, value.name or "concat", text, Tile("", work, axes, depth))

    def _part_of(self, concat: Prim, axis: int, index: Index) -> tuple[Prim, Expr] | None:
        """(part, where it starts) if a tile of known place lies in one part of a concatenation."""
        run = shifted_axis(index)
        number = None if run is None else self.tile_number(*run)
        if run is None or number is None:
            return None
        width = int(str(run[0].tile))
        start: Expr = 0
        for part in concat.args:
            end = op_table.build("+", start, part.shape[axis])
            first, last = self.known_size(start), self.known_size(end)
            if first is not None and last is not None and first <= number * width and (number + 1) * width <= last:
                return part, start
            start = end
        return None

    def tile_number(self, axis: Axis, start: Index) -> int | None:
        """The number of the tile that lies ``start`` behind a piece of a row; None if it is none or not known."""
        if not (axis.exact and axis.index.isdigit() and str(axis.tile).isdigit()) or start.terms:
            return None
        shift = self.known_size(start.constant)
        width = int(str(axis.tile))
        return None if shift is None or shift % width else int(axis.index) + shift // width

    def numbers(self, axis: Axis, frame: Frame) -> Tile:
        """The numbers of the elements of the present tile along ``axis``; a scalar for an untiled axis."""
        depth = self.axis_depth.get(axis, 0)
        if axis.tile is None:
            return Tile(axis.index, "i32", frozenset(), depth)
        key = ("numbers", axis, frame)
        known = self.known(key)
        if known is not None:
            return known
        tile = self.constant(axis.tile)
        shape = "" if len(frame) == 1 else f"[{', '.join(':' if a is axis else 'None' for a in frame)}]"
        start = "" if axis.index == "0" else f"{axis.index} * {tile} + "
        text = f"{start}ct.arange({tile}, dtype=ct.int32){shape}"
        return self.assign(key, axis.label, text, Tile("", "i32", frozenset([axis]), depth))

    def index(self, index: Index, frame: Frame) -> Tile:
        """An index as text: a scalar, or an integer tile that broadcasts to the frame."""
        plain = [(t, c) for t, c in index.terms]
        if len(plain) == 1 and plain[0][1] == 1 and index.constant == 0:
            return self._atom(plain[0][0], frame)
        parts: list[str] = []
        axes: frozenset[Axis] = frozenset()
        depth = 0
        for atom, c in plain:
            tile = self._atom(atom, frame)
            axes, depth = axes | tile.axes, max(depth, tile.depth)
            parts.append(tile.text if c == 1 else f"{tile.text} * {self.factor(c)}")
        text = " + ".join(parts)
        negative = op_table.build("-", 0, index.constant)
        if text and len(show(negative)) < len(show(index.constant)):
            text += f" - {self.factor(negative)}"
        elif index.constant != 0 or not parts:
            text += (" + " if text else "") + self.factor(index.constant)
        if not axes:
            return Tile(text if text.isalnum() else f"({text})", "i32", axes, depth)
        return self.assign(("index", index, frame), "at", text, Tile("", "i32", axes, depth))

    def _atom(self, atom: object, frame: Frame) -> Tile:
        if isinstance(atom, Axis):
            return self.numbers(atom, frame)
        if isinstance(atom, Loaded):
            tile = self.emit(atom.value, atom.at, frame)
            return tile
        assert isinstance(atom, Quotient)
        inner = self.index(atom.index, frame)
        if atom.by == 1:
            return inner
        text = f"{inner.text} {'%' if atom.remainder else '//'} {self.factor(atom.by)}"
        if not inner.axes:
            return Tile(f"({text})", inner.dtype, inner.axes, inner.depth)
        return self.assign(("quotient", atom, frame), "at", text, Tile("", inner.dtype, inner.axes, inner.depth))

    def parameter(self, buffer: str, shape: tuple[Expr, ...], at: At) -> tuple[Parameter, At]:
        """The kernel's array for a buffer seen in ``shape``, and ``at`` as an index into it.

        A buffer is passed once, in the shape first asked for: two arrays over the same memory would be aliases.
        """
        if buffer not in self.parameters:
            self.parameters[buffer] = Parameter(self.names.buffers[buffer], buffer, shape or (1,))
        known = self.parameters[buffer]
        if shape == known.shape:
            return known, at
        return known, through_reshape(known.shape, shape, at)

    def _leaf(self, key: object, leaf: Prim, at: At, frame: Frame, raw: bool, hint: str) -> Tile:
        shape = (self.flat,) if self.flat is not None and leaf.shape != () else leaf.shape
        array, at = self.parameter(str(leaf.attr("buffer")), shape, at)
        target = leaf.dtype if raw else work_dtype(leaf.dtype)
        astype = "" if target == leaf.dtype else f".astype({CT_DTYPES[target]})"
        place = self.place(array, at, frame)
        hint = f"{hint}_tile"
        if place is None:
            indices = [self.index(i, frame) for i in at]
            axes: frozenset[Axis] = frozenset().union(*(i.axes for i in indices))
            depth = max((i.depth for i in indices), default=0)
            inner = ", ".join(i.text for i in indices) + ("," if len(indices) == 1 else "")
            text = f"ct.gather({array.name}, ({inner})){astype}"
            return self.assign(key, hint, text, Tile("", target, axes, depth))
        shape = place.tile_shape(frame)
        natural = place.shape
        if not place.axes:
            reshape = ".item()"
        elif natural == shape or (len(natural) == 1 and len(frame) == 2 and shape[0] == "1"):
            reshape = ""  # equal, or a vector that broadcasts along the rows
        else:
            reshape = f".reshape(({', '.join(shape)}{',' if len(shape) == 1 else ''}))"
        padding = ", check_bounds=False" if place.exact else ", padding_mode=ct.PaddingMode.ZERO"
        order = f", order=({', '.join(map(str, place.order))})" if place.order else ""
        latency = f", latency={self.latency}" if self.latency and place.depth else ""
        text = f"ct.load({place.text}{order}{padding}{latency}){reshape}{astype}"
        same = self.known(("load", text))  # by another piece of the row
        if same is not None:
            return replace(same, axes=place.axes, zero=place.axes)
        tile = self.assign(key, hint, text, Tile("", target, place.axes, place.depth, place.axes))
        self.scopes[place.depth].memo["load", text] = tile
        return tile

    def place(self, array: Parameter, at: At, frame: Frame) -> Place | None:
        """The tile access that reads or writes ``array`` at ``at``; None if only element by element will do."""
        indices, tiles, found = [], [], []
        depth, name = 0, array.name
        for position, index in enumerate(at):
            if any(isinstance(atom, Quotient) and atom.by == 1 for atom, _ in index.terms):
                return None  # a concat's part: it may lie outside
            if not tiled_axes(index):
                one = self.index(index, frame)
                if one.axes:
                    return None
                depth = max(depth, one.depth)
                indices.append(one.text)
                tiles.append("1")
                continue
            run = shifted_axis(index)
            if run is None or run[0] not in frame or run[0] in found:
                return None
            axis, start = run
            number = self.tile_number(axis, start)
            if number is None and start.constant != 0 and decide(">=", start.constant, 0) is not True:
                return None
            if number is None and (start != ZERO or not op_table.same(axis.extent, array.shape[position])):
                name = self._slice(name, position, axis, start, frame)
            depth = max(depth, self.axis_depth.get(axis, 0))
            indices.append(axis.index if number is None else str(number))
            tiles.append(self.constant(str(axis.tile)))
            found.append(axis)
        order = _order(at, found, frame)
        if order:
            indices, tiles = [indices[p] for p in order], [tiles[p] for p in order]
        comma = "," if len(indices) == 1 else ""
        text = f"{name}, ({', '.join(indices)}{comma}), ({', '.join(tiles)}{comma})"
        exact = bool(found) and all(a.exact for a in found)
        return Place(text, tuple(tiles), frozenset(found), depth, exact, name, f"({', '.join(indices)}{comma})", order)

    def _slice(self, name: str, position: int, axis: Axis, start: Index, frame: Frame) -> str:
        first = self.index(start, frame)
        key = ("slice", name, position, start, axis.extent)
        known = self.known(key)
        if known is None:
            stop = self.expr(axis.extent) if start == ZERO else f"{first.text} + {self.expr(axis.extent)}"
            text = f"{name}.slice(axis={position}, start={first.text}, stop={stop})"
            known = self.assign(key, f"{name}_part", text, Tile("", "array", frozenset(), first.depth))
        return known.text

    def store(self, tile: Tile, at: At, value: Prim, buffer: str, frame: Frame) -> None:
        """Writes the tile of ``value`` to ``buffer``, seen in the value's shape, at ``at``."""
        array, at = self.parameter(buffer, (self.flat,) if self.flat is not None else value.shape, at)
        place = self.place(array, at, frame)
        if place is None:
            raise NotImplementedError(f"no tile store for {buffer} at {at}")
        full = place.tile_shape(frame)
        dtype = f"{array.name}.dtype"
        if tile.dtype == "const" or not tile.axes:
            scalar = self.convert(tile, work_dtype(value.dtype)) if tile.dtype == "const" else tile.text
            text = f"ct.full(({', '.join(place.shape)}{',' if len(place.shape) == 1 else ''}), {scalar}, {dtype})"
        else:
            text = tile.text
            if tile.axes != place.axes:
                text = f"ct.broadcast_to({text}, ({', '.join(full)}{',' if len(full) == 1 else ''}))"
            if place.shape != full:
                text += f".reshape(({', '.join(place.shape)}{',' if len(place.shape) == 1 else ''}))"
            text += f".astype({dtype})"
        order = f", order=({', '.join(map(str, place.order))})" if place.order else ""
        bounds = ", check_bounds=False" if place.exact else ""
        # One value a row lies in memory without gaps; TMA may write behind its end (compiler_faults.jsonl).
        column = self.flat is None and (len(array.shape) == 1 or array.shape[-1] == 1)
        tma = ", allow_tma=False" if not self.tma_stores or (column and tile.axes) else ""
        self.line(f"ct.store({place.array}, {place.index}, {text}{order}{bounds}{tma})")


def _below_its_largest(value: Prim) -> bool:
    """Whether ``value`` is a computed row less its largest number.

    Where the row is a product cuTile makes one multiply-add of both, and the largest, which was rounded before, is no
    longer 0 below itself: 7e9 may lie 256 above its own rounding, and exp of that is infinite.  It does so only where
    both treat subnormal numbers alike.
    """
    row, largest = value.args
    while largest.op in VIEWS or largest.op == "cast":
        (largest,) = largest.args
    return largest.op == "reduce" and largest.attr("kind") == "max" and largest.args[0] is row and row.op in ELEMENTWISE


def _order(at: At, found: Sequence[Axis], frame: Frame) -> tuple[int, ...]:
    """The permutation of the array's axes that brings its tiled ones into the frame's order; empty if they are."""
    wanted = [a for a in frame if a in found]
    if list(found) == wanted:
        return ()
    positions = [p for p, index in enumerate(at) if tiled_axes(index)]
    order = list(range(len(at)))
    for slot, axis in zip(positions, wanted, strict=True):
        order[slot] = positions[list(found).index(axis)]
    return tuple(order)
