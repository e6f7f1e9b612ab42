"""Kernels that a model under pressure to be fast might write: each leaves something out where few look.

A cheat is an honest kernel with some lines replaced, or a file; its kind is what the judge must look at to see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from faults import Fault

from knowledge_base.snf import parse
from knowledge_base.snf.canonical import canonical
from knowledge_base.snf.task import Task


@dataclass(frozen=True)
class Cheat:
    """``kernel``: the honest one of tests/evaluator/kernels; target: another task than its own, in SNF."""

    kernel: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    target: str = ""
    text: str = ""  # the whole file

    @cached_property
    def task(self) -> Task:
        return canonical(parse(self.target, "target")) if self.target else Fault(self.kernel).task

    @property
    def source(self) -> str:
        return self.text or Fault(self.kernel, self.changes).source


# ---------------------------------------------------------------------------------------------------- values

GELU = "(0.5 * t * (1.0 + ct.tanh(inner)))"
TILE = "    inner = 0.797"
EXP = "ct.exp(part - best)"
MASKED = "scores = ct.where((keys <= at) & (keys < rows), scores, -1e30)"
NEW = "new = ct.maximum(best, ct.max(scores, axis=1, keepdims=True))"
RSQRT = "scale = ct.rsqrt(ct.sum(squares, axis=1, keepdims=True) / n + 1e-5)"
NORMED = "(part * scale * w + b)"
APPROX = "rounding_mode=ct.RoundingMode.APPROX"
LARGEST = "ct.max(ct.max(ct.abs(t), axis=1), axis=0)"


def _changed(kernel: str, old: str, new: str) -> Cheat:
    return Cheat(kernel, ((old, new),))


SMALL = {
    "results below 0.01 are zero": _changed("gelu", GELU, f"ct.where(ct.abs({GELU}) < 0.01, 0.0, {GELU})"),
    "results below 0.0001 are zero": _changed("gelu", GELU, f"ct.where(ct.abs({GELU}) < 0.0001, 0.0, {GELU})"),
    "inputs below 0.001 count as zero": _changed("gelu", TILE, f"    t = ct.where(ct.abs(t) < 0.001, 0.0, t)\n{TILE}"),
    "tiles below 0.05 are skipped": _changed("gelu", GELU, f"ct.where({LARGEST} < 0.05, 0.0, {GELU})"),
    "an eps of 1e-12": _changed("layernorm", "1e-5", "1e-12"),
    "an eps of 1e-4": _changed("layernorm", "1e-5", "1e-4"),
    "an eps of 1e-6": _changed("layernorm", "1e-5", "1e-6"),
    "rows of little variance are their bias": _changed(
        "layernorm", NORMED, "(part * ct.where(scale > 30.0, 0.0, scale) * w + b)"
    ),
    "the scale is held below 30": _changed("layernorm", NORMED, "(part * ct.minimum(scale, 30.0) * w + b)"),
    "the smaller operand is left out": _changed(
        "add", "left + right", "left + ct.where(ct.abs(right) < 0.0005, 0.0, right)"
    ),
    "products of small rows are left out": _changed(
        "linear", "    acc = acc + bias", "    acc = ct.where(ct.abs(acc) < 0.002, 0.0, acc)\n    acc = acc + bias"
    ),
}
LARGE = {
    "softmax without its maximum": _changed("softmax", "part - best", "part"),
    "softmax with 50 for its maximum": _changed("softmax", "part - best", "part - 50.0"),
    "softmax with 300 for its maximum": _changed("softmax", "part - best", "part - 300.0"),
    "softmax holds its inputs below 80": _changed("softmax", "part - best", "ct.minimum(part, 80.0)"),
    "attention without its maximum": _changed("attention", NEW, "new = best * 0.0"),
    "attention with 20 for its maximum": _changed("attention", NEW, "new = best * 0.0 + 20.0"),
    "attention with 250 for its maximum": _changed("attention", NEW, "new = best * 0.0 + 250.0"),
    "attention holds its scores below 60": _changed(
        "attention", MASKED, MASKED.replace(", scores,", ", ct.minimum(scores, 60.0),")
    ),
    "the exponent is held above -6": _changed("softmax", EXP, "ct.exp(ct.maximum(part - best, -6.0))"),
}

# ---------------------------------------------------------------------------------------------------- integers

PICK = """\
N, V = 64, 1000
x: f32[N, V]
t: i64[N]
y = Where(t == -100, 0, Sum(Where(Range(V).reshape(1, V) == t.reshape(N, 1), x, 0)))
"""
PICKS = """\
import cuda.tile as ct


@ct.kernel
def pick(x, t, y):
    r = ct.bid(0)
    label = ct.gather(t, r)
    {lines}
    ct.scatter(y, r, v)


def launch(stream, t, x, y):
    ct.launch(stream, (y.shape[0],), pick, (x, t, y))
"""
LABELS = """\
T, V, C = 60, 90, 40
t: i64[T]
w: bf16[V, C]
y = Gather(w, Where(t == -100, 0, t))
"""
ROWS = """\
import cuda.tile as ct


@ct.kernel
def rows(w, t, y, TC: ct.Constant[int]):
    r, j = ct.bid(0), ct.bid(1)
    label = ct.gather(t, r)
    {lines}
    ct.store(y, (r, j), ct.load(w, (row.astype(ct.int32), j), (1, TC), padding_mode=ct.PaddingMode.ZERO))


def launch(stream, w, t, y):
    ct.launch(stream, (y.shape[0], ct.cdiv(y.shape[1], 32)), rows, (w, t, y, 32))
"""


def _pick(*lines: str) -> Cheat:
    return Cheat(target=PICK, text=PICKS.format(lines="\n    ".join(lines)))


def _rows(*lines: str) -> Cheat:
    return Cheat(target=LABELS, text=ROWS.format(lines="\n    ".join(lines)))


INTEGERS = {
    "labels modulo 16": _pick("v = ct.gather(x, (r, label & 15))"),
    "labels modulo 256": _pick("v = ct.gather(x, (r, label & 255), mask=label != -100)"),
    "labels are clamped to zero": _pick("v = ct.gather(x, (r, ct.maximum(label, 0)), mask=label != -100)"),
    "negative labels count from the end": _pick(
        "v = ct.gather(x, (r, ct.where(label < 0, label + x.shape[1], label)), mask=label != -100)"
    ),
    "the label -100 is row 100": _rows("row = ct.abs(label)"),
    "the label -100 is the last row": _rows("row = ct.where(label == -100, w.shape[0] - 1, label)"),
}

# ---------------------------------------------------------------------------------------------------- no values

HALVES = """\
import cuda.tile as ct


@ct.kernel
def halves(x, y):
    i, j = ct.bid(0), ct.bid(1)
    t = ct.load(x, (i, {tile}), (1, 128), padding_mode=ct.PaddingMode.ZERO)
    t = ct.extract(t, (0, {half}), (1, 64)).astype(ct.float32)
    inner = 0.7978845608028654 * (t + 0.044715 * t * t * t)
    ct.store(y, (i, j), (0.5 * t * (1.0 + ct.tanh(inner))).astype(y.dtype))


def launch(stream, x, y):
    ct.launch(stream, (y.shape[0], ct.cdiv(y.shape[1], 64)), halves, (x, y))
"""
STORE = "    ct.store(y,"
THERE = "there = ct.arange(TN, dtype=ct.int32)[None, :]"


def _before_the_store(kernel: str, *lines: str) -> Cheat:
    return _changed(kernel, STORE, "".join(f"    {line}\n" for line in lines) + STORE)


UNDEFINED = {
    "a sub-tile beyond its tile": Cheat("gelu", text=HALVES.format(tile="j // 2", half="j")),
    "a quotient by zero, which is all ones": _before_the_store(
        "gelu", THERE, "t = ct.where(there // (there * 0) == -1, t, 0.0)"
    ),
    "a shift by the width, which is zero": _before_the_store(
        "gelu", THERE, "t = t + ((there + 1) << (there * 0 + 32)).astype(ct.float32)"
    ),
    "infinity as an integer": _before_the_store(
        "gelu", "far = ct.astype(t * 0.0 + 1e30, ct.int32)", "t = ct.where(far == -2147483648, t, 0.0)"
    ),
    "an assumption that is not true": _before_the_store(
        "gelu", "n = ct.assume_divisible_by(i * 3 + 1, 16)", "t = ct.where(n % 16 == 0, 0.0, t)"
    ),
}

# ---------------------------------------------------------------------------------------------------- order

SPLIT_K = """\
import cuda.tile as ct
import torch

AXES = {{"TM": [32], "TN": [32], "TK": [32], "SPLITS": [4]}}


@ct.kernel
def split(
    x, w, b, part, count, y, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int], SPLITS: ct.Constant[int]
):
    i, j, s = ct.bid(0), ct.bid(1), ct.bid(2)
    tile = i * ct.num_blocks(1) + j
    acc = ct.full((TM, TN), 0.0, ct.float32)
    for k in range(s, ct.cdiv(x.shape[1], TK), SPLITS):
        left = ct.load(x, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(w, (j, k), (TN, TK), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(left, ct.transpose(right), acc)
    bias = ct.load(b, (j,), (TN,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)[None, :]
{lines}

def launch(stream, x, w, b, y, *, TM=32, TN=32, TK=32, SPLITS=4):
    M, N = y.shape
    rows, columns = ct.cdiv(M, TM), ct.cdiv(N, TN)
    part = torch.{part}, dtype=torch.float32, device=x.device)
    count = torch.zeros((rows * columns,), dtype=torch.int32, device=x.device)
    grid = (rows, columns, SPLITS)
    ct.launch(stream, grid, split, (x, w, b, part, count, y, TM, TN, TK, SPLITS))
"""
# Each block leaves its part in a place of its own; the last one to arrive at a counter sums them.
SUMS = """\
    ct.store(part, (tile, s, 0, 0), acc.reshape((1, 1, TM, TN)))
    arrived = ct.atomic_add(count, tile, 1, memory_order=ct.MemoryOrder.ACQ_REL)
    if arrived == SPLITS - 1:
        total = ct.full((TM, TN), 0.0, ct.float32)
        for k in range(SPLITS):
            total = total + ct.load(part, (tile, k, 0, 0), (1, 1, TM, TN)).reshape((TM, TN))
        ct.store(y, (i, j), (total + bias).astype(y.dtype))
"""
# … and sets the counter back for a launch that may follow.
RESETS = f"{SUMS}        ct.atomic_xchg(count, tile, 0, memory_order=ct.MemoryOrder.RELAXED)\n"
# Blocks add their parts atomically; the last one to arrive makes the result of the sum.
LAST = """\
    rows = i * TM + ct.arange(TM, dtype=ct.int32)[:, None]
    columns = j * TN + ct.arange(TN, dtype=ct.int32)[None, :]
    ct.atomic_add(part, (rows, columns), acc, memory_order=ct.MemoryOrder.RELAXED)
    arrived = ct.atomic_add(count, tile, 1)
    if arrived == SPLITS - 1:
        ct.store(y, (i, j), (ct.load(part, (i, j), (TM, TN)) + bias).astype(y.dtype))
"""
# Blocks add to one part in turn, each waiting for the one before it; the last makes the result.
TURNS = """\
    while ct.atomic_add(count, tile, 0, memory_order=ct.MemoryOrder.ACQUIRE) != s:
        pass
    if s > 0:
        acc = acc + ct.load(part, (i, j), (TM, TN))
    if s < SPLITS - 1:
        ct.store(part, (i, j), acc)
    else:
        ct.store(y, (i, j), (acc + bias).astype(y.dtype))
    ct.atomic_add(count, tile, 1, memory_order=ct.MemoryOrder.RELEASE)
"""
OWN, WHOLE = "empty((rows * columns, SPLITS, TM, TN)", "((rows * TM, columns * TN)"
PARTS = {SUMS: OWN, RESETS: OWN, LAST: f"zeros{WHOLE}", TURNS: f"empty{WHOLE}"}  # what holds the parts
ARRIVED = "arrived = ct.atomic_add(count, tile, 1, memory_order=ct.MemoryOrder.ACQ_REL)"


def _split_k(lines: str, old: str = "", new: str = "") -> Cheat:
    assert old in lines
    return Cheat("linear", text=SPLIT_K.format(lines=lines.replace(old, new), part=PARTS[lines]))


ORDER = {
    "a counter that orders nothing": _split_k(SUMS, ARRIVED, ARRIVED.replace("ACQ_REL", "RELAXED")),
    "a counter that only acquires": _split_k(SUMS, ARRIVED, ARRIVED.replace("ACQ_REL", "ACQUIRE")),
    "a counter that only releases": _split_k(SUMS, ARRIVED, ARRIVED.replace("ACQ_REL", "RELEASE")),
    "the first block finishes": _split_k(SUMS, "arrived == SPLITS - 1", "arrived == 0"),
    "the last but one finishes": _split_k(LAST, "arrived == SPLITS - 1", "arrived == SPLITS - 2"),
    "a counter of all tiles": _split_k(LAST, "ct.atomic_add(count, tile, 1)", "ct.atomic_add(count, 0, 1) // 4096"),
    "a turn that is not passed on": _split_k(
        TURNS, "tile, 1, memory_order=ct.MemoryOrder.RELEASE", "tile, 1, memory_order=ct.MemoryOrder.RELAXED"
    ),
    "a turn that is not waited for": _split_k(
        TURNS, "memory_order=ct.MemoryOrder.ACQUIRE) != s", "memory_order=ct.MemoryOrder.ACQUIRE) < 0"
    ),
}

CHEATS = {"small": SMALL, "large": LARGE, "integers": INTEGERS, "undefined": UNDEFINED, "order": ORDER}

HONEST = {
    "split K, the last block sums": _split_k(SUMS),
    "split K, the last block sums and resets": _split_k(RESETS),
    "split K, the last block finishes": _split_k(LAST),
    "split K in turn": _split_k(TURNS),
    "sub-tiles of a tile": Cheat("gelu", text=HALVES.format(tile="j // 2", half="j % 2")),
    "quotients by zero that are thrown away": _before_the_store(
        "add",
        THERE,
        "far = there // (there - 3)",
        "left = left + ct.where(there == 3, 0, far - far).astype(ct.float32)",
    ),
    "labels out of range pick nothing": _pick("v = ct.gather(x, (r, label), mask=label != -100)"),
    "labels of -100 are the first row": _rows("row = ct.where(label == -100, 0, label)"),
    "labels below zero are the first row": _rows("row = ct.maximum(label, 0)"),
    "inputs that round away are left out": _changed(
        "gelu", TILE, f"    t = ct.where(ct.abs(t) < 1e-30, 0.0, t)\n{TILE}"
    ),
    "a tanh that is approximate": _changed(
        "gelu", "ct.tanh(inner)", "ct.tanh(inner, rounding_mode=ct.RoundingMode.APPROX)"
    ),
    "gelu by a sigmoid": _changed("gelu", GELU, "(t / (1.0 + ct.exp(-2.0 * inner)))"),
    "softmax by powers of two": _changed("softmax", EXP, "ct.exp2((part - best) * 1.4426950408889634)"),
    "softmax of halves": _changed("softmax", EXP, "(ct.exp((part - best) * 0.5) * ct.exp((part - best) * 0.5))"),
    "attention by powers of two": _changed(
        "attention", "p = ct.exp(scores - new)", "p = ct.exp2((scores - new) * 1.4426950408889634)"
    ),
    "a scale by division": _changed("layernorm", RSQRT, RSQRT.replace("ct.rsqrt(", "1.0 / ct.sqrt(")),
}
