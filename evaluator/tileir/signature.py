"""Launch arguments to a kernel's signature and parameter words, as cuTile's own launcher derives them.

The one module that touches private names of the ``cuda.tile`` package (the parameter annotations of a kernel object);
:func:`check_version` refuses versions it was not written for.  The rules are those of cuda-tile 1.7.0's launcher:
what is assumed of an array follows from its sizes, strides and address.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .memory import Memory
from .promises import PassedArray

SUPPORTED_VERSION = "1.7"  # of cuda-tile: the private names below and the launcher's rules
INT32_MAX = 2**31 - 1
# Rules of the launcher: addresses and strides are looked at modulo 16 bytes, sizes modulo 16 elements, and only arrays
# of up to five dimensions are specialised.
ALIGNMENT_BYTES = 16
SIZE_DIVISOR = 16
MAX_SPECIALISED_RANK = 5


class LaunchError(TypeError):
    """Arguments that ct.launch would refuse."""


@dataclass
class Binding:
    """``parameters``: one constraint a kernel parameter.  ``words``: the raw values to pass.

    ``arrays`` are the arrays among them; ``keep`` holds tables made here alive.
    """

    parameters: list[Any]
    words: list[int | float | bool]
    arrays: list[PassedArray] = field(default_factory=list)
    keep: list[Tensor] = field(default_factory=list)

    def pass_array(self, name: str, position: int | None, tensor: Tensor, memory: Memory) -> None:
        """Notes an array argument, as torch sees it: of packed dtypes an element is a byte of two."""
        address, size = memory.address(tensor, name), tensor.element_size()
        self.arrays.append(PassedArray(name, position, address, tuple(tensor.shape), tuple(tensor.stride()), size))


def check_version() -> None:
    """Raises RuntimeError where the installed cuda-tile is not the one this module knows."""
    version = importlib.metadata.version("cuda-tile")
    if not version.startswith(SUPPORTED_VERSION + "."):
        raise RuntimeError(
            f"cuda-tile {version} is installed; the emulator's launcher knows {SUPPORTED_VERSION}.x only"
        )


def kernel_parameters(kernel: Any) -> list[tuple[str, Any]]:
    """(name, annotation node) of a kernel's parameters.  Raises LaunchError for what is no kernel."""
    import cuda.tile as ct

    if not isinstance(kernel, ct.kernel):
        name = getattr(kernel, "__name__", "")
        given = f"{name} ({type(kernel).__name__})" if name else type(kernel).__name__
        raise LaunchError(f"a kernel is wanted, a function decorated with @ct.kernel; given: {given}")
    function = kernel._annotated_function
    return list(zip(function.pysig.parameters, function.parameter_annotations, strict=True))


def tile_dtype(dtype: torch.dtype) -> Any:
    """cuTile's name for a torch dtype.  Raises LaunchError for one that has none."""
    import cuda.tile as ct

    name = str(dtype).removeprefix("torch.")
    found = getattr(ct, {"bool": "bool_", "float4_e2m1fn_x2": "float4_e2m1fn"}.get(name, name), None)
    if found is None:
        raise LaunchError(f"arrays of {dtype} can not be passed to a kernel")
    return found


def bind(kernel: Any, args: Sequence[Any], memory: Memory) -> Binding:
    """Constraints and words for launching ``kernel`` on ``args``; tensors are registered with ``memory``.

    Raises LaunchError (a TypeError) and OverflowError as ct.launch does.
    """
    known = kernel_parameters(kernel)
    if len(known) != len(args):
        raise LaunchError(f"the kernel takes {len(known)} arguments, {len(args)} were given")
    binding = Binding([], [])
    for (name, node), value in zip(known, args, strict=True):
        binding.parameters.append(_constraint(name, node, value, binding, memory))
    return binding


def _constraint(name: str, node: Any, value: Any, binding: Binding, memory: Memory) -> Any:
    from cuda.tile.compilation import ConstantConstraint, ListConstraint, TupleConstraint

    if type(value).__module__.partition(".")[0] == "numpy":
        mend = "torch.from_numpy(…) makes one" if getattr(value, "ndim", 0) else ".item() gives it"
        wanted = "a CPU torch tensor" if getattr(value, "ndim", 0) else "a Python number"
        raise LaunchError(f"{name}: {wanted} is wanted ({mend}), not numpy.{type(value).__name__}")
    if isinstance(value, tuple):
        nodes = _item_nodes(name, node, len(value))
        items = [
            _constraint(f"{name}[{i}]", n, v, binding, memory)
            for i, (n, v) in enumerate(zip(nodes, value, strict=True))
        ]
        return TupleConstraint(items)
    if getattr(node, "constant", False):
        return ConstantConstraint(value)
    if isinstance(value, Tensor):
        facts = _facts(value, getattr(node, "array", None), name)
        binding.pass_array(name, len(binding.words), value, memory)
        binding.words += [memory.address(value, name), *facts.shape, *facts.strides]
        return _array_constraint(facts)
    if isinstance(value, list):
        return ListConstraint(
            _list_element(name, node, value, binding, memory), alias_groups=(), elements_may_alias=True
        )  # fmt: skip
    if isinstance(value, bool | int | float):
        return _scalar(name, node, value, binding)
    return ConstantConstraint(value)  # None, strings, dtypes, functions, enums: refused by the class if unknown


def _item_nodes(name: str, node: Any, count: int) -> Sequence[Any]:
    if node.KIND == "homogeneous_tuple":
        return [node.each] * count
    if node.KIND == "heterogeneous_tuple":
        if len(node.items) != count:
            raise LaunchError(f"{name}: a tuple of {len(node.items)} is annotated, one of {count} was given")
        return list(node.items)
    return [node] * count


def _scalar(name: str, node: Any, value: bool | int | float, binding: Binding) -> Any:
    import cuda.tile as ct
    from cuda.tile.compilation import ScalarConstraint

    binding.words.append(value)
    if isinstance(value, bool):
        return ScalarConstraint(ct.bool_)
    if isinstance(value, float):
        return ScalarConstraint(ct.float32)
    annotation = getattr(node, "scalar", None)
    wide = annotation is not None and annotation.dtype == ct.int64
    bits = 64 if wide else 32
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise OverflowError(f"{name}: {value} is too big for a {bits}-bit integer argument")
    return ScalarConstraint(ct.int64 if wide else ct.int32)


@dataclass(frozen=True)
class ArrayFacts:
    """What a signature may assume of an array; tuples have an entry a dimension."""

    dtype: Any
    index_dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stride_constant: tuple[int | None, ...]
    shape_constant: tuple[int | None, ...]
    stride_divisible_by: tuple[int, ...]
    shape_divisible_by: tuple[int, ...]
    base_addr_divisible_by: int
    may_alias_internally: bool


def _extent(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides in elements; a packed dtype of two elements a byte doubles its contiguous dimension."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if not str(tensor.dtype).endswith("_x2"):
        return shape, strides
    packed = max((k for k, s in enumerate(strides) if s == 1), default=None)
    if packed is None:
        raise LaunchError("a packed array needs a contiguous dimension")
    return (
        tuple(2 * n if k == packed else n for k, n in enumerate(shape)),
        tuple(s if k == packed else 2 * s for k, s in enumerate(strides)),
    )


def _facts(tensor: Tensor, annotation: Any, name: str) -> ArrayFacts:
    import cuda.tile as ct

    if tensor.device.type != "cpu":
        raise LaunchError(f"{name}: the emulator takes CPU tensors, not {tensor.device}")
    dtype = tile_dtype(tensor.dtype)
    shape, strides = _extent(tensor)
    index_dtype = ct.int32 if annotation is None else annotation.index_dtype
    if index_dtype != ct.int64 and any(n > INT32_MAX for n in shape + strides):
        raise OverflowError(f"{name}: a size or stride of {max(shape + strides)} is too big for a 32-bit index")
    rank = len(shape)
    special = rank <= MAX_SPECIALISED_RANK
    static_shape = _axes(getattr(annotation, "static_shape_dims", None), rank)
    static_strides = _axes(getattr(annotation, "static_stride_dims", None), rank)
    bits = dtype.bitwidth
    return ArrayFacts(
        dtype, index_dtype, shape, strides,
        stride_constant=tuple(
            (s if k in static_strides else None) if static_strides is not None
            else (1 if special and s == 1 else None) for k, s in enumerate(strides)
        ),
        shape_constant=tuple(
            n if (static_shape is not None and k in static_shape) or (special and n == 1) else None
            for k, n in enumerate(shape)
        ),
        stride_divisible_by=tuple(
            8 * ALIGNMENT_BYTES // bits if special and s * bits % (8 * ALIGNMENT_BYTES) == 0 else 1 for s in strides
        ),
        shape_divisible_by=tuple(SIZE_DIVISOR if special and n % SIZE_DIVISOR == 0 else 1 for n in shape),
        base_addr_divisible_by=ALIGNMENT_BYTES if tensor.data_ptr() % ALIGNMENT_BYTES == 0 else 1,
        may_alias_internally=not _disjoint(shape, strides),
    )  # fmt: skip


def _axes(axes: Sequence[int] | None, rank: int) -> frozenset[int] | None:
    return None if axes is None else frozenset(a % rank if rank else a for a in axes)


def _disjoint(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether different indices surely name different elements."""
    pairs = sorted(zip(strides, shape, strict=True))
    if not pairs:
        return True
    ordered = all(b[0] > 0 and b[0] >= a[0] * a[1] for a, b in itertools.pairwise(pairs))
    return pairs[0][0] > 0 and ordered


def _array_constraint(facts: ArrayFacts) -> Any:
    from cuda.tile.compilation import ArrayConstraint

    def divisors(constants: Sequence[int | None], factors: Sequence[int]) -> tuple[int, ...]:
        # A constant that its divisor does not divide is refused; with a constant the divisor says nothing more.
        return tuple(1 if c is not None else f for c, f in zip(constants, factors, strict=True))

    return ArrayConstraint(
        facts.dtype, len(facts.shape), index_dtype=facts.index_dtype, stride_lower_bound_incl=0, alias_groups=(),
        may_alias_internally=facts.may_alias_internally, stride_constant=facts.stride_constant,
        shape_constant=facts.shape_constant,
        stride_divisible_by=divisors(facts.stride_constant, facts.stride_divisible_by),
        shape_divisible_by=divisors(facts.shape_constant, facts.shape_divisible_by),
        base_addr_divisible_by=facts.base_addr_divisible_by,
    )  # fmt: skip


def _list_element(name: str, node: Any, items: list[Any], binding: Binding, memory: Memory) -> Any:
    """The constraint that all items fulfil; the table of (address, sizes, strides) is passed with its length."""
    if not items or not all(isinstance(t, Tensor) for t in items):
        raise LaunchError(f"{name}: a list argument must hold tensors, at least one")
    annotation = getattr(getattr(node, "list", None), "element", None)
    facts = [_facts(t, annotation, f"{name}[{i}]") for i, t in enumerate(items)]
    first = facts[0]
    if any(f.dtype != first.dtype or len(f.shape) != len(first.shape) for f in facts):
        raise LaunchError(f"{name}: the tensors of a list must have one dtype and one number of dimensions")
    table = torch.tensor(
        [[memory.address(t, name), *f.shape, *f.strides] for t, f in zip(items, facts, strict=True)],
        dtype=torch.int64,
    )  # fmt: skip
    for i, t in enumerate(items):
        binding.pass_array(f"{name}[{i}]", None, t, memory)
    binding.keep.append(table)
    binding.words += [memory.address(table, f"{name} (table)"), len(items)]

    def common(key: str) -> tuple[Any, ...]:
        return tuple(
            column[0] if all(c == column[0] for c in column) else None
            for column in zip(*(getattr(f, key) for f in facts), strict=True)
        )

    def factors(key: str) -> tuple[int, ...]:
        return tuple(math.gcd(*column) for column in zip(*(getattr(f, key) for f in facts), strict=True))

    return _array_constraint(
        ArrayFacts(
            first.dtype, first.index_dtype, first.shape, first.strides, common("stride_constant"),
            common("shape_constant"), factors("stride_divisible_by"), factors("shape_divisible_by"),
            math.gcd(*(f.base_addr_divisible_by for f in facts)), any(f.may_alias_internally for f in facts),
        )
    )  # fmt: skip


def export(kernel: Any, parameters: Sequence[Any], gpu_code: str | None = "sm_100") -> bytes:
    """Tile IR bytecode (format 13.4) of a cuTile kernel under a signature.  sm_100 has every dtype the dialect knows.

    Errors of cuTile's front end pass through (subclasses of cuda.tile's TileError).
    """
    import io

    from cuda.tile.compilation import CallingConvention, KernelSignature, export_kernel

    signature = KernelSignature(list(parameters), CallingConvention.cutile_python_v2(), symbol="kernel")
    out = io.BytesIO()
    export_kernel(
        kernel, [signature], out, gpu_code=gpu_code, output_format="tileir_bytecode", bytecode_version="13.4"
    )  # fmt: skip
    return out.getvalue()
