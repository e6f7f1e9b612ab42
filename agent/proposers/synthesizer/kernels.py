"""The simple kernel bodies: elementwise maps and row reductions.  Contractions are in :mod:`.matmul`
and :mod:`.attention`."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels_generated.runtime.expr import Expr, product
from kernels_generated.runtime.plan import MAX_GRID

from .arithmetic import CT_DTYPES
from .body import Frame, Tile
from .groups import Group, Stored
from .index import Axis, along, rebind
from .primitives import Prim, work_dtype
from .writer import KernelWriter

# How far ahead loads of rows are asked to be made: layernorm of 8192 rows of 768 took 10.9 us on an H200, without 11.6.
ROW_LATENCY = 10

CT_IDENTITY = {
    ("max", "f32"): "-INF",
    ("max", "f64"): "-INF",
    ("max", "i32"): "-2147483648",
    ("max", "i64"): "-9223372036854775808",
}


@dataclass(frozen=True)
class Chunk:
    """A piece of a row of known length; exact: all of it lies in the row."""

    offset: int
    width: int
    exact: bool


@dataclass
class KernelText:
    """A written kernel and how to launch it.

    grid: up to three entries as Python text over dimensions and tile constants; ``sizes`` are the dimensions in it.
    hints: which launch parameters go to ``replace_hints``.
    setup: lines of ``launch`` just before the launch; setup_constants: those that compute tile constants from sizes.
    persistent: the body computes tile number ``tile`` of ``tiles``; a block computes one or walks through several.
    striding: the body itself walks from its block's number in steps of the grid, which PERSISTENT makes small.
    """

    writer: KernelWriter
    doc: str
    grid: tuple[str, ...]
    hints: tuple[str, ...] = ("occupancy",)
    setup: list[str] = field(default_factory=list)
    sizes: list[Expr] = field(default_factory=list)
    setup_constants: list[str] = field(default_factory=list)
    persistent: bool = False
    striding: bool = False

    @property
    def name(self) -> str:
        return self.writer.name


def grid_axes(writer: KernelWriter, axes: tuple[Axis, ...], block: str) -> Expr:
    """Lines that take the untiled axes' indices from a block number; returns how many there are of them together."""
    count = product([a.extent for a in axes])
    if len(axes) == 1:
        writer.line(f"{axes[0].index} = {block}")
    rest = block
    if len(axes) > 1:
        for axis in reversed(axes[1:]):
            writer.line(f"{axis.index} = {rest} % {writer.factor(axis.extent)}")
            rest = f"{rest} // {writer.factor(axis.extent)}"
        writer.line(f"{axes[0].index} = {rest}")
    return count


def _first_axis(writer: KernelWriter, group: Group) -> str:
    """Lines that take the indices of rows and untiled axes from a block's place on the grid's first axis.

    Returns how many blocks it has.  Only that axis has room for more than 65,535 of them, and a tensor may well have
    more matrices.
    """
    size, rows = writer.names.size, group.rows
    if rows is None:
        return size(grid_axes(writer, group.grid, "ct.bid(0)")) if group.grid else "1"
    tiles = f"ct.cdiv({size(rows.extent)}, ROWS)"
    if not group.grid:
        writer.line("i = ct.bid(0)")
        return tiles
    writer.line(f"row_tiles = ct.cdiv({writer.expr(rows.extent)}, {writer.constant(str(rows.tile))})")
    writer.line("i = ct.bid(0) % row_tiles")
    count = grid_axes(writer, group.grid, "ct.bid(0) // row_tiles")
    return f"{tiles} * {writer.names.factor(count)}"


def store_all(writer: KernelWriter, group: Group, frame: Frame, bound: dict[Axis, Axis] | None = None) -> None:
    """Stores what lies in the frame: of matmuls side by side each has its own."""
    elsewhere = {axis for axis in (group.columns, *group.beside) if axis is not None and axis not in frame}
    for store in group.stores:
        if group.beside and any(index.axes() & elsewhere for index in store.at):
            continue
        at = rebind(store.at, bound) if bound else store.at
        tile = writer.emit(store.value, at, frame)
        writer.store(tile, at, store.value, store.buffer, frame)


# ---------------------------------------------------------------------------------------------------- maps


def blocks_of(tiles: str) -> list[str]:
    """Lines of ``launch`` that say how many blocks compute ``tiles``."""
    return [
        f"tiles = {tiles}",
        "# persistent: as many blocks as fit at once, each walks through several tiles",
        "blocks = min(tiles, num_sms * occupancy) if PERSISTENT and num_sms else tiles",
    ]


def pieces_of(columns: Axis, chunks: list[Chunk] | None) -> list[Axis]:
    """The tiles that ``chunks`` make of a row; each of them is an axis of its own."""
    return [Axis(str(c.offset // c.width), columns.extent, str(c.width), c.exact, "cols") for c in chunks or ()]


def write_map(writer: KernelWriter, group: Group, chunks: list[Chunk] | None = None) -> KernelText:
    """Each block computes one tile of the outputs, element by element.

    chunks: the pieces of a row whose length is known: then a block computes whole rows.
    """
    size = writer.names.size
    if group.flat:
        axis = group.columns
        assert axis is not None
        writer.flat = axis.extent
        writer.line("j = ct.bid(0)")
        for store in group.stores:
            tile = writer.emit(store.value, (along(axis),), (axis,))
            writer.store(tile, (along(axis),), store.value, store.buffer, (axis,))
        return KernelText(
            writer,
            "Elementwise over all elements as one long row.",
            (f"ct.cdiv({size(axis.extent)}, CHUNK)",),
            sizes=[axis.extent],
        )
    rows, columns = group.rows, group.columns
    frame = tuple(a for a in (rows, columns) if a is not None)
    sizes = [a.extent for a in (rows, columns, *group.grid) if a is not None]
    if rows is not None and columns is not None and chunks:
        return _map_of_pieces(writer, group, (rows, columns), pieces_of(columns, chunks), sizes)
    grid = [_first_axis(writer, group)] if rows is not None or group.grid else []
    if columns is not None:
        writer.line(f"j = ct.bid({len(grid)})")
        grid.append(f"ct.cdiv({size(columns.extent)}, CHUNK)")
    store_all(writer, group, frame)
    return KernelText(
        writer, "Elementwise: a block computes one tile of the result.", tuple(grid) or ("1",), sizes=sizes
    )


def _map_of_pieces(
    writer: KernelWriter, group: Group, frame: Frame, parts: list[Axis], sizes: list[Expr]
) -> KernelText:
    """Whole rows; where there are matrices of them a block strides through those: what they share is loaded once."""
    doc = "Elementwise: a block computes whole rows, piece by piece."
    tiles = f"ct.cdiv({writer.names.size(frame[0].extent)}, ROWS)"
    writer.line("i = ct.bid(0)")
    if not group.grid:
        for part in parts:
            _store_wide(writer, group.stores, frame[1], part, frame)
        return KernelText(writer, doc, (tiles,), sizes=sizes)
    count = product([a.extent for a in group.grid])
    item = writer.fresh("item")
    with writer.block(f"for {item} in range(ct.bid(1), {writer.expr(count)}, ct.num_blocks(1)):", *group.grid):
        writer.latency = ROW_LATENCY
        grid_axes(writer, group.grid, item)
        for part in parts:
            _store_wide(writer, group.stores, frame[1], part, frame)
    setup = [
        f"tiles, count = {tiles}, {writer.names.size(count)}",
        "# persistent: as many blocks as fit at once, each walks through several matrices",
        f"most = max(1, num_sms * occupancy // tiles) if PERSISTENT and num_sms else {MAX_GRID[1]}",
        "blocks = min(count, most)",
    ]
    return KernelText(writer, doc, ("tiles", "blocks"), setup=setup, sizes=sizes, striding=True)


# ---------------------------------------------------------------------------------------------------- rows


def write_rows(writer: KernelWriter, group: Group, chunks: list[Chunk] | None = None) -> KernelText:
    """Blocks of rows; a reduction reads its row in chunks, and what needs its result reads the row again.

    chunks: the pieces of a row whose length is known: then all of it is read once and stays in registers.  Where rows
    have one index the blocks stride through them: what all rows share is loaded once, before.  They store without TMA,
    which takes a detour through shared memory (RMSNorm of 4096 rows of 4096 on an H200: 21.7 us, with it 25.3; softmax
    of 8192 rows of 1024 13.9, with it 14.7; layernorm of 8192 rows of 768 11.1 both).
    """
    rows, columns = group.rows, group.columns
    assert columns is not None
    parts = pieces_of(columns, chunks)
    sizes = [a.extent for a in (rows, *group.grid) if a is not None]
    if parts and rows is not None and not group.grid:
        tiles = f"ct.cdiv({writer.expr(rows.extent)}, {writer.constant(str(rows.tile))})"
        with writer.block(f"for i in range(ct.bid(0), {tiles}, ct.num_blocks(0)):", rows):
            writer.latency, writer.tma_stores = ROW_LATENCY, False
            _rows_body(writer, group, (rows, columns), parts)
        setup = blocks_of(f"ct.cdiv({writer.names.size(rows.extent)}, ROWS)")
        return KernelText(writer, _rows_doc(chunks), ("blocks",), setup=setup, sizes=sizes, striding=True)
    grid = (_first_axis(writer, group),)
    _rows_body(writer, group, (rows or Axis("0", 1, "1"), columns), parts)
    return KernelText(writer, _rows_doc(chunks), grid, sizes=sizes)


def _rows_doc(chunks: list[Chunk] | None) -> str:
    if chunks:
        width = sum(c.width for c in chunks)
        return f"Rows of up to {width} elements, kept in registers from the first pass to the last."
    return "Rows: every reduction over a row is one pass over its chunks, accumulated per column in float32."


def _rows_body(writer: KernelWriter, group: Group, frame: Frame, parts: list[Axis]) -> None:
    columns = frame[1]
    levels = _levels(group)
    for level in range(1, max(levels.values(), default=0) + 1):
        anchors = [a for a in group.anchors if levels[a] == level]
        writer.line()
        writer.comment(f"Pass {level}: {', '.join(dict.fromkeys(_what(a) for a in anchors))}.")
        if parts:
            _reduce_parts(writer, group, anchors, frame, parts)
        else:
            _reduce_loop(writer, group, anchors, frame)
    wide = [s for s in group.stores if along(columns) in s.at]
    narrow = [s for s in group.stores if along(columns) not in s.at]
    writer.line()
    for store in narrow:
        writer.store(writer.emit(store.value, store.at, frame), store.at, store.value, store.buffer, frame)
    if wide and parts:
        for part in parts:
            _store_wide(writer, wide, columns, part, frame)
    elif wide:
        writer.comment("The rows themselves.")
        with writer.block(
            f"for j in range(ct.cdiv({writer.expr(columns.extent)}, {writer.constant('CHUNK')})):", columns
        ):
            _store_wide(writer, wide, columns, columns, frame)


def _store_wide(writer: KernelWriter, stores: list[Stored], columns: Axis, part: Axis, frame: Frame) -> None:
    here = (frame[0], part)
    for store in stores:
        at = rebind(store.at, {columns: part})
        writer.store(writer.emit(store.value, at, here), at, store.value, store.buffer, here)


def _what(anchor: Prim) -> str:
    return f"{anchor.attr('kind')} of {anchor.args[0].name or anchor.args[0].op}"


def _levels(group: Group) -> dict[Prim, int]:
    """In which pass each reduction happens: one after the latest that its argument needs."""
    levels: dict[Prim, int] = {}
    known: dict[Prim, int] = {}

    def level(v: Prim) -> int:
        if v in levels:
            return levels[v]
        if v not in known:
            known[v] = max((level(a) for a in v.args), default=0)
        return known[v]

    for anchor in group.anchors:
        levels[anchor] = 1 + level(anchor.args[0])
    return levels


def _combine(anchor: Prim, acc: str, value: str, dtype: str) -> str:
    if anchor.attr("kind") == "max":
        nan = ", propagate_nan=True" if dtype in ("f32", "f64") else ""
        return f"ct.maximum({acc}, {value}{nan})"
    return f"{acc} + {value}"


def _finish(writer: KernelWriter, anchor: Prim, acc: str, dtype: str, frame: Frame, alone: bool) -> None:
    """The line that reduces an accumulator across its columns, and its name as the anchor's value."""
    where = "" if alone else ", axis=1, keepdims=True"
    nan = ", propagate_nan=True" if anchor.attr("kind") == "max" and dtype in ("f32", "f64") else ""
    function = "max" if anchor.attr("kind") == "max" else "sum"
    text = f"ct.{function}({acc}{where}{nan})"
    _define(writer, anchor, text, dtype, frame, alone)


def _define(writer: KernelWriter, anchor: Prim, text: str, dtype: str, frame: Frame, alone: bool) -> None:
    if anchor.attr("kind") == "mean":
        count = writer.known_size(frame[1].extent)
        if count is not None and (writer.approximate or count & (count - 1) == 0):  # for a power of two it is exact
            text += f" * (1 / {count})"
        else:
            text += f" / {writer.factor(frame[1].extent)}"
    name = writer.fresh(anchor.name or anchor.attr("kind"))
    writer.line(f"{name} = {text}")
    writer.define(anchor, Tile(name, dtype, frozenset() if alone else frozenset([frame[0]]), len(writer.scopes) - 1))


def _masked(writer: KernelWriter, anchor: Prim, tile: Tile, axis: Axis, frame: Frame, dtype: str) -> str:
    """The value with the identity where the tile reaches beyond the row."""
    value = writer.convert(tile, dtype)
    largest = anchor.attr("kind") == "max"
    if axis.exact or (axis in tile.zero and not largest):
        return value
    valid = writer.once(
        ("valid", axis, frame), "valid", f"{writer.numbers(axis, frame).text} < {writer.expr(axis.extent)}"
    )
    neutral = CT_IDENTITY[("max", dtype)] if largest else ("0" if dtype in ("i32", "i64") else "0.0")
    return f"ct.where({valid}, {value}, {neutral})"


def _reduce_loop(writer: KernelWriter, group: Group, anchors: list[Prim], frame: Frame) -> None:
    rows, columns = frame
    chunk = writer.constant("CHUNK")
    shape = f"({writer.constant(str(rows.tile))}, {chunk})"
    names: dict[Prim, tuple[str, str]] = {}
    for a in anchors:
        dtype = work_dtype(a.dtype)
        acc = writer.fresh(f"{a.name or a.attr('kind')}_acc")
        start = CT_IDENTITY[("max", dtype)] if a.attr("kind") == "max" else "0"
        writer.line(f"{acc} = ct.full({shape}, {start}, {CT_DTYPES[dtype]})")
        names[a] = (acc, dtype)
    with writer.block(f"for j in range(ct.cdiv({writer.expr(columns.extent)}, {chunk})):", columns):
        for a in anchors:
            acc, dtype = names[a]
            tile = writer.emit(a.args[0], group.reads[a], frame)
            writer.line(f"{acc} = {_combine(a, acc, _masked(writer, a, tile, columns, frame, dtype), dtype)}")
    for a in anchors:
        _finish(writer, a, *names[a], frame, alone=group.rows is None)


def _reduce_parts(writer: KernelWriter, group: Group, anchors: list[Prim], frame: Frame, parts: list[Axis]) -> None:
    columns = frame[1]
    alone = group.rows is None
    even = len({p.tile for p in parts}) == 1
    where = "" if alone else ", axis=1, keepdims=True"
    for a in anchors:
        dtype = work_dtype(a.dtype)
        kind = "max" if a.attr("kind") == "max" else "sum"
        nan = ", propagate_nan=True" if kind == "max" and dtype in ("f32", "f64") else ""
        pieces = []
        for part in parts:
            here = (frame[0], part)
            tile = writer.emit(a.args[0], rebind(group.reads[a], {columns: part}), here)
            value = _masked(writer, a, tile, part, here, dtype)
            if part not in tile.axes:
                value = f"ct.broadcast_to({value}, ({frame[0].tile}, {part.tile}))"
            pieces.append(value if even else f"ct.{kind}({value}{where}{nan})")
        text = pieces[0]
        for piece in pieces[1:]:
            text = _combine(a, text, piece, dtype)
        _define(writer, a, (f"ct.{kind}({text}{where}{nan})" if even else f"({text})"), dtype, frame, alone)
