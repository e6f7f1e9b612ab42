"""The table of ops: for each its SNF spelling, shape and dtype rule, meaning in torch, flops, and how it may fuse.

Adding an op is adding one entry to ``OPS`` (and a name to the list in :mod:`knowledge_base.snf.graph`).  The meaning
is one function for both modes of :mod:`knowledge_base.snf.reference`: on float64 tensors it is the reference, on
tensors of the stored dtype it is the yardstick, the op as a PyTorch user would call it.  torch is imported when an op
is run.

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

import math
import operator
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
    run: (torch tensors or numbers, attributes) -> torch tensor or number.
    flops: (output shape, argument shapes) -> operations by unit: matmul, elementwise, special (exp, tanh, rsqrt …).
    commutative: the two arguments may be exchanged.
    says: the formula, for people and models who write kernels; empty where the spelling says it all.
    """

    name: str
    kind: str
    spellings: tuple[str, ...]
    arity: tuple[int, int]
    shape: Callable[[Sequence[Shape], Attrs], Shape]
    run: Callable[[Sequence[Any], Attrs], Any]
    attrs: tuple[tuple[str, Any], ...] = ()
    dtype: str = (
        "promote"  # promote | float (ints become f32) | first | sum (ints become i64) | branches | attr | a dtype
    )
    flops: Callable[[Shape, Sequence[Shape]], dict[str, Expr]] = lambda out, args: {}
    commutative: bool = False
    says: str = ""


class Required:
    """Marks an attribute without default."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()


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


# ---------------------------------------------------------------------------------------------------- meaning in torch


def _tensor(value: Any, like: Any) -> Any:
    import torch

    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=like.dtype)


def _torch(name: str, *, tensors: bool = False) -> Callable[[Sequence[Any], Attrs], Any]:
    """torch.<name>(*args); with ``tensors``, numbers among the arguments become tensors of the other's dtype."""

    def run(args: Sequence[Any], attrs: Attrs) -> Any:
        import torch

        if tensors:
            like = next((a for a in args if isinstance(a, torch.Tensor)), torch.tensor(0.0, dtype=torch.float64))
            args = [_tensor(a, like) for a in args]
        return getattr(torch, name)(*args)

    return run


def _operator(name: str) -> Callable[[Sequence[Any], Attrs], Any]:
    """Python's operator on the arguments, so that either may be a number: ``2.0 - x``."""
    function = getattr(operator, name)
    return lambda args, attrs: function(*args)


def _functional(name: str) -> Callable[[Sequence[Any], Attrs], Any]:
    def run(args: Sequence[Any], attrs: Attrs) -> Any:
        import torch.nn.functional as F

        return getattr(F, name)(*args, **attrs)

    return run


def _run_norm(name: str) -> Callable[[Sequence[Any], Attrs], Any]:
    def run(args: Sequence[Any], attrs: Attrs) -> Any:
        import torch.nn.functional as F

        return getattr(F, name)(args[0], args[0].shape[-1:], *args[1:], eps=attrs["eps"])

    return run


def _run_reduction(name: str, **extra: Any) -> Callable[[Sequence[Any], Attrs], Any]:
    def run(args: Sequence[Any], attrs: Attrs) -> Any:
        import torch

        return getattr(torch, name)(args[0], dim=attrs["axis"], keepdim=attrs["keepdims"], **extra)

    return run


def _run_mask(args: Sequence[Any], attrs: Attrs) -> Any:
    import torch

    rows, columns = args[0].shape[-2:]
    full = torch.full((rows, columns), -math.inf, dtype=args[0].dtype)
    return torch.triu(full, diagonal=1 + columns - rows)


def _run_rope(args: Sequence[Any], attrs: Attrs) -> Any:
    import torch

    x, cos, sin = args
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _run_heads(args: Sequence[Any], attrs: Attrs) -> Any:
    x, n = args[0], attrs["n"]
    return x.reshape(*x.shape[:-1], n, x.shape[-1] // n).transpose(-3, -2)


def _run_merge(args: Sequence[Any], attrs: Attrs) -> Any:
    x = args[0].transpose(-3, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _run_cast(args: Sequence[Any], attrs: Attrs) -> Any:
    return args[0].to(attrs["dtype"])  # the reference passes a torch dtype: float64 for any float in mode fp64


def _run_where(args: Sequence[Any], attrs: Attrs) -> Any:
    import torch

    condition, *values = args
    like = next((v for v in values if isinstance(v, torch.Tensor)), torch.tensor(0.0, dtype=torch.float32))
    return torch.where(condition, *[_tensor(v, like) for v in values])


def _run_iota(args: Sequence[Any], attrs: Attrs) -> Any:
    import torch

    return torch.arange(attrs["n"])


def _run_square(args: Sequence[Any], attrs: Attrs) -> Any:
    return args[0] * args[0]


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


def _binary(name: str, torch_name: str, *spellings: str, commutative: bool = False, dtype: str = "promote") -> OpSpec:
    run = _torch(torch_name, tensors=True) if name in ("minimum", "maximum") else _operator(torch_name)
    return OpSpec(
        name, "elementwise", spellings, (2, 2), broadcast, run, dtype=dtype,
        flops=_per_element(special=1) if name in ("pow", "div") else _per_element(1), commutative=commutative,
    )  # fmt: skip


def _unary(
    name: str, run: Callable[..., Any], *spellings: str, plain: int = 0, special: int = 1, dtype: str = "float",
    attrs: tuple[tuple[str, Any], ...] = (), says: str = "",
) -> OpSpec:  # fmt: skip
    flops = _per_element(plain, special)
    return OpSpec(name, "elementwise", spellings, (1, 1), broadcast, run, attrs, dtype, flops, says=says)


_AXIS = (("axis", -1), ("keepdims", False))


def _reduction(
    name: str, run: Callable[..., Any], spelling: str, per_element: int, dtype: str, says: str = ""
) -> OpSpec:
    flops = _per_element(per_element, of=0)
    return OpSpec(name, "reduction", (spelling,), (1, 1), _reduced, run, _AXIS, dtype, flops, says=says)


def _view(
    name: str, shape: Callable[..., Shape], run: Callable[..., Any], *attrs: str, spellings: tuple[str, ...], says: str
) -> OpSpec:
    required = tuple((a, REQUIRED) for a in attrs)
    return OpSpec(name, "view", spellings, (1, 1), shape, run, required, "first", says=says)


_TABLE = (
    OpSpec("const", "scalar", (), (0, 0), lambda s, a: (), lambda v, a: a["value"], (("value", REQUIRED),), "f64"),
    OpSpec("dim", "scalar", (), (0, 0), lambda s, a: (), lambda v, a: a["expr"], (("expr", REQUIRED),), "f64"),
    OpSpec(
        "iota", "source", ("Range",), (0, 0), lambda s, a: (a["n"],), _run_iota, (("n", REQUIRED),), "i64",
        says="0, 1, … n - 1",
    ),
    OpSpec(
        "causal_mask", "source", ("Mask_Causal",), (1, 1), _mask, _run_mask, (), "first",
        says="[S, T] of its argument's last two axes: 0 where key <= query + (T - S), else -inf",
    ),
    _binary("add", "add", "Add", commutative=True),
    _binary("sub", "sub", "Sub"),
    _binary("mul", "mul", "Mul", commutative=True),
    _binary("div", "truediv", "Div", dtype="float"),
    _binary("pow", "pow", "Pow"),
    _binary("minimum", "minimum", "Minimum", commutative=True),
    _binary("maximum", "maximum", "Maximum", commutative=True),
    _binary("lt", "lt", "Less", dtype="bool"),
    _binary("le", "le", "LessEqual", dtype="bool"),
    _binary("gt", "gt", "Greater", dtype="bool"),
    _binary("ge", "ge", "GreaterEqual", dtype="bool"),
    _binary("eq", "eq", "Equal", dtype="bool", commutative=True),
    _binary("ne", "ne", "NotEqual", dtype="bool", commutative=True),
    OpSpec("where", "elementwise", ("Where",), (3, 3), broadcast, _run_where, (), "branches", _per_element(1)),
    _unary("neg", _torch("neg"), "Neg", plain=1, special=0, dtype="first"),
    _unary("abs", _torch("abs"), "abs", "Abs", plain=1, special=0, dtype="first"),
    _unary("exp", _torch("exp"), "exp", "Exp"),
    _unary("log", _torch("log"), "log", "Log"),
    _unary("sqrt", _torch("sqrt"), "sqrt", "Sqrt"),
    _unary("rsqrt", _torch("rsqrt"), "rsqrt", "Rsqrt"),
    _unary("tanh", _torch("tanh"), "tanh", "Tanh"),
    _unary("erf", _torch("erf"), "erf", "Erf"),
    _unary("sigmoid", _torch("sigmoid"), "sigmoid", "Sigmoid", plain=2, special=1, says="1 / (1 + exp(-x))"),
    # Hendrycks & Gimpel, arXiv:1606.08415
    _unary(
        "gelu", _functional("gelu"), "GELU", plain=8, special=1, attrs=(("approximate", "tanh"),),
        says="0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))); with approximate=\"none\" 0.5 x (1 + erf(x / √2))",
    ),
    _unary("silu", _functional("silu"), "SiLU", plain=3, special=1, says="x / (1 + exp(-x))"),
    _unary("relu", _torch("relu"), "ReLU", plain=1, special=0, dtype="first"),
    _unary("square", _run_square, "square", "Square", plain=1, special=0, dtype="first", says="x x"),
    _unary("cast", _run_cast, "Cast", special=0, dtype="attr", attrs=(("dtype", REQUIRED),)),
    _reduction("sum", _run_reduction("sum"), "Sum", 1, "sum"),
    _reduction("mean", _run_reduction("mean"), "Mean", 1, "float"),
    _reduction("max", _run_reduction("amax"), "Max", 1, "first"),
    _reduction("var", _run_reduction("var", correction=0), "Var", 4, "float", says="mean of (x - mean)², divided by n"),
    OpSpec(
        "softmax", "row", ("Softmax",), (1, 1), _row, lambda v, a: v[0].softmax(-1), (), "float",
        _per_element(4, 1), says="exp(x - max) / sum of it, over the last axis",
    ),
    OpSpec(
        "layernorm", "row", ("LayerNorm",), (3, 3), _row, _run_norm("layer_norm"), (("eps", 1e-5),), "first",
        _per_element(8), says="(x - mean) / √(var + eps) · weight + bias over the last axis; var is divided by n",
    ),
    OpSpec(
        "rmsnorm", "row", ("RMSNorm",), (2, 2), _row, _run_norm("rms_norm"), (("eps", 1e-5),), "first", _per_element(4),
        says="x / √(mean of x² + eps) · weight over the last axis",
    ),
    OpSpec(
        "linear", "contraction", ("Linear",), (2, 3), _linear, _functional("linear"), (), "first", _linear_flops,
        says="x @ w.T + b: w is [out, in], the last axis of x and of w are summed over",
    ),
    OpSpec("matmul", "contraction", (), (2, 2), _matmul, _torch("matmul"), (), "promote", _multiply_adds),
    _view(
        "permute", _permute, lambda v, a: v[0].permute(a["perm"]), "perm", spellings=("Permute",),
        says="axes reordered: axis i of the result is axis perm[i] of the argument",
    ),
    _view(
        "reshape", _reshape, lambda v, a: v[0].reshape(a["shape"]), "shape", spellings=("Reshape",),
        says="the same elements, row-major, in another shape",
    ),
    _view(
        "select", _select, lambda v, a: v[0].select(a["axis"], a["index"]), "axis", "index", spellings=("Select",),
        says="Select(x, axis, index): one position of an axis, which goes away",
    ),
    _view(
        "split", _split, lambda v, a: v[0].chunk(a["parts"], -1)[a["index"]], "parts", "index", spellings=("Split",),
        says="Split(x, n, i): part i of n equal parts of the last axis",
    ),
    _view(
        "heads", _heads, _run_heads, "n", spellings=("Heads",),
        says="[B, T, C] to [B, n, T, C/n]",
    ),
    _view(
        "merge", _merge, _run_merge, spellings=("Merge",),
        says="[B, H, T, D] to [B, T, H·D]",
    ),
    OpSpec(
        "concat", "movement", ("Concat",), (1, 64), _concat,
        lambda v, a: __import__("torch").cat(list(v), dim=a["axis"]), (("axis", -1),),
    ),
    OpSpec(
        "gather", "movement", ("Gather",), (2, 2), _gather, lambda v, a: v[0][v[1].long()], (), "first",
        says="rows table[index]",
    ),
    OpSpec("rope", "movement", ("RoPE",), (3, 3), _rope, _run_rope, (), "first", _per_element(3),
        says="x · cos + [-x2, x1] · sin, where x1 and x2 are the halves of the last axis"),
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
    shape = op.shape([a.shape for a in args], full)
    return Node(
        name, op_name, tuple(a.name for a in args), tuple(sorted(full.items())), shape, _dtype(op, args, full), where
    )
