"""From a launch's arguments to the kernel's signature, the plan's parameters and what the signature assumes.

The rules are those of ``ct.launch`` (:mod:`kernels_generated.runtime.launch_rules`), with one change: a fact about a
symbolic size is assumed only if it follows from the guards (policy *general*), or if the sample has it and a guard says
so (policy *sample*).  On plain integers every fact is decided, and the two are equal.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cuda.tile import bool_, float32, int32, int64
from cuda.tile._cext import classify_constant, foreign_dtype_object_to_native
from cuda.tile.compilation import (
    ArrayConstraint,
    CallingConvention,
    ConstantConstraint,
    KernelSignature,
    ScalarConstraint,
    TupleConstraint,
)

from kernels_generated.runtime.launch_rules import ALIGNMENT_BYTES, INT32_MAX, array_facts

from .fake_torch import Dtype, Tensor
from .refusal import Refusal
from .symbolic import Context, Ratio, SymbolicSize, int_like, value_of


@dataclass
class Described:
    """What one launch's arguments come to.

    parameters: the plan's, with arrays as ("array", Tensor, index type, the axes whose strides an annotation makes
    constants) and scalars as ("scalar", dtype, value).
    arrays: per array the assumptions built into the bytecode, JSON-ready.
    constants: per constant (parameter name, text of the value).
    """

    signature: KernelSignature
    parameters: list[tuple[Any, ...]] = field(default_factory=list)
    arrays: list[dict[str, Any]] = field(default_factory=list)
    constants: list[tuple[str, str]] = field(default_factory=list)


def describe(context: Context, sample: bool, kernel: Any, args: tuple[Any, ...], symbol: str) -> Described:
    """Checks the arguments against the kernel's parameters.  TypeError or Refusal where ct.launch would raise."""
    annotated = kernel._annotated_function
    names = list(annotated.pysig.parameters)
    if len(names) != len(args):
        raise Refusal(
            "argument-count",
            f"kernel {symbol} takes {len(names)} arguments ({', '.join(names)}), ct.launch gives {len(args)}",
        )
    out = Described(signature=None)  # type: ignore[arg-type]
    constraints = [
        _constraint(context, sample, name, value, node, out)
        for name, value, node in zip(names, args, annotated.parameter_annotations, strict=True)
    ]
    out.signature = KernelSignature(constraints, CallingConvention.cutile_python_v2(), symbol)
    return out


def _constraint(context: Context, sample: bool, name: str, value: Any, node: Any, out: Described) -> Any:
    if isinstance(value, tuple):
        if node.KIND == "heterogeneous_tuple" and len(node.items) != len(value):
            raise TypeError(f"argument {name}: {len(value)} items, the annotation says {len(node.items)}")
        nodes = {"leaf": [node] * len(value), "homogeneous_tuple": [getattr(node, "each", None)] * len(value)}.get(
            node.KIND, getattr(node, "items", ())
        )
        items = zip(value, nodes, strict=True)
        return TupleConstraint(
            [_constraint(context, sample, f"{name}[{i}]", v, n, out) for i, (v, n) in enumerate(items)]
        )
    if node.KIND != "leaf":
        raise TypeError(f"argument {name}: wants a tuple, got {type(value).__name__}")
    if isinstance(value, list):
        raise Refusal("list-argument", f"argument {name}: lists of arrays are not supported, pass them one by one")
    if isinstance(value, Tensor):
        if node.constant:
            raise TypeError(f"argument {name}: an array cannot be a ct.Constant")
        return _array(context, sample, name, value, node, out)
    if node.constant:
        return _constant(context, name, value, out)
    return _scalar(context, name, value, node, out)


def _constant(context: Context, name: str, value: Any, out: Described) -> ConstantConstraint:
    if type(value) is SymbolicSize:
        value = context.pin(value)
    elif type(value) is Ratio:
        value = float(value)
    elif isinstance(value, Dtype):
        value = foreign_dtype_object_to_native(value)
    if classify_constant(value, True) is None:
        raise TypeError(f"argument {name}: {type(value).__name__} values cannot be constants of a kernel")
    out.constants.append((name, repr(value)))
    return ConstantConstraint(value)


def _scalar(context: Context, name: str, value: Any, node: Any, out: Described) -> Any:
    if type(value) is bool:
        out.parameters.append(("scalar", "bool", value))
        return ScalarConstraint(bool_)
    if int_like(value):
        wide = node.scalar is not None and node.scalar.dtype is int64
        limit = 2**63 - 1 if wide else INT32_MAX
        if not (context.assume("<=", value, limit) and context.assume(">=", value, -limit - 1)):
            raise Refusal(
                "scalar-overflow", f"argument {name}: {value_of(value)} does not fit {'i64' if wide else 'i32'}"
            )
        out.parameters.append(("scalar", "i64" if wide else "i32", value))
        return ScalarConstraint(int64 if wide else int32)
    if type(value) in (float, Ratio):
        out.parameters.append(("scalar", "f32", float(value)))
        return ScalarConstraint(float32)
    if isinstance(value, Dtype) or classify_constant(value, True) is not None:
        return _constant(context, name, value, out)
    raise TypeError(f"argument {name}: a kernel cannot take {type(value).__name__} values")


class _Guarded:
    """Of symbols a fact is what the guards say; with policy *sample*, also what the sample has and a guard can say."""

    def __init__(self, context: Context, sample: bool) -> None:
        self.known, self.assume, self.pin = context.known, context.assume, context.pin
        self.divides = context.assume_multiple if sample else context.divides
        self.value = value_of


def _array(context: Context, sample: bool, name: str, x: Tensor, node: Any, out: Described) -> ArrayConstraint:
    wide = node.array is not None and node.array.index_dtype is int64
    if not wide:
        for what, number in (*(("size", s) for s in x.shape), *(("stride", s) for s in x._strides)):
            if not context.assume("<=", number, INT32_MAX):
                raise Refusal(
                    "index-overflow",
                    f"argument {name}: a {what} of {value_of(number)} does not fit i32; annotate ct.IndexedWithInt64",
                )
    start = max(1, ALIGNMENT_BYTES // x.itemsize), x._offset
    static = (node.array.static_shape_dims, node.array.static_stride_dims) if node.array else ((), ())
    try:
        facts = array_facts(x.shape, x._strides, 8 * x.itemsize, start, static, _Guarded(context, sample))
    except TypeError as error:
        raise TypeError(f"argument {name}: {error}") from None
    out.parameters.append(("array", x, "i64" if wide else "i32", sorted({axis % x.ndim for axis in static[1]})))
    out.arrays.append(asdict(facts))
    return ArrayConstraint(
        foreign_dtype_object_to_native(x.dtype),
        x.ndim,
        index_dtype=int64 if wide else int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        **asdict(facts),
    )
