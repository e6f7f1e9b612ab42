"""Launch arguments to a kernel's signature and parameter words, as cuTile's own launcher derives them.

The one module that touches private names of the ``cuda.tile`` package (the parameter annotations of a kernel object);
:func:`check_version` refuses versions it was not written for.  What is assumed of an array follows from its sizes,
strides and address by :mod:`kernels_generated.runtime.launch_rules`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernels_generated.runtime.launch_rules import ALIGNMENT_BYTES, INT32_MAX, ArrayFacts, array_facts, common

from .memory import Memory
from .promises import PassedArray

SUPPORTED_VERSION = "1.7"  # of cuda-tile: the private names below and the launcher's rules


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


def pass_arguments(kernel: Any, args: Sequence[Any], memory: Memory) -> Binding:
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
        passed = _passed(value, getattr(node, "array", None), name)
        binding.pass_array(name, len(binding.words), value, memory)
        binding.words += [memory.address(value, name), *passed.shape, *passed.strides]
        return _array_constraint(passed)
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
class _Passed:
    """An array as it is passed, and what its kernel may assume of it."""

    dtype: Any
    index_dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    facts: ArrayFacts


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


def _passed(tensor: Tensor, annotation: Any, name: str) -> _Passed:
    import cuda.tile as ct

    if tensor.device.type != "cpu":
        raise LaunchError(f"{name}: the emulator takes CPU tensors, not {tensor.device}")
    dtype = tile_dtype(tensor.dtype)
    shape, strides = _extent(tensor)
    index_dtype = ct.int32 if annotation is None else annotation.index_dtype
    if index_dtype != ct.int64 and any(n > INT32_MAX for n in shape + strides):
        raise OverflowError(f"{name}: a size or stride of {max(shape + strides)} is too big for a 32-bit index")
    static = ((), ()) if annotation is None else (annotation.static_shape_dims, annotation.static_stride_dims)
    try:
        facts = array_facts(shape, strides, dtype.bitwidth, (ALIGNMENT_BYTES, tensor.data_ptr()), static)
    except TypeError as error:
        raise LaunchError(f"{name}: {error}") from None
    return _Passed(dtype, index_dtype, shape, strides, facts)


def _array_constraint(passed: _Passed) -> Any:
    from cuda.tile.compilation import ArrayConstraint

    return ArrayConstraint(
        passed.dtype, len(passed.shape), index_dtype=passed.index_dtype, stride_lower_bound_incl=0, alias_groups=(),
        **asdict(passed.facts),
    )  # fmt: skip


def _list_element(name: str, node: Any, items: list[Any], binding: Binding, memory: Memory) -> Any:
    """The constraint that all items fulfil; the table of (address, sizes, strides) is passed with its length."""
    if not items or not all(isinstance(t, Tensor) for t in items):
        raise LaunchError(f"{name}: a list argument must hold tensors, at least one")
    annotation = getattr(getattr(node, "list", None), "element", None)
    arrays = [_passed(t, annotation, f"{name}[{i}]") for i, t in enumerate(items)]
    first = arrays[0]
    if any(a.dtype != first.dtype or len(a.shape) != len(first.shape) for a in arrays):
        raise LaunchError(f"{name}: the tensors of a list must have one dtype and one number of dimensions")
    table = torch.tensor(
        [[memory.address(t, name), *a.shape, *a.strides] for t, a in zip(items, arrays, strict=True)],
        dtype=torch.int64,
    )  # fmt: skip
    for i, t in enumerate(items):
        binding.pass_array(f"{name}[{i}]", None, t, memory)
    binding.keep.append(table)
    binding.words += [memory.address(table, f"{name} (table)"), len(items)]
    return _array_constraint(replace(first, facts=common([a.facts for a in arrays])))


def to_bytecode(kernel: Any, parameters: Sequence[Any], gpu_code: str | None = "sm_100") -> bytes:
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
