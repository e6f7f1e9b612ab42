"""Input values for a judged run: named distributions over a task's inputs and weights, drawn from a seed.

A distribution is a way to go wrong that it would show: an offset catches variances computed as E[x²] − E[x]², one-hot
rows catch addressing, cancelling sums catch narrow accumulators, small values what is left out or added to them, large
ones a softmax without its maximum, NaN and Inf masks by multiplication.  Values are drawn in float32 and stored in the
tensor's dtype; everybody afterwards sees the stored values.

Nothing here knows about candidates.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from kernels_generated.runtime.expr import evaluate
from knowledge_base.snf.graph import FLOATS, Graph, Node, Tensor, shape_at
from knowledge_base.snf.op_table import is_scalar, kind
from knowledge_base.snf.ranges import WHOLE, held_against, indices, interval, reaching

DOMAIN = frozenset(("log", "sqrt", "rsqrt", "pow", "div"))  # mostly NaN, or dominated by poles, on normal inputs

OFFSET_SIGMAS = {"bf16": 16.0, "f16": 16.0, "f32": 1000.0}
EXTREME_EXPONENTS = {"bf16": (-60.0, 60.0), "f16": (-14.0, 15.0), "f32": (-60.0, 60.0)}  # elementwise: 2^low … 2^high
OUTLIER_EXPONENTS = (-14.0, 6.0)  # where values are summed or exponentiated: spread, but nothing overflows in f16
CANCELLING_OFFSET = 4.0  # sums of K products then climb to ~16·K/2 before they fall back to ~6·sqrt(K)
SMALL = (2.0**-10, 2.0**-20)
LARGE_EXPONENTS = (2.0, 8.0)
EXPONENTIALS = frozenset(("softmax", "exp"))
SPECIALS = (math.nan, math.inf, -math.inf, 0.0, -0.0)
SPECIAL_SHARE = 0.15
BLOCK = 1 << 22  # elements that one generator draws: a larger tensor is drawn by several, on all cores


CONSTANT_INPUTS = frozenset(("zeros", "ones", "onehot"))  # inputs with one or two different values


def distributions(graph: Graph) -> tuple[str, ...]:
    """The names of the distributions that say something about ``graph``, the most telling first."""
    names = ["normal", "offset", "onehot", "zeros", "ones", "extreme", "small", "large"]
    if any(tensor.dtype in ("bf16", "f16") for tensor in graph.inputs) and not elementwise(graph):
        names.insert(2, "cancelling")
    if any(node.op in DOMAIN and not is_scalar(graph.value(node.args[-1])) for node in graph.nodes):
        names.append("positive")
    if elementwise(graph):
        names.append("special")
    return tuple(names)


def elementwise(graph: Graph) -> bool:
    """Whether a NaN or Inf of an input stays in its place: arithmetic by element, views and concatenation only."""
    return all(kind(n.op) in ("scalar", "elementwise", "view") or n.op in ("iota", "concat") for n in graph.nodes)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of an SNF or plan dtype (bf16, i64, u8 …)."""
    table = {
        "bool": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
        "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
        "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
        "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
    }  # fmt: skip
    return table[name]


def draw(graph: Graph, sizes: Mapping[str, int], distribution: str, seed: int) -> dict[str, torch.Tensor]:
    """Every input and weight of ``graph`` at ``sizes``, contiguous, in its stored dtype.

    The same arguments give the same values on every machine.  Raises KeyError for an unknown distribution.
    """
    integers = _integer_inputs(graph, sizes)
    return {
        tensor.name: _draw_tensor(graph, tensor, sizes, distribution, seed, integers.get(tensor.name, Integers()))
        for tensor in graph.inputs
    }


def _draw_tensor(
    graph: Graph, tensor: Tensor, sizes: Mapping[str, int], distribution: str, seed: int, integers: Integers
) -> torch.Tensor:
    text = f"{seed} {distribution} {tensor.name} {sorted(sizes.items())}"
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]))
    shape = shape_at(tensor.shape, sizes)
    dtype = torch_dtype(tensor.dtype)
    if tensor.dtype == "bool":
        return torch.rand(shape, generator=generator) < 0.5
    if tensor.dtype not in (*FLOATS, "f64"):
        return _integers(shape, integers, distribution, generator).to(dtype).contiguous()
    whole = elementwise(graph)
    if tensor.role == "weight" and len(shape) > 1:
        values = _WEIGHTS.get(distribution, _normal)(shape, tensor.dtype, whole, generator)
        return values.div_(math.sqrt(max(1, shape[-1]))).to(dtype).contiguous()
    if distribution == "large" and tensor.role != "weight":
        return _large(shape, _power(graph), generator).to(dtype).contiguous()
    if distribution == "small":
        return _small(shape, tensor.role == "weight", generator).to(dtype).contiguous()
    table = _WEIGHTS if tensor.role == "weight" else _INPUTS
    return table.get(distribution, _normal)(shape, tensor.dtype, whole, generator).to(dtype).contiguous()


_Draw = Callable[["tuple[int, ...]", str, bool, "torch.Generator"], "torch.Tensor"]


def _normal(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    count = math.prod(shape)
    if count <= BLOCK:
        return torch.randn(shape, generator=generator)
    values = torch.empty(count)
    blocks = values.split(BLOCK)
    seeds = torch.randint(2**62, (len(blocks),), generator=generator).tolist()
    with ThreadPoolExecutor() as pool:  # numbers are drawn without Python's lock
        list(pool.map(lambda block, seed: block.normal_(generator=torch.Generator().manual_seed(seed)), blocks, seeds))
    return values.reshape(shape)


def _offset(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    return _normal(shape, dtype, whole, generator) + OFFSET_SIGMAS.get(dtype, 1000.0)


def _onehot(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    if not shape:
        return torch.ones(())
    rows = math.prod(shape[:-1])
    hot = torch.randint(shape[-1], (rows, 1), generator=generator)
    return torch.zeros(rows, shape[-1]).scatter_(1, hot, 1.0).reshape(shape)


def _zeros(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(shape)


def _ones(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(shape)


def _extreme(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    low, high = EXTREME_EXPONENTS.get(dtype, (-60.0, 60.0)) if whole else OUTLIER_EXPONENTS
    exponent = torch.rand(shape, generator=generator) * (high - low) + low
    return torch.exp2(exponent) * torch.randn(shape, generator=generator).sign()


def _extreme_weight(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    exponent = torch.rand(shape, generator=generator) * 10 - 8
    return torch.exp2(exponent) * torch.randn(shape, generator=generator).sign()


def _small(shape: tuple[int, ...], weight: bool, generator: torch.Generator) -> torch.Tensor:
    """Half of the rows × 2^-10, the others × 2^-20; a bias or a scale × 2^-10."""
    values = _normal(shape, "", False, generator)
    if weight or not shape:
        return values * SMALL[0]
    rows = math.prod(shape[:-1])
    scale = torch.full((rows, 1), SMALL[0])
    scale[rows // 2 :] = SMALL[1]
    return (values.reshape(rows, shape[-1]) * scale).reshape(shape)


def _large(shape: tuple[int, ...], power: int, generator: torch.Generator) -> torch.Tensor:
    """Every row × its own 2^u, so that what is exponentiated has maxima from ten to a thousand.

    power: of how many inputs that is a product.
    """
    low, high = LARGE_EXPONENTS
    exponent = torch.rand((*shape[:-1], 1) if shape else (), generator=generator) * (high - low) + low
    return _normal(shape, "", False, generator) * torch.exp2(exponent / power)


def _power(graph: Graph) -> int:
    """Of how many inputs what is exponentiated is a product: 2 for attention's scores; at least 1."""
    powers: dict[str, int] = {tensor.name: int(tensor.role != "weight") for tensor in graph.inputs}
    most = 1
    for node in graph.nodes:
        given = [powers[arg] for arg in node.args]
        if node.op in EXPONENTIALS:
            most = max(most, *given)
        bounded = kind(node.op) == "row" or node.op in ("exp", "tanh", "erf", "sigmoid")
        product = node.op in ("mul", "matmul", "square")
        powers[node.name] = (
            0 if bounded else sum(given * (2 if node.op == "square" else 1)) if product else max(given, default=0)
        )
    return most


def _positive(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    return _normal(shape, dtype, whole, generator).abs() + 0.125


def _special(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    values = _normal(shape, dtype, whole, generator)
    which = torch.tensor(SPECIALS)[torch.randint(len(SPECIALS), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < SPECIAL_SHARE, which, values)


def _cancelling(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    return _normal(shape, dtype, whole, generator) + CANCELLING_OFFSET


def _cancelling_weight(shape: tuple[int, ...], dtype: str, whole: bool, generator: torch.Generator) -> torch.Tensor:
    values = _normal(shape, dtype, whole, generator)
    if len(shape) < 2:
        return values
    sign = torch.where(torch.arange(shape[-1]) < shape[-1] / 2, 1.0, -1.0)
    return values + CANCELLING_OFFSET * sign


_INPUTS: dict[str, _Draw] = {
    "normal": _normal,
    "offset": _offset,
    "onehot": _onehot,
    "zeros": _zeros,
    "ones": _ones,
    "extreme": _extreme,
    "positive": _positive,
    "special": _special,
    "cancelling": _cancelling,
}
# Weights stay normal where the point lies in the inputs: a one-hot row times W shows a column of W.
_WEIGHTS: dict[str, _Draw] = {
    "extreme": _extreme_weight,
    "positive": _positive,
    "special": _special,
    "cancelling": _cancelling_weight,
}


# ---------------------------------------------------------------------------------------------------- integers


@dataclass(frozen=True)
class Integers:
    """What an integer input is drawn from: any number between two, and some at which something changes.

    turning: around what the values are compared with, and the ends; all of them are legal.
    """

    least: int = -8
    greatest: int = 7
    turning: tuple[int, ...] = (-8, -1, 0, 1, 7)


TURNING_SHARE = 0.25  # of the values that are drawn from these
AROUND = 8  # so far beyond what they are compared with integers may lie
MORE = 8  # values outside its range that an index may take as well: -100, where a label says "none"
RUN = 4  # equal values in a row, where they are repeated


def _integers(shape: tuple[int, ...], of: Integers, distribution: str, generator: torch.Generator) -> torch.Tensor:
    if distribution in ("zeros", "ones"):
        value = min(max(int(distribution == "ones"), of.least), of.greatest)
        return torch.full(shape, value, dtype=torch.int64)
    if distribution == "extreme":  # only the first and the last row
        return torch.randint(2, shape, generator=generator) * (of.greatest - of.least) + of.least
    drawn = torch.randint(of.least, of.greatest + 1, shape, generator=generator)
    turning = torch.tensor(of.turning)[torch.randint(len(of.turning), shape, generator=generator)]
    drawn = torch.where(torch.rand(shape, generator=generator) < TURNING_SHARE, turning, drawn)
    if distribution == "offset" and shape:
        return drawn.sort().values
    if distribution == "onehot" and shape:
        return drawn[..., ::RUN].repeat_interleave(RUN, -1)[..., : shape[-1]]
    return drawn


def _integer_inputs(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Integers]:
    """What each integer input is drawn from.

    What reaches a gather's index lies where all indices lie in their tables; one input after the other gets as wide a
    range as those before it leave.  Other inputs lie around all that their values are compared with.
    """
    whole = [t for t in graph.inputs if t.dtype in WHOLE]
    looked_up = [(index, _rows(table, sizes), reaching(graph, index)) for _, index, table in indices(graph)]
    indexing = [t.name for t in whole if any(t.name in inputs for _, _, inputs in looked_up)]
    legal: dict[str, list[tuple[int, int]]] = {}  # by input that reaches an index: between what its values may lie

    def ends(value: str, given: Mapping[str, tuple[int, int]]) -> tuple[int | None, int | None]:
        low, high = interval(graph, value, {**dict.fromkeys(indexing, (0, 0)), **given})
        return None if low is None else evaluate(low, sizes), None if high is None else evaluate(high, sizes)

    def inside(name: str, least: int, greatest: int) -> bool:
        """Whether all indices are, wherever the inputs that have a range already lie."""
        others = [[(other, one) for one in some] for other, some in legal.items() if other != name]
        for given in itertools.product(*others):
            for index, rows, inputs in looked_up:
                low, high = ends(index, {**dict(given), name: (least, greatest)})
                if name in inputs and not (low is not None and high is not None and low >= 0 and high < rows):
                    return False
        return True

    for name in indexing:
        reached = [(index, rows) for index, rows, inputs in looked_up if name in inputs]
        most = max(rows for _, rows in reached)
        starts = {0, *(-low for index, _ in reached if (low := ends(index, {name: (0, 0)})[0]) is not None)}
        spans = []
        for least in starts:
            span = bisect_left(range(most + 1), True, key=lambda more: not inside(name, least, least + more)) - 1
            spans += [(span, least)] if span >= 0 else []
        span, least = max(spans, default=(0, 0))
        legal[name] = [(least, least + span)]
    found: dict[str, Integers] = {}
    for tensor in whole:
        name = tensor.name
        bits = 31 if tensor.dtype == "i32" else 63
        turning = {t for t in _turning(graph, name, ends) if -(2**bits) < t < 2**bits}
        if name in indexing:
            ((least, greatest),) = legal[name]
            more = sorted(t for t in turning if not least <= t <= greatest and inside(name, t, t))[:MORE]
            legal[name] += [(t, t) for t in more]
            turning = {least, greatest, *more, *(t for t in turning if least <= t <= greatest)}
        else:
            turning |= set(Integers.turning)
            least, greatest = min(turning), max(turning)
        found[name] = Integers(least, greatest, tuple(sorted(turning)))
    return found


_Ends = Callable[[str, Mapping[str, tuple[int, int]]], tuple["int | None", "int | None"]]


def _turning(graph: Graph, name: str, ends: _Ends) -> set[int]:
    """Values of an input around those at which a comparison turns, as if what is compared were linear in it."""
    found: set[int] = set()
    for mine, other in held_against(graph, name):
        (at_0, _), (at_1, _) = (ends(mine, {name: (one, one)}) for one in (0, 1))
        if at_0 is None or at_1 is None or at_0 == at_1:
            continue
        for end in ends(other, {name: (0, 0)}):
            if end is not None:
                near = (end - at_0) // (at_1 - at_0)
                found |= {near - AROUND, near - 1, near, near + 1, near + 2, near + AROUND}
    return found


def _rows(table: Tensor | Node, sizes: Mapping[str, int]) -> int:
    return max(1, shape_at(table.shape, sizes)[0])
