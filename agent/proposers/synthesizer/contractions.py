"""Kernel bodies for matmul with an epilogue, and for attention with online softmax."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_generated.runtime.expr import product

from .arithmetic import CT_DTYPES
from .index import ZERO, At, along, broadcast_at
from .kernels import Kernel, grid_axes, store_all
from .primitives import Prim
from .schedule import Group
from .writer import Frame, KernelWriter, Tile

LOG2E = 1.4426950408889634


def _operand_dtype(operands: Sequence[Prim]) -> str:
    """The dtype in which operands meet: their own if they share one, the float that holds both otherwise."""
    dtypes = {o.dtype for o in operands}
    if dtypes <= {"bf16", "f16", "f32", "f64"}:
        if len(dtypes) == 1:
            return dtypes.pop()
        return "f64" if "f64" in dtypes else "f32"
    return "f64"  # integers: exact up to 2^53


def _operand(writer: KernelWriter, value: Prim, at: At, frame: Frame, dtype: str, tf32: bool, hint: str = "") -> str:
    """The operand's tile as mma takes it; padding is zero on every side."""
    tile = writer.emit(value, at, frame, raw=True, hint=hint)
    text = writer.convert(tile, dtype)
    if not tile.zero or tile.axes != frozenset(frame):  # gathered or broadcast: beyond the edges may be anything
        inside = [
            f"({writer.numbers(a, frame).text} < {writer.expr(a.extent)})"
            for a in frame
            if not a.exact or a.extent == 1
        ]
        text = text if not inside else f"ct.where({' & '.join(inside)}, {text}, ct.astype(0, {CT_DTYPES[dtype]}))"
    return f"{text}.astype(ct.tfloat32)" if tf32 and dtype == "f32" else text


def write_matmul(writer: KernelWriter, group: Group, tf32: bool) -> Kernel:
    """One output tile; the kernel is made of it by :mod:`.source`, for one tile a block or for several."""
    rows, columns, inner = group.rows, group.columns, group.inner
    assert rows is not None
    assert columns is not None
    assert inner is not None
    writer.reserve()
    anchor = group.anchors[0]
    a, b = anchor.args
    tm, tn, tk = (writer.constant(str(x.tile)) for x in (rows, columns, inner))
    group_size = writer.constant("GROUP")
    dtype = _operand_dtype((a, b))
    acc_dtype = "f64" if dtype == "f64" else "f32"
    writer.line(f"row_tiles = ct.cdiv({writer.expr(rows.extent)}, {tm})")
    writer.line(f"column_tiles = ct.cdiv({writer.expr(columns.extent)}, {tn})")
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
    writer.line(f"acc = ct.zeros(({tm}, {tn}), {CT_DTYPES[acc_dtype]})")
    out_at = group_at(group)
    a_at = (*broadcast_at(out_at[:-2], a.shape[:-2]), out_at[-2], along(inner))
    b_at = (*broadcast_at(out_at[:-2], b.shape[:-2]), along(inner), out_at[-1])
    with writer.block(f"for step in range(ct.cdiv({writer.expr(inner.extent)}, {tk})):", inner):
        left = _operand(writer, a, a_at, (rows, inner), dtype, tf32)
        right = _operand(writer, b, b_at, (inner, columns), dtype, tf32)
        writer.line(f"acc = ct.mma({left}, {right}, acc)")
    writer.define(anchor, Tile("acc", acc_dtype, frozenset((rows, columns))))
    store_all(writer, group, (rows, columns))
    size = writer.names.size
    tiles = f"ct.cdiv({size(rows.extent)}, TM) * ct.cdiv({size(columns.extent)}, TN)"
    tiles += f" * {writer.names.factor(batch)}" if group.grid else ""
    setup = [
        f"tiles = {tiles}",
        "# persistent: as many blocks as fit at once, each walks through several tiles",
        "blocks = min(tiles, num_sms * occupancy) if PERSISTENT and num_sms else tiles",
    ]
    doc = "Matrix product, accumulated in float32; what follows it is computed on the accumulator."
    hints = ("occupancy", "num_ctas", "num_worker_warps")
    sizes = [x.extent for x in (rows, columns, *group.grid)]
    return Kernel(writer, doc, ("blocks",), hints, setup, sizes, persistent=True)


def group_at(group: Group) -> At:
    """The index of the anchor's result: grid axes, rows, columns, with nothing for axes of length 1."""
    axes = iter((*group.grid, group.rows, group.columns))
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


# ---------------------------------------------------------------------------------------------------- attention


def _without_causal(scores: Prim) -> tuple[Prim, bool]:
    """(scores without the causal mask, whether there was one as their last summand)."""
    if scores.op == "add":
        left, right = scores.args
        if right.op == "causal":
            return left, True
        if left.op == "causal":
            return right, True
    return scores, False


def _positive(v: Prim) -> bool:
    """Whether a scalar is surely above zero."""
    if v.op == "const":
        return bool(v.attr("value") > 0)
    if v.op == "dim":
        return True  # sizes are
    return v.op in ("mul", "div", "sqrt", "rsqrt", "add", "exp", "square") and all(_positive(a) for a in v.args)


def _scale(scores: Prim, product: Prim) -> tuple[Prim, str] | None:
    """(s, "*" or "/") if the scores are the product times or over a positive scalar."""
    if scores.op in ("mul", "div") and len(scores.args) == 2:
        left, right = scores.args
        if left is product and right.scalar and _positive(right):
            return right, "*" if scores.op == "mul" else "/"
        if scores.op == "mul" and right is product and left.scalar and _positive(left):
            return left, "*"
    return None


def write_attention(writer: KernelWriter, group: Group, tf32: bool) -> Kernel:
    """A block has TM queries of one head and walks over the keys with a running maximum and sum (online softmax).

    Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al., "FlashAttention" (2022).
    """
    rows, columns, depth, keys = group.rows, group.columns, group.inner, group.keys
    assert rows is not None
    assert columns is not None
    assert depth is not None
    assert keys is not None
    assert group.scores is not None
    assert group.product is not None
    writer.reserve()
    anchor, qk = group.anchors[0], group.product
    q, k = qk.args
    values = anchor.args[1]
    scores, causal = _without_causal(group.scores)
    scale = _scale(scores, qk)
    out_at = group_at(group)
    batch = out_at[:-2]
    qk_batch = broadcast_at(batch, qk.shape[:-2])
    tm, tn, td, te = (writer.constant(str(x.tile)) for x in (rows, keys, depth, columns))
    size = writer.names.size
    queries_n, keys_n = writer.factor(rows.extent), writer.factor(keys.extent)

    if group.grid:
        grid_axes(writer, group.grid, "ct.bid(0)")
    if causal:
        writer.comment("The last queries see the most keys: they start first.")
        writer.line(f"i = ct.cdiv({queries_n}, {tm}) - 1 - ct.bid(1)")
    else:
        writer.line("i = ct.bid(1)")
    q_frame, s_frame = (rows, depth), (rows, keys)
    dtype = _operand_dtype((q, k))
    value_dtype = _operand_dtype((values,))
    for axis in (depth, columns):
        writer.axis_depth[axis] = 0
    q_at = (*broadcast_at(qk_batch, q.shape[:-2]), along(rows), along(depth))
    q_text = _operand(writer, q, q_at, q_frame, dtype, tf32, "q")
    work = writer.float_dtype
    factor = _factor(writer, scale, q_frame)
    f = CT_DTYPES[work]
    writer.line(f"top = ct.full(({tm}, 1), -INF, {f})")
    writer.line(f"total = ct.full(({tm}, 1), 0, {f})")
    writer.line(f"acc = ct.full(({tm}, {te}), 0, {f})")
    if causal:
        seen = f"{keys_n} - {queries_n}" if keys_n != queries_n else ""
        reach = f" + {seen}" if seen else ""
        writer.comment(
            "Query t sees keys up to t"
            + (f" + {seen}" if seen else "")
            + "; the first row of the block sees the fewest."
        )
        writer.line(f"whole = max(min(i * {tm}{reach} + 1, {keys_n}), 0) // {tn}")
        writer.line(f"tiles = ct.cdiv(max(min((i + 1) * {tm}{reach}, {keys_n}), 0), {tn})")
    else:
        writer.line(f"whole = {keys_n} // {tn}")
        writer.line(f"tiles = ct.cdiv({keys_n}, {tn})")

    k_at = (*broadcast_at(qk_batch, k.shape[:-2]), along(depth), along(keys))
    v_at = (*broadcast_at(batch, values.shape[:-2]), along(keys), along(columns))

    def step(masked: bool) -> None:
        k_text = _operand(writer, k, k_at, (depth, keys), dtype, tf32, "k")
        writer.line(f"qk = ct.mma({q_text}, {k_text}, ct.full(({tm}, {tn}), 0, {f}))")
        writer.define(qk, Tile("qk", work, frozenset((rows, keys)), len(writer.scopes) - 1))
        if scale is None:
            s = writer.emit(scores, (*qk_batch, along(rows), along(keys)), s_frame)
            text = writer.convert(s, work)
            if s.axes != frozenset((rows, keys)):
                text = f"ct.broadcast_to({text}, ({tm}, {tn}))"
        else:
            text = "qk"
        if masked:
            column = writer.numbers(keys, s_frame).text
            tests: list[str] = [] if keys.exact else [f"({column} < {keys_n})"]
            if causal:
                tests.append(f"({column} <= {writer.numbers(rows, s_frame).text}{reach})")
            writer.line(f"s = ct.where({' & '.join(tests)}, {text}, -INF)")
            text = "s"
        writer.line(f"new_top = ct.maximum(top, ct.max({text}, axis=1, keepdims=True))")
        writer.comment("Where nothing is visible yet the maximum is -inf, and -inf - -inf would be NaN.")
        writer.line("base = ct.where(new_top == -INF, 0.0, new_top)")
        writer.line(f"p = ct.exp2(({text} - base) * {factor})")
        writer.line(f"fade = ct.exp2((top - base) * {factor})")
        writer.line("total = total * fade + ct.sum(p, axis=1, keepdims=True)")
        v_text = _operand(writer, values, v_at, (keys, columns), value_dtype, tf32, "v")
        p_text = "p" if value_dtype == work else f"p.astype({CT_DTYPES[value_dtype]})"
        if tf32 and value_dtype == "f32":
            p_text = "p.astype(ct.tfloat32)"
        writer.line(f"acc = ct.mma({p_text}, {v_text}, acc * fade)")
        writer.line("top = new_top")

    writer.comment("Tiles of keys that every query of the block sees whole.")
    with writer.block("for j in range(whole):", keys):
        step(masked=False)
    if causal or not keys.exact:
        writer.comment("Tiles that are seen in part.")
        with writer.block("for j in range(whole, tiles):", keys):
            step(masked=True)
    writer.line("out = acc / total")
    writer.define(anchor, Tile("out", work, frozenset((rows, columns)), 0))
    store_all(writer, group, (rows, columns))
    heads = product([x.extent for x in group.grid])
    setup = _padded("TD", writer.names.factor(depth.extent))
    if te != td:
        setup += _padded("TE", writer.names.factor(columns.extent))
    sizes = [x.extent for x in (rows, columns, depth, *group.grid)]
    doc = "Attention: online softmax over tiles of keys, scores never leave the chip."
    grid = (size(heads), f"ct.cdiv({size(rows.extent)}, TM)")
    return Kernel(writer, doc, grid, ("occupancy", "num_ctas", "num_worker_warps"), [], sizes, setup)


def _padded(name: str, extent: str) -> list[str]:
    return [f"{name} = max(16, 1 << ({extent} - 1).bit_length())  # a tile's sizes are powers of two"]


def _factor(writer: KernelWriter, scale: tuple[Prim, str] | None, frame: Frame) -> str:
    """What scores are multiplied by so that exp2 serves for exp: scale * log2(e)."""
    if scale is None:
        return repr(LOG2E)
    value, how = scale
    tile = writer.emit(value, (), frame)
    if tile.dtype == "const":
        number = float(tile.text)
        return repr(number * LOG2E if how == "*" else LOG2E / number)
    text = f"{tile.text} * {LOG2E}" if how == "*" else f"{LOG2E} / {tile.text}"
    writer.comment("exp(scale * s) = exp2(factor * s)")
    writer.line(f"factor = {text}")
    return "factor"
