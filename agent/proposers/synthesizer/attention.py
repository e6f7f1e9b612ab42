"""The kernel body for attention: softmax(f(q kᵀ)) v with an online softmax; scores never leave the chip.

Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

import math

from kernels_generated.runtime.expr import product, symbols

from .arithmetic import CT_DTYPES, literal
from .body import Tile
from .groups import Group
from .index import Axis, along, broadcast_at
from .kernels import KernelText, grid_axes, store_all
from .matmul import accumulate, group_at, in_float32, operand
from .primitives import Prim, operand_dtype
from .writer import KernelWriter

LOG2E = 1.4426950408889634


def write_attention(writer: KernelWriter, group: Group, tf32: bool) -> KernelText:
    """A block has TM queries of one head and walks over the keys with a running maximum and sum."""
    return _Attention(writer, group, tf32).write()


def _present(axis: Axis | None) -> Axis:
    assert axis is not None
    return axis


class _Attention:
    """One attention kernel under construction: names for its parts, and the lines in order."""

    def __init__(self, writer: KernelWriter, group: Group, tf32: bool) -> None:
        self.writer, self.group, self.tf32 = writer, group, tf32
        self.rows, self.columns = _present(group.rows), _present(group.columns)
        self.depth, self.keys = _present(group.inner), _present(group.keys)
        assert group.scores is not None
        assert group.product is not None
        self.anchor, self.qk = group.anchors[0], group.product
        self.q, self.k = self.qk.args
        self.values = self.anchor.args[1]
        self.scores, self.causal = _without_causal(group.scores)
        self.scores, self.limit = _without_limit(self.scores)
        self.scale = _scale(self.scores, self.qk)
        self.dtype, self.value_dtype = operand_dtype((self.q, self.k)), operand_dtype((self.values,))
        self.work = writer.float_dtype
        self.setup: list[str] = []
        self.batch = group_at(group)[:-2]
        self.qk_batch = broadcast_at(self.batch, self.qk.shape[:-2])
        writer.reserve()
        self.tm, self.tn, self.te = (writer.constant(str(a.tile)) for a in (self.rows, self.keys, self.columns))
        self.queries_n, self.keys_n = writer.factor(self.rows.extent), writer.factor(self.keys.extent)
        self.seen_n = self.keys_n  # keys that may be seen: all, or so many as an argument says
        # query t sees keys up to t + (keys - queries)
        self.reach = f" + {self.keys_n} - {self.queries_n}" if self.keys_n != self.queries_n else ""

    @property
    def in_pieces(self) -> bool:
        """Whether q kᵀ is summed over pieces of the head, reloaded for each: float32 on scalar units."""
        return self.depth.tile == "TK"

    @property
    def all_see_a_key(self) -> bool:
        """Whether each query sees the first key, so that no maximum stays at -inf: nothing else hides a score."""
        return (self.scale is not None or self.scores is self.qk) and not (self.causal and self.reach)

    def write(self) -> KernelText:
        writer = self.writer
        if self.group.grid:
            grid_axes(writer, self.group.grid, "ct.bid(0)")
        if self.causal:
            writer.comment("The last queries see the most keys: they start first.")
            writer.line(f"i = ct.cdiv({self.queries_n}, {self.tm}) - 1 - ct.bid(1)")
        else:
            writer.line("i = ct.bid(1)")
        self.q_text = "" if self.in_pieces else self._query()
        self.factor = self._factor()
        dtype = CT_DTYPES[self.work]
        writer.line(f"top = ct.full(({self.tm}, 1), -INF, {dtype})")
        writer.line(f"total = ct.full(({self.tm}, 1), 0, {dtype})")
        writer.line(f"acc = ct.full(({self.tm}, {self.te}), 0, {dtype})")
        self._reach_lines()
        writer.comment("Tiles of keys that every query of the block sees whole.")
        with writer.block("for j in range(whole):", self.keys):
            self._step(masked=False)
        if self.causal or self.limit or not self.keys.exact:
            writer.comment("Tiles that are seen in part.")
            with writer.block("for j in range(whole, tiles):", self.keys):
                self._step(masked=True)
        if writer.approximate:
            writer.line("out = acc * ct.truediv(1.0, total, rounding_mode=ct.RoundingMode.APPROX)")
        else:
            writer.line("out = acc / total")
        writer.define(self.anchor, Tile("out", self.work, frozenset((self.rows, self.columns))))
        store_all(writer, self.group, (self.rows, self.columns))
        return self._kernel()

    def _kernel(self) -> KernelText:
        names = self.writer.names
        heads = product([a.extent for a in self.group.grid])
        head = self.columns.extent if self.in_pieces else self.depth.extent
        widths = {"TD": head, "TE": self.columns.extent}
        constants = [
            f"{tile} = max(16, 1 << ({names.factor(width)} - 1).bit_length())  # a tile's sizes are powers of two"
            for tile, width in widths.items()
            if tile in self.writer.constants
        ]
        doc = "Attention: a block walks its queries over all keys with a running maximum and sum (online softmax)."
        grid = (names.size(heads), f"ct.cdiv({names.size(self.rows.extent)}, TM)")
        sizes = [a.extent for a in (self.rows, self.columns, self.depth, *self.group.grid)]
        hints = ("occupancy", "num_ctas", "num_worker_warps")
        return KernelText(self.writer, doc, grid, hints, self.setup, sizes, constants)

    # ------------------------------------------------------------------------------------------ parts

    def _query(self) -> str:
        at = (*broadcast_at(self.qk_batch, self.q.shape[:-2]), along(self.rows), along(self.depth))
        return operand(self.writer, self.q, at, (self.rows, self.depth), self.dtype, self.tf32, "q")

    def _key(self) -> str:
        at = (*broadcast_at(self.qk_batch, self.k.shape[:-2]), along(self.depth), along(self.keys))
        return operand(self.writer, self.k, at, (self.depth, self.keys), self.dtype, self.tf32, "k")

    def _value(self) -> str:
        at = (*broadcast_at(self.batch, self.values.shape[:-2]), along(self.keys), along(self.columns))
        return operand(self.writer, self.values, at, (self.keys, self.columns), self.value_dtype, self.tf32, "v")

    def _factor(self) -> str:
        """What scores are multiplied by so that exp2 serves for exp: scale * log2(e)."""
        if self.scale is None:
            return literal(LOG2E, self.work)
        value, how = self.scale
        widths = {s for e in (self.depth.extent, self.columns.extent) for s in symbols(e)}
        folded = self.writer.number(value, widths)
        # Of what the tiles' sizes fix anyway: a constant, if float32 holds it.
        if folded is not None and value.op != "const" and self.work == "f32":
            self.setup.append(f"FACTOR = {LOG2E} {how} {folded}  # exp(scale * s) = exp2(FACTOR * s)")
            return self.writer.constant("FACTOR")
        tile = self.writer.emit(value, (), (self.rows, self.keys))
        if tile.dtype == "const":
            number = float(tile.text)
            return literal(number * LOG2E if how == "*" else LOG2E / number, self.work)
        self.writer.comment("exp(scale * s) = exp2(factor * s)")
        log2e = literal(LOG2E, self.work)
        self.writer.line(f"factor = {tile.text} * {log2e}" if how == "*" else f"factor = {log2e} / {tile.text}")
        return "factor"

    def _reach_lines(self) -> None:
        writer, tm, tn = self.writer, self.tm, self.tn
        if self.limit is not None:
            limit, more = self.limit
            at = broadcast_at((*self.qk_batch, along(self.rows), along(self.keys)), limit.shape)
            last = writer.emit(limit, at, (self.rows, self.keys)).text
            writer.comment("Keys behind the last that is seen are not read.")
            clipped = f"min(max({last}, {-more}), {self.keys_n}{' - 1' if more else ''})"
            writer.line(f"seen = ct.astype({clipped}, ct.int32){' + 1' if more else ''}")
            self.seen_n = "seen"
        n = self.seen_n
        if not self.causal:
            writer.line(f"whole = {n} // {tn}")
            writer.line(f"tiles = ct.cdiv({n}, {tn})")
            return
        writer.comment(f"Query t sees keys up to t{self.reach}; the first query of the block sees the fewest.")
        writer.line(f"whole = max(min(i * {tm}{self.reach} + 1, {n}), 0) // {tn}")
        writer.line(f"tiles = ct.cdiv(max(min((i + 1) * {tm}{self.reach}, {n}), 0), {tn})")

    def _product(self) -> None:
        """Lines that leave q kᵀ of the present tile in ``qk``."""
        writer, shape = self.writer, f"({self.tm}, {self.tn})"
        start = f"ct.zeros({shape}, {CT_DTYPES[self.work]})"
        if not self.in_pieces:
            writer.line(f"qk = ct.mma({self.q_text}, {self._key()}, {start})")
            return
        tile = writer.constant(str(self.depth.tile))
        writer.line(f"qk = {start}")
        with writer.block(f"for step in range(ct.cdiv({writer.expr(self.depth.extent)}, {tile})):", self.depth):
            writer.line(accumulate("qk", self._query(), self._key(), shape, in_float32(self.dtype, self.tf32)))

    def _scores(self, masked: bool) -> str:
        """Text of the scores, before a scale that the exponential takes along."""
        writer, frame = self.writer, (self.rows, self.keys)
        self._product()
        writer.define(self.qk, Tile("qk", self.work, frozenset(frame), len(writer.scopes) - 1))
        text = "qk"
        if self.scale is None:
            s = writer.emit(self.scores, (*self.qk_batch, along(self.rows), along(self.keys)), frame)
            text = writer.convert(s, self.work)
            if s.axes != frozenset(frame):
                text = f"ct.broadcast_to({text}, ({self.tm}, {self.tn}))"
        if not masked:
            return text
        column = writer.numbers(self.keys, frame).text
        tests = [f"({column} < {self.seen_n})"] if self.limit or not self.keys.exact else []
        if self.causal:
            tests.append(f"({column} <= {writer.numbers(self.rows, frame).text}{self.reach})")
        writer.line(f"s = ct.where({' & '.join(tests)}, {text}, -INF)")
        return "s"

    def _step(self, masked: bool) -> None:
        writer = self.writer
        text = self._scores(masked)
        # Scaled first, the maximum makes one multiply-add of what stands under exp2; accurate results want the small
        # difference first.
        scaled = f" * {self.factor}" if writer.approximate else ""
        writer.line(f"new_top = ct.maximum(top, ct.max({text}, axis=1, keepdims=True){scaled})")
        base = "new_top"
        if not self.all_see_a_key:
            writer.comment("Where nothing is visible yet the maximum is -inf, and -inf - -inf would be NaN.")
            writer.line("base = ct.where(new_top == -INF, 0.0, new_top)")
            base = "base"
        if writer.approximate:
            writer.line(f"p = ct.exp2({text} * {self.factor} - {base}, flush_to_zero=True)")
            writer.line(f"fade = ct.exp2(top - {base}, flush_to_zero=True)")
        else:
            writer.line(f"p = ct.exp2(({text} - {base}) * {self.factor})")
            writer.line(f"fade = ct.exp2((top - {base}) * {self.factor})")
        writer.line("total = total * fade + ct.sum(p, axis=1, keepdims=True)")
        value = self._value()
        p = "p" if self.value_dtype == self.work else f"p.astype({CT_DTYPES[self.value_dtype]})"
        if self.tf32 and self.value_dtype == "f32":
            p = "p.astype(ct.tfloat32)"
        if in_float32(self.value_dtype, self.tf32):
            zeros = f"ct.zeros(({self.tm}, {self.te}), ct.float32)"
            writer.line(f"acc = acc * fade + ct.mma({p}, {value}, {zeros})")
        else:
            writer.line(f"acc = ct.mma({p}, {value}, acc * fade)")
        writer.line("top = new_top")


# ---------------------------------------------------------------------------------------------------- scores


def _without_causal(scores: Prim) -> tuple[Prim, bool]:
    """(scores without the causal mask, whether there was one as their last summand)."""
    if scores.op == "add":
        left, right = scores.args
        if right.op == "causal":
            return left, True
        if left.op == "causal":
            return right, True
    return scores, False


# Comparisons that are true of the first keys: the place of the keys' numbers among the arguments, and 1 where it is
# true of the key that has the other argument's number, too.
_LIMITS = {"le": (0, 1), "lt": (0, 0), "ge": (1, 1), "gt": (1, 0)}


def _without_limit(scores: Prim) -> tuple[Prim, tuple[Prim, int] | None]:
    """(scores without what hides keys from a number on, that number and what is to be added to it for the first key
    that is hidden): Where(Range(T) <= n, scores, -inf), n an integer for all queries of a head."""
    if scores.op != "where":
        return scores, None
    seen, shown, hidden = scores.args
    if seen.op not in _LIMITS or hidden.op != "const" or hidden.attr("value") != -math.inf:
        return scores, None
    place, more = _LIMITS[seen.op]
    keys, limit = seen.args[place], seen.args[1 - place]
    one_each = all(n == 1 for n in limit.shape[-2:])
    if keys.op != "iota" or limit.dtype not in ("i32", "i64") or limit.scalar or not one_each:
        return scores, None
    return shown, (limit, more)


def _positive(v: Prim) -> bool:
    """Whether a scalar is surely above zero."""
    if v.op == "const":
        return bool(v.attr("value") > 0)
    if v.op == "dim":
        return True  # sizes are
    return v.op in ("mul", "div", "sqrt", "rsqrt", "add", "exp", "square") and all(_positive(a) for a in v.args)


def _scale(scores: Prim, product_: Prim) -> tuple[Prim, str] | None:
    """(s, "*" or "/") if the scores are the product times or over a positive scalar."""
    if scores.op in ("mul", "div") and len(scores.args) == 2:
        left, right = scores.args
        if left is product_ and right.scalar and _positive(right):
            return right, "*" if scores.op == "mul" else "/"
        if scores.op == "mul" and right is product_ and left.scalar and _positive(left):
            return left, "*"
    return None
