"""The kernel body for a matmul with whatever elementwise follows it, and what both contractions share."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_generated.runtime.expr import product

from .arithmetic import CT_DTYPES
from .body import Frame, Tile
from .groups import Group
from .index import ZERO, At, Axis, along, broadcast_at
from .kernels import KernelText, blocks_of, grid_axes, store_all
from .primitives import Prim, accumulator_dtype, operand_dtype
from .writer import KernelWriter


def operand(writer: KernelWriter, value: Prim, at: At, frame: Frame, dtype: str, tf32: bool, hint: str = "") -> str:
    """The operand's tile as mma takes it; padding is zero on every side."""
    tile = writer.emit(value, at, frame, raw=True, hint=hint)
    text = writer.convert(tile, dtype)
    if tile.zero != frozenset(frame):  # gathered or broadcast: beyond the edges may be anything
        inside = [
            f"({writer.numbers(a, frame).text} < {writer.expr(a.extent)})"
            for a in frame
            if not a.exact or a.extent == 1
        ]
        text = text if not inside else f"ct.where({' & '.join(inside)}, {text}, ct.astype(0, {CT_DTYPES[dtype]}))"
    return f"{text}.astype(ct.tfloat32)" if tf32 and dtype == "f32" else text


def in_float32(dtype: str, tf32: bool) -> bool:
    """Whether products are made of float32 operands as they are, on the scalar units."""
    return dtype == "f32" and not tf32


def accumulate(acc: str, left: str, right: str, shape: str, pieces: bool) -> str:
    """The line that adds a product to an accumulator.

    pieces: each piece starts from zero and is added as a whole.  float32 operands are exact, so the error is that of
    summing, and PyTorch's own products are summed in pieces: one long chain of additions would lose against it.
    """
    if pieces:
        return f"{acc} = {acc} + ct.mma({left}, {right}, ct.zeros({shape}, ct.float32))"
    return f"{acc} = ct.mma({left}, {right}, {acc})"


def write_matmul(writer: KernelWriter, group: Group, tf32: bool) -> KernelText:
    """One output tile; the kernel is made of it by :mod:`.source`, for one tile a block or for several."""
    rows, columns, inner = group.rows, group.columns, group.inner
    assert rows is not None
    assert columns is not None
    assert inner is not None
    writer.reserve()
    tm, tn = (writer.constant(str(x.tile)) for x in (rows, columns))
    writer.constant(str(inner.tile))
    group_size = writer.constant("GROUP")
    widths = [columns, *group.beside]
    ends = [*(f"end{n}" for n in range(1, len(widths))), "column_tiles"]
    writer.line(f"row_tiles = ct.cdiv({writer.expr(rows.extent)}, {tm})")
    for axis, end, before in zip(widths, ends, ["", *(f"{end} + " for end in ends)], strict=False):
        writer.line(f"{end} = {before}ct.cdiv({writer.expr(axis.extent)}, {tn})")
    batch = product([x.extent for x in group.grid])
    if group.grid:
        writer.line("place = tile % (row_tiles * column_tiles)")
        grid_axes(writer, group.grid, "(tile // (row_tiles * column_tiles))")
    place = "place" if group.grid else "tile"
    writer.comment("GROUP rows of tiles are walked column by column: neighbours share operands in the L2 cache.")
    writer.line(f"first = {place} // ({group_size} * column_tiles) * {group_size}")
    writer.line(f"height = min(row_tiles - first, {group_size})")
    writer.line(f"i = first + {place} % ({group_size} * column_tiles) % height")
    writer.line(f"j = {place} % ({group_size} * column_tiles) // height")
    doc = "Matrix product, accumulated in float32; what follows it is computed on the accumulator."
    if not group.beside:
        _tile_of(writer, group, columns, group.anchors, tf32)
        if len(group.anchors) > 1:
            doc = "Two matrix products of one left operand, accumulated in float32; what follows is computed on both."
    else:
        doc = "Matrix products of one left operand side by side: the tile's column says which one it belongs to."
        for number, (axis, anchor) in enumerate(zip(widths, group.anchors, strict=True)):
            header = "else:" if axis is widths[-1] else f"{'elif' if number else 'if'} j < {ends[number]}:"
            with writer.block(header, axis):
                if number:
                    writer.line(f"{axis.index} = j - {ends[number - 1]}")
                _tile_of(writer, group, axis, [anchor], tf32)
    size = writer.names.size
    across = " + ".join(f"ct.cdiv({size(axis.extent)}, TN)" for axis in widths)
    tiles = f"ct.cdiv({size(rows.extent)}, TM) * {f'({across})' if group.beside else across}"
    tiles += f" * {writer.names.factor(batch)}" if group.grid else ""
    hints = ("occupancy", "num_ctas", "num_worker_warps")
    sizes = [x.extent for x in (rows, *widths, *group.grid)]
    return KernelText(writer, doc, ("blocks",), hints, blocks_of(tiles), sizes, persistent=True)


def _tile_of(writer: KernelWriter, group: Group, columns: Axis, anchors: Sequence[Prim], tf32: bool) -> None:
    """The lines that compute and store one tile of the anchors' results, whose columns lie along ``columns``."""
    rows, inner = group.rows, group.inner
    assert rows is not None
    assert inner is not None
    tm, tn, tk = (str(x.tile) for x in (rows, columns, inner))
    a = anchors[0].args[0]
    names = ("acc",) if len(anchors) == 1 else ("acc1", "acc2")
    accumulators = dict(zip(anchors, names, strict=True))
    dtype = operand_dtype([x for anchor in anchors for x in anchor.args])
    acc_dtype = accumulator_dtype(dtype)
    for acc in accumulators.values():
        writer.line(f"{acc} = ct.zeros(({tm}, {tn}), {CT_DTYPES[acc_dtype]})")
    out_at = group_at(group, columns)
    a_at = (*broadcast_at(out_at[:-2], a.shape[:-2]), out_at[-2], along(inner))
    with writer.block(f"for step in range(ct.cdiv({writer.expr(inner.extent)}, {tk})):", inner):
        left = operand(writer, a, a_at, (rows, inner), dtype, tf32)
        for anchor, acc in accumulators.items():
            b = anchor.args[1]
            b_at = (*broadcast_at(out_at[:-2], b.shape[:-2]), along(inner), out_at[-1])
            right = operand(writer, b, b_at, (inner, columns), dtype, tf32)
            writer.line(accumulate(acc, left, right, f"({tm}, {tn})", in_float32(dtype, tf32)))
    for anchor, acc in accumulators.items():
        writer.define(anchor, Tile(acc, acc_dtype, frozenset((rows, columns))))
    store_all(writer, group, (rows, columns))


def group_at(group: Group, columns: Axis | None = None) -> At:
    """The index of the anchor's result: grid axes, rows, columns, with nothing for axes of length 1.

    columns: those of one of several results that lie side by side.
    """
    axes = iter((*group.grid, group.rows, columns or group.columns))
    shape = group.anchors[0].shape
    at = []
    for position, size in enumerate(shape):
        if size == 1 and position < len(shape) - 2:
            at.append(ZERO)
        else:
            axis = next(axes)
            assert axis is not None
            at.append(along(axis))
    return tuple(at)
