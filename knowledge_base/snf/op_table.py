"""The table of ops: for each its SNF spelling, shape and dtype rule, meaning in torch, flops, and how it may fuse.

Adding an op is adding one entry to ``OPS`` (and a name to the list in :mod:`knowledge_base.snf.graph`).  The meaning
is one expression of PyTorch, as a user would write it.  :mod:`knowledge_base.snf.reference` runs it in both modes: on
float64 tensors it is the reference, on tensors of the stored dtype it is the yardstick.
:mod:`knowledge_base.snf.torch_text` writes it into a text.  torch is imported when an op is run.

Kinds (``OpSpec.kind``) say how an op may fuse:

- scalar: a number (``const``, ``dim``); exact, never stored
- source: values made from nothing but sizes (``iota``, ``causal_mask``)
- elementwise: each output element needs one element of each argument
- reduction: the reduced axis needs all its elements, the others are independent
- row: like a reduction over the last axis followed by an elementwise op (softmax, the norms)
- contraction: linear, matmul
- view: no arithmetic, every element of the output is one of the input (reshape, permute, select, split, heads, merge)
- movement: copies with an index (concat, gather, rope)
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_generated.runtime.expr import Expr, build, decide, normalise, product, show

from .graph import FLOATS, Node, Tensor

Shape = tuple[Expr, ...]
Attrs = Mapping[str, Any]

# Torch's promotion among our dtypes: the higher wins, except bf16 with f16, which gives f32.
_RANK = {"bool": 0, "i32": 1, "i64": 2, "bf16": 3, "f16": 3, "f32": 4, "f64": 5}


class ShapeError(ValueError):
    """Arguments that an op does not take: their shapes, their number or their dtypes."""


@dataclass(frozen=True)
class OpSpec:
    """One entry of the table.

    spellings: how SNF calls it, preferred one first; empty for operators and for ops that only canonical graphs have.
    arity: least and greatest number of tensor arguments.
    attrs: attribute names with their defaults; REQUIRED where there is none.
    shape: (argument shapes, attributes) -> shape; raises ShapeError.
    torch: the op as an expression of PyTorch with places for what it is of, see :func:`fill`.
    flops: (output shape, argument shapes) -> operations by unit: matmul, elementwise, special (exp, tanh, rsqrt …).
    commutative: the two arguments may be exchanged.
    says: the formula, for people and models who write kernels; empty where the spelling says it all.
    number: the same expression of Python's numbers, by the value of the attribute if it has one; empty where ``torch``
        is good for these as well.
    tensors: PyTorch takes no number here, so that one becomes a tensor of the other argument's dtype.
    """

    name: str
    kind: str
    spellings: tuple[str, ...]
    arity: tuple[int, int]
    shape: Callable[[Sequence[Shape], Attrs], Shape]
    torch: str
    attrs: tuple[tuple[str, Any], ...] = ()
    dtype: str = (
        "promote"  # promote | float (ints become f32) | first | sum (ints become i64) | branches | attr | a dtype
    )
    flops: Callable[[Shape, Sequence[Shape]], dict[str, Expr]] = lambda out, args: {}
    commutative: bool = False
    says: str = ""
    number: str | Mapping[str, str] = ""
    tensors: bool = False

    def of_numbers(self, attrs: Attrs) -> str:
        """The expression of Python's numbers, to be filled like ``torch``."""
        if isinstance(self.number, str):
            return self.number or self.torch
        return next(self.number[value] for value in attrs.values() if value in self.number)

    @functools.cached_property
    def run(self) -> Callable[[Sequence[Any], Attrs], Any]:
        """(torch tensors or numbers, attributes) -> torch tensor or number: what ``torch`` says of them."""
        import math

        import torch
        import torch.nn.functional

        count = self.arity[1]
        attrs = {key: f'attrs["{key}"]' for key, _ in self.attrs}
        text = fill(self.torch, [f"args[{i}]" for i in range(count)], {**attrs, "device": "None"}, every="*args")
        names = {"math": math, "torch": torch, "F": torch.nn.functional}
        made: Callable[[Sequence[Any], Attrs], Any] = eval(f"lambda args, attrs: {text}", names)
        return made


class Required:
    """Marks an attribute without default."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()

_PLACE = re.compile(r"\{(\*|\w+)\}")


def fill(template: str, args: Sequence[str], attrs: Mapping[str, str], every: str | None = None) -> str:
    """An op's expression with texts in the places of the template.

    ``{0}`` is an argument, in parentheses where it is no closed term and stands beside an operator; ``{*}`` all of
    them, or ``every``; ``{axis}`` an attribute.  ``{device}`` is where a tensor goes that is made of no other.
    """

    def put(place: re.Match[str]) -> str:
        name = place[1]
        if name == "*":
            return ", ".join(args) if every is None else every
        if not name.isdigit():
            return attrs[name]
        before, after = template[: place.start()].rstrip()[-1:], template[place.end() :].lstrip()[:1]
        alone = before in ("", "(", "[", ",") and after in ("", ")", "]", ",")
        return args[int(name)] if alone else closed(args[int(name)])

    return _PLACE.sub(put, template)


def closed(text: str) -> str:
    """An expression of Python so that any operator may stand beside it."""
    made = ast.parse(text, mode="eval").body
    return text if isinstance(made, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript) else f"({text})"


# ---------------------------------------------------------------------------------------------------- shape rules


def same(a: Expr, b: Expr) -> bool:
    """Whether two sizes are equal for all dimensions."""
    return decide("==", a, b) is True


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes are equal for all dimensions."""
    return len(a) == len(b) and all(map(same, a, b))


def divide(size: Expr, by: Expr) -> Expr | None:
    """size / by where it is exact for all dimensions, else None."""
    quotient = build("fdiv", size, by) if not same(by, 0) else 0
    return quotient if same(build("*", quotient, by), size) else None


def text(shape: Shape) -> str:
    return f"[{', '.join(show(s) for s in shape)}]"


def broadcast(shapes: Sequence[Shape], attrs: Attrs | None = None) -> Shape:
    """NumPy's broadcasting: aligned at the last axis, an axis of 1 stretches."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Expr] = [1] * rank
    for shape in shapes:
        for axis in range(-len(shape), 0):
            if out[axis] == 1:
                out[axis] = shape[axis]
            elif shape[axis] != 1 and not same(out[axis], shape[axis]):
                raise ShapeError(f"shapes {' and '.join(text(s) for s in shapes)} do not broadcast")
    return tuple(out)


def _need_rank(shape: Shape, least: int, what: str) -> None:
    if len(shape) < least:
        raise ShapeError(
            f"{what} needs at least {least} {'axes' if least > 1 else 'axis'}, its argument is {text(shape)}"
        )


def _reduced(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (x,) = shapes
    axis = attrs["axis"]
    _need_rank(x, 1, "a reduction")
    if not -len(x) <= axis < 0:
        raise ShapeError(f"axis {axis} is outside {text(x)}")
    place = len(x) + axis
    return x[:place] + ((1,) if attrs["keepdims"] else ()) + x[place + 1 :]


def _row(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    _need_rank(shapes[0], 1, "a row op")
    for weight in shapes[1:]:
        if len(weight) != 1 or not same(weight[0], shapes[0][-1]):
            raise ShapeError(f"parameter {text(weight)} does not fit the last axis of {text(shapes[0])}")
    return shapes[0]


def _linear(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, w = shapes[:2]
    _need_rank(x, 1, "Linear")
    if len(w) != 2 or not same(w[1], x[-1]):
        raise ShapeError(f"weight {text(w)} does not fit {text(x)}: it must be [out, {show(x[-1])}]")
    if len(shapes) == 3 and (len(shapes[2]) != 1 or not same(shapes[2][0], w[0])):
        raise ShapeError(f"bias {text(shapes[2])} does not fit weight {text(w)}")
    return (*x[:-1], w[0])


def _matmul(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    a, b = shapes
    if len(a) < 2 or len(b) < 2:
        raise ShapeError(f"@ needs two matrices, not {text(a)} and {text(b)}")
    if not same(a[-1], b[-2]):
        raise ShapeError(
            f"{text(a)} @ {text(b)}: the inner sizes {show(a[-1])} and {show(b[-2])} differ (.T on the second?)"
        )
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def _permute(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (x,) = shapes
    if sorted(attrs["perm"]) != list(range(len(x))):
        raise ShapeError(f"{attrs['perm']} is no permutation of the axes of {text(x)}")
    return tuple(x[p] for p in attrs["perm"])


def _reshape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    shape = tuple(normalise(s) for s in attrs["shape"])
    if not same(product(shape), product(shapes[0])):
        raise ShapeError(f"{text(shapes[0])} has not as many elements as {text(shape)}")
    return shape


def _select(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (x,) = shapes
    axis, index = attrs["axis"], attrs["index"]
    if not -len(x) <= axis < len(x) or decide("<", index, x[axis]) is False or index < 0:
        raise ShapeError(f"index {index} on axis {axis} is outside {text(x)}")
    place = axis % len(x)
    return x[:place] + x[place + 1 :]


def _split(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (x,) = shapes
    _need_rank(x, 1, "split")
    parts, index = attrs["parts"], attrs["index"]
    if parts < 1 or not 0 <= index < parts:
        raise ShapeError(f"no part {index} of {parts}")
    width = divide(x[-1], parts)
    if width is None:
        raise ShapeError(f"{show(x[-1])} does not split into {parts} equal parts")
    return (*x[:-1], width)


def _heads(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (x,) = shapes
    _need_rank(x, 2, "Heads")
    width = divide(x[-1], attrs["n"])
    if width is None:
        raise ShapeError(f"{show(x[-1])} does not split into {show(attrs['n'])} heads")
    return (*x[:-2], attrs["n"], x[-2], width)


def _merge(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (x,) = shapes
    _need_rank(x, 3, "Merge")
    return (*x[:-3], x[-2], build("*", x[-3], x[-1]))


def _concat(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    axis, first = attrs["axis"], shapes[0]
    if not -len(first) <= axis < 0:
        raise ShapeError(f"axis {axis} is outside {text(first)}")
    place = len(first) + axis
    total: Expr = 0
    for s in shapes:
        if len(s) != len(first) or any(
            not same(a, b) for i, (a, b) in enumerate(zip(s, first, strict=True)) if i != place
        ):
            raise ShapeError(f"{' and '.join(text(s) for s in shapes)} differ beyond axis {axis}")
        total = build("+", total, s[place])
    return (*first[:place], total, *first[place + 1 :])


def _gather(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    table, index = shapes
    _need_rank(table, 1, "Gather")
    return (*index, *table[1:])


def _rope(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x = shapes[0]
    _need_rank(x, 2, "RoPE")
    if broadcast(shapes) != x or any(not s or s[-1] != x[-1] for s in shapes):
        raise ShapeError(f"cos and sin, {text(shapes[1])} and {text(shapes[2])}, must broadcast to {text(x)}")
    if divide(x[-1], 2) is None and isinstance(x[-1], int):
        raise ShapeError(f"RoPE turns pairs: the last axis of {text(x)} is odd")
    return x


def _mask(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    _need_rank(shapes[0], 2, "Mask_Causal")
    return shapes[0][-2:]


# ---------------------------------------------------------------------------------------------------- the table


def _per_element(elementwise: int = 0, special: int = 0, of: int | None = None) -> Callable[..., dict[str, Expr]]:
    """So many operations for each element of the output (or of argument ``of``)."""

    def flops(out: Shape, args: Sequence[Shape]) -> dict[str, Expr]:
        count = product(out if of is None else args[of])
        made = {"elementwise": build("*", elementwise, count), "special": build("*", special, count)}
        return {unit: number for unit, number in made.items() if number != 0}

    return flops


def _multiply_adds(out: Shape, args: Sequence[Shape]) -> dict[str, Expr]:
    return {"matmul": build("*", 2, build("*", product(out), args[0][-1]))}


def _linear_flops(out: Shape, args: Sequence[Shape]) -> dict[str, Expr]:
    bias: dict[str, Expr] = {"elementwise": product(out)} if len(args) == 3 else {}
    return {**_multiply_adds(out, args), **bias}


def _binary(
    name: str, torch: str, *spellings: str, commutative: bool = False, dtype: str = "promote", number: str = "",
    tensors: bool = False,
) -> OpSpec:  # fmt: skip
    return OpSpec(
        name, "elementwise", spellings, (2, 2), broadcast, torch, dtype=dtype,
        flops=_per_element(special=1) if name in ("pow", "div") else _per_element(1), commutative=commutative,
        number=number, tensors=tensors,
    )  # fmt: skip


def _unary(
    name: str, torch: str, *spellings: str, plain: int = 0, special: int = 1, dtype: str = "float",
    attrs: tuple[tuple[str, Any], ...] = (), says: str = "", number: str | Mapping[str, str] = "",
) -> OpSpec:  # fmt: skip
    flops = _per_element(plain, special)
    return OpSpec(
        name, "elementwise", spellings, (1, 1), broadcast, torch, attrs, dtype, flops, says=says, number=number
    )


_AXIS = (("axis", -1), ("keepdims", False))


def _reduction(name: str, torch: str, spelling: str, per_element: int, dtype: str, says: str = "") -> OpSpec:
    flops = _per_element(per_element, of=0)
    return OpSpec(name, "reduction", (spelling,), (1, 1), _reduced, torch, _AXIS, dtype, flops, says=says)


def _view(
    name: str, shape: Callable[..., Shape], torch: str, *attrs: str, spellings: tuple[str, ...], says: str
) -> OpSpec:
    required = tuple((a, REQUIRED) for a in attrs)
    return OpSpec(name, "view", spellings, (1, 1), shape, torch, required, "first", says=says)


_TABLE = (
    OpSpec("const", "scalar", (), (0, 0), lambda s, a: (), "{value}", (("value", REQUIRED),), "f64"),
    OpSpec("dim", "scalar", (), (0, 0), lambda s, a: (), "{expr}", (("expr", REQUIRED),), "f64"),
    OpSpec(
        "iota", "source", ("Range",), (0, 0), lambda s, a: (a["n"],), "torch.arange({n}, device={device})",
        (("n", REQUIRED),), "i64",
        says="0, 1, … n - 1",
    ),
    OpSpec(
        "causal_mask", "source", ("Mask_Causal",), (1, 1), _mask,
        "{0}.new_full({0}.shape[-2:], -math.inf).triu(1 + {0}.shape[-1] - {0}.shape[-2])", (), "first",
        says="[S, T] of its argument's last two axes: 0 where key <= query + (T - S), else -inf",
    ),
    _binary("add", "{0} + {1}", "Add", commutative=True),
    _binary("sub", "{0} - {1}", "Sub"),
    _binary("mul", "{0} * {1}", "Mul", commutative=True),
    _binary("div", "{0} / {1}", "Div", dtype="float"),
    _binary("pow", "{0} ** {1}", "Pow", number="math.pow({0}, {1})"),
    _binary(
        "minimum", "torch.minimum({0}, {1})", "Minimum", commutative=True, number="min({0}, {1})", tensors=True
    ),
    _binary(
        "maximum", "torch.maximum({0}, {1})", "Maximum", commutative=True, number="max({0}, {1})", tensors=True
    ),
    _binary("lt", "{0} < {1}", "Less", dtype="bool"),
    _binary("le", "{0} <= {1}", "LessEqual", dtype="bool"),
    _binary("gt", "{0} > {1}", "Greater", dtype="bool"),
    _binary("ge", "{0} >= {1}", "GreaterEqual", dtype="bool"),
    _binary("eq", "{0} == {1}", "Equal", dtype="bool", commutative=True),
    _binary("ne", "{0} != {1}", "NotEqual", dtype="bool", commutative=True),
    OpSpec("where", "elementwise", ("Where",), (3, 3), broadcast, "torch.where({0}, {1}, {2})", (), "branches",
        _per_element(1)),
    _unary("neg", "-{0}", "Neg", plain=1, special=0, dtype="first"),
    _unary("abs", "torch.abs({0})", "abs", "Abs", plain=1, special=0, dtype="first", number="abs({0})"),
    _unary("exp", "torch.exp({0})", "exp", "Exp", number="math.exp({0})"),
    _unary("log", "torch.log({0})", "log", "Log", number="math.log({0})"),
    _unary("sqrt", "torch.sqrt({0})", "sqrt", "Sqrt", number="math.sqrt({0})"),
    _unary("rsqrt", "torch.rsqrt({0})", "rsqrt", "Rsqrt", number="1 / math.sqrt({0})"),
    _unary("tanh", "torch.tanh({0})", "tanh", "Tanh", number="math.tanh({0})"),
    _unary("erf", "torch.erf({0})", "erf", "Erf", number="math.erf({0})"),
    _unary(
        "sigmoid", "torch.sigmoid({0})", "sigmoid", "Sigmoid", plain=2, special=1, says="1 / (1 + exp(-x))",
        number="1 / (1 + math.exp(-{0}))",
    ),
    # Hendrycks & Gimpel, arXiv:1606.08415
    _unary(
        "gelu", "F.gelu({0}, approximate={approximate})", "GELU", plain=8, special=1, attrs=(("approximate", "tanh"),),
        says="0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))); with approximate=\"none\" 0.5 x (1 + erf(x / √2))",
        number={
            "tanh": "0.5 * {0} * (1 + math.tanh(math.sqrt(2 / math.pi) * ({0} + 0.044715 * {0} ** 3)))",
            "none": "0.5 * {0} * (1 + math.erf({0} / math.sqrt(2)))",
        },
    ),
    _unary(
        "silu", "F.silu({0})", "SiLU", plain=3, special=1, says="x / (1 + exp(-x))",
        number="{0} / (1 + math.exp(-{0}))",
    ),
    _unary("relu", "torch.relu({0})", "ReLU", plain=1, special=0, dtype="first", number="max({0}, 0)"),
    _unary("square", "{0} * {0}", "square", "Square", plain=1, special=0, dtype="first", says="x * x"),
    _unary("cast", "{0}.to({dtype})", "Cast", special=0, dtype="attr", attrs=(("dtype", REQUIRED),)),
    _reduction("sum", "{0}.sum(dim={axis}, keepdim={keepdims})", "Sum", 1, "sum"),
    _reduction("mean", "{0}.mean(dim={axis}, keepdim={keepdims})", "Mean", 1, "float"),
    _reduction("max", "{0}.amax(dim={axis}, keepdim={keepdims})", "Max", 1, "first"),
    _reduction(
        "var", "{0}.var(dim={axis}, keepdim={keepdims}, correction=0)", "Var", 4, "float",
        says="mean of (x - mean)², divided by n",
    ),
    OpSpec(
        "softmax", "row", ("Softmax",), (1, 1), _row, "F.softmax({0}, dim=-1)", (), "float",
        _per_element(4, 1), says="exp(x - max) / sum of it, over the last axis",
    ),
    OpSpec(
        "layernorm", "row", ("LayerNorm",), (3, 3), _row,
        "F.layer_norm({0}, {1}.shape, {1}, {2}, eps={eps})", (("eps", 1e-5),), "first", _per_element(8),
        says="(x - mean) / √(var + eps) · weight + bias over the last axis; var is divided by n",
    ),
    OpSpec(
        "rmsnorm", "row", ("RMSNorm",), (2, 2), _row,
        "F.rms_norm({0}, {1}.shape, {1}, eps={eps})", (("eps", 1e-5),), "first", _per_element(4),
        says="x / √(mean of x² + eps) · weight over the last axis",
    ),
    OpSpec(
        "linear", "contraction", ("Linear",), (2, 3), _linear, "F.linear({*})", (), "first", _linear_flops,
        says="x @ w.T + b: w is [out, in], the last axis of x and of w are summed over",
    ),
    OpSpec("matmul", "contraction", (), (2, 2), _matmul, "{0} @ {1}", (), "promote", _multiply_adds),
    _view(
        "permute", _permute, "{0}.permute({perm})", "perm", spellings=("Permute",),
        says="axes reordered: axis i of the result is axis perm[i] of the argument",
    ),
    _view(
        "reshape", _reshape, "{0}.reshape({shape})", "shape", spellings=("Reshape",),
        says="the same elements, row-major, in another shape",
    ),
    _view(
        "select", _select, "{0}.select({axis}, {index})", "axis", "index", spellings=("Select",),
        says="Select(x, axis, index): one position of an axis, which goes away",
    ),
    _view(
        "split", _split, "{0}.chunk({parts}, dim=-1)[{index}]", "parts", "index", spellings=("Split",),
        says="Split(x, n, i): part i of n equal parts of the last axis",
    ),
    _view(
        "heads", _heads, "torch.unflatten({0}, -1, ({n}, -1)).transpose(-3, -2)", "n", spellings=("Heads",),
        says="[B, T, C] to [B, n, T, C/n]",
    ),
    _view(
        "merge", _merge, "{0}.transpose(-3, -2).flatten(-2)", spellings=("Merge",),
        says="[B, H, T, D] to [B, T, H·D]",
    ),
    OpSpec(
        "concat", "movement", ("Concat",), (1, 64), _concat,
        "torch.cat([{*}], dim={axis})", (("axis", -1),),
    ),
    OpSpec(
        "gather", "movement", ("Gather",), (2, 2), _gather, "{0}[{1}]", (), "first",
        says="rows table[index]",
    ),
    OpSpec(
        "rope", "movement", ("RoPE",), (3, 3), _rope,
        "{0} * {1} + torch.cat([-{0}.chunk(2, -1)[1], {0}.chunk(2, -1)[0]], dim=-1) * {2}", (), "first",
        _per_element(3), says="x · cos + [-x2, x1] · sin, where x1 and x2 are the halves of the last axis",
    ),
)  # fmt: skip

OPS: dict[str, OpSpec] = {op.name: op for op in _TABLE}
SPELLINGS: dict[str, str] = {spelling: op.name for op in _TABLE for spelling in op.spellings}


def kind(op: str) -> str:
    return OPS[op].kind


# ---------------------------------------------------------------------------------------------------- building nodes


def is_scalar(value: Tensor | Node) -> bool:
    """A number computed from constants and sizes only: exact, adopts the dtype of what it meets."""
    return isinstance(value, Node) and value.dtype == "f64" and value.shape == ()


def promote(dtypes: Sequence[str]) -> str:
    """Torch's result dtype for tensors of these dtypes."""
    if {"bf16", "f16"} <= set(dtypes) and max(_RANK[d] for d in dtypes) == 3:
        return "f32"
    return max(dtypes, key=lambda d: _RANK[d])


def _check_dtypes(op: OpSpec, args: Sequence[Tensor | Node]) -> None:
    """Raises ShapeError where an op has no meaning for its arguments' dtypes."""
    dtypes = [a.dtype for a in args]
    if op.kind in ("row", "contraction") or op.name == "rope":
        for a in args:
            if a.dtype not in (*FLOATS, "f64"):
                raise ShapeError(f"{op.name} needs floating-point arguments, {a.name} is {a.dtype}: use Cast")
    if op.name == "gather" and (dtypes[1] not in ("i32", "i64") or is_scalar(args[1])):
        raise ShapeError(f"Gather's index must be i32 or i64, {args[1].name} is {dtypes[1]}")
    if op.name == "where" and dtypes[0] != "bool":
        raise ShapeError(f"Where's condition must be a comparison (bool), {args[0].name} is {dtypes[0]}")
    arithmetic = op.kind in ("elementwise", "reduction") and op.name not in ("where", "eq", "ne", "cast")
    if arithmetic and "bool" in dtypes:
        raise ShapeError(f"{op.name} has no meaning for bool: use Cast or Where")


def _check_whole(op: OpSpec, dtype: str, args: Sequence[Tensor | Node]) -> None:
    """Raises ShapeError for a number that integers of an array cannot meet, as PyTorch does."""
    of_arrays = {a.dtype for a in args if not is_scalar(a)}
    if op.kind != "elementwise" or not of_arrays or not of_arrays <= {"i32", "i64"}:
        return
    bits = 31 if promote(sorted(of_arrays)) == "i32" else 63
    for value in (a.attr("value") for a in args if isinstance(a, Node) and a.op == "const"):
        if isinstance(value, int) and not -(2**bits) <= value < 2**bits:
            raise ShapeError(f"{value} is no i{bits + 1}: Cast the array to {'i64' if bits == 31 else 'f32'}")
        if op.name == "pow" and value < 0 and dtype in ("i32", "i64"):
            raise ShapeError(f"integers have no power {value}: Cast to f32 before it")


def _dtype(op: OpSpec, args: Sequence[Tensor | Node], attrs: Attrs) -> str:
    """What torch would give, numbers counting as Python scalars."""
    if op.dtype in _RANK and op.dtype != "bool":
        return op.dtype
    if op.dtype == "attr":
        return str(attrs["dtype"])
    used = list(args[1:]) if op.dtype == "branches" else list(args)
    scalars = [a for a in used if is_scalar(a)]
    if len(scalars) == len(used):
        if op.kind == "elementwise" and op.dtype not in ("bool", "branches"):
            return "f64"
        return "bool" if op.dtype == "bool" else "f32"
    if op.dtype == "bool":
        return "bool"
    stored = [a.dtype for a in used if not is_scalar(a)]
    result = stored[0] if op.dtype in ("first", "sum") else promote(stored)
    if result in ("i32", "i64", "bool"):
        whole = all(isinstance(a, Node) and (a.op == "dim" or isinstance(a.attr("value"), int)) for a in scalars)
        if op.dtype == "float" or not whole:
            return "f32"
        if op.dtype == "sum":
            return "i64"
    return result


def apply(
    op_name: str, name: str, args: Sequence[Tensor | Node], where: tuple[int, int] = (0, 0), **attrs: Any
) -> Node:  # fmt: skip
    """The node ``name = op(args)[attrs]`` with shape and dtype.  Raises ShapeError for what the op does not take."""
    op = OPS[op_name]
    if not op.arity[0] <= len(args) <= op.arity[1]:
        least, most = op.arity
        count = str(least) if least == most else f"{least} to {most}"
        raise ShapeError(f"{op_name} takes {count} arguments, not {len(args)}")
    full = {key: attrs.pop(key, default) for key, default in op.attrs}
    if attrs or any(v is REQUIRED for v in full.values()):
        wrong = ", ".join(attrs) or ", ".join(k for k, v in full.items() if v is REQUIRED)
        raise ShapeError(f"{op_name}: wrong or missing attribute {wrong}")
    _check_dtypes(op, args)
    shape, dtype = op.shape([a.shape for a in args], full), _dtype(op, args, full)
    _check_whole(op, dtype, args)
    if shape == () and dtype == "f64" and not all(map(is_scalar, args)):  # its form is kept for numbers
        raise ShapeError(f"{op_name} gives one f64 value of an array, which SNF does not hold: Cast to f32 before it")
    return Node(name, op_name, tuple(a.name for a in args), tuple(sorted(full.items())), shape, dtype, where)
