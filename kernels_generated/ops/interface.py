"""What an operator takes and gives: its schema, the sizes that its arguments tell, and what is wrong with them.

Everything here holds for real tensors as for those that torch.compile traces: sizes may be symbols.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels_generated.runtime.expr import Expr, apply, holds, show, symbols
from kernels_generated.runtime.manifest import Manifest
from kernels_generated.runtime.plan import TORCH_NAMES, Argument

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
Size = Any  # an int, or a torch.SymInt while something is traced


def torch_dtype(name: str) -> torch.dtype:
    """A plan's name of a dtype as PyTorch's."""
    return getattr(torch, TORCH_NAMES[name])  # type: ignore[no-any-return]


def size(expr: Expr, dims: Mapping[str, Size]) -> Size:
    """An expression's value, where dimensions may be symbols of torch.compile."""
    if isinstance(expr, int):
        return expr
    return dims[expr] if isinstance(expr, str) else apply(expr[0], size(expr[1], dims), size(expr[2], dims))


@dataclass(frozen=True)
class Sizes:
    """The task's dimensions, and the axes that stand in place of the batch dimension in every batched argument."""

    dims: Mapping[str, Size]
    leading: tuple[Size, ...]


class Interface:
    """One operator's, which all dtypes of its task share.

    name: the operator's.  tensors: the arguments as the task has them, the first axis of some being its batch.
    numbers: dimensions that no argument tells; they are arguments, too.
    """

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        first = manifests[0]
        self.name = first.name
        self.tensors, self.outputs = first.inputs, first.outputs
        self.batch, self.told, self._constraints = first.batch, first.told, first.constraints
        self.numbers = first.numbers
        self.variants = {tuple(map(torch_dtype, one.dtypes)): one for one in manifests}
        floats = [torch_dtype(t.dtype) for t in self.tensors if torch_dtype(t.dtype) in FLOATS]
        self.weight_places = tuple(k for k, one in enumerate(self.tensors) if one.role == "weight")
        self.weights = tuple(self.tensors[k].name for k in self.weight_places)
        # One dtype for all floating-point arguments is the rule; a task that mixes them takes its own mix alone.
        self._mixed = len(set(floats)) > 1
        self._own = floats[0] if floats else None

    @property
    def schema(self) -> str:
        """As torch.library.define takes it."""
        arguments = [f"Tensor {t.name}" for t in self.tensors] + [f"SymInt {number}" for number in self.numbers]
        results = ", ".join("Tensor" for _ in self.outputs)
        return f"{self.name}({', '.join(arguments)}) -> {results if len(self.outputs) == 1 else f'({results})'}"

    def text(self) -> str:
        """``x[..., K], w[N, K], b[N] -> y[..., N]``."""
        before, after = (
            ", ".join(f"{t.name}[{self._named(t)}]" for t in some) for some in (self.tensors, self.outputs)
        )
        return f"{before} -> {after}"

    def batched(self, tensor: Argument) -> bool:
        """Whether any number of axes may stand in place of its first one."""
        return bool(self.batch) and bool(tensor.shape) and tensor.shape[0] == self.batch

    def sizes(self, given: Sequence[torch.Tensor], numbers: Sequence[Size]) -> Sizes:
        """What the arguments' shapes tell.  Raises RuntimeError where they do not fit one another or the task."""
        shapes: dict[str, tuple[Size, ...]] = {}
        leading: tuple[Size, ...] | None = None
        for tensor, value in zip(self.tensors, given, strict=True):
            shape, rank = tuple(value.shape), len(tensor.shape)
            if not self.batched(tensor):
                if len(shape) != rank:
                    raise self._wrong(tensor, value, _axes(rank))
                shapes[tensor.name] = shape
                continue
            if len(shape) < rank - 1:
                raise self._wrong(tensor, value, f"at least {_axes(rank - 1)}")
            lead = shape[: len(shape) - (rank - 1)]
            if leading is not None and (len(lead) != len(leading) or any(a != b for a, b in zip(lead, leading))):  # noqa: B905
                raise self._wrong(tensor, value, f"the leading axes {list(leading)} of the arguments before it")
            leading = lead
            shapes[tensor.name] = (math.prod(lead), *shape[len(lead) :])
        leading = leading or ()
        dims: dict[str, Size] = dict(zip(self.numbers, numbers, strict=True))
        for one in self.told:
            along = shapes[one.argument][one.axis] - size(one.less, dims)
            by = size(one.by, dims)
            dims[one.dim] = along // by if by != 1 and by != 0 else along
        for tensor, value in zip(self.tensors, given, strict=True):
            expected = [size(axis, dims) for axis in tensor.shape]
            if any(found != wanted for found, wanted in zip(shapes[tensor.name], expected, strict=True)):
                shown = [*leading, *expected[1:]] if self.batched(tensor) else expected
                raise self._wrong(tensor, value, f"shape {shown}")
        for constraint in self._constraints:
            left, right = size(constraint.left, dims), size(constraint.right, dims)
            if not holds(constraint.comparison, left, right):
                raise RuntimeError(
                    f"{self.name}(): needs {show(constraint.left)} {constraint.comparison} {show(constraint.right)}, "
                    f"but got {left} and {right} ({self.text()})"
                )
        return Sizes(dims, leading)

    def weight_dims(self, given: Sequence[torch.Tensor]) -> dict[str, int]:
        """The dimensions that are an axis of a weight.  Raises RuntimeError where these are not the weights."""
        if not self.weights:
            raise RuntimeError(f"{self.name}() has no weights to pack")
        if len(given) != len(self.weights):
            raise RuntimeError(
                f"pack({self.name}): expected its weights {', '.join(self.weights)}, but got {len(given)} arguments"
            )
        dims: dict[str, int] = {}
        tensors = [self.tensors[place] for place in self.weight_places]
        for tensor, value in zip(tensors, given, strict=True):
            if not isinstance(value, torch.Tensor):
                got = type(value).__name__
                raise RuntimeError(f"pack({self.name}): expected {tensor.name} to be a tensor, but got a {got}")
            if value.is_inference():
                raise RuntimeError(
                    f"pack({self.name}): {tensor.name} was made under torch.inference_mode(), where a tensor does not "
                    "tell that it was changed: make it outside"
                )
            if len(value.shape) != len(tensor.shape):
                raise self._wrong(tensor, value, _axes(len(tensor.shape)))
            for axis, n in zip(tensor.shape, value.shape, strict=True):
                if isinstance(axis, str):
                    dims.setdefault(axis, n)
        for tensor, value in zip(tensors, given, strict=True):
            axes = zip(tensor.shape, value.shape, strict=True)
            expected = [size(axis, dims) if symbols(axis) <= dims.keys() else n for axis, n in axes]
            if list(value.shape) != expected:
                raise self._wrong(tensor, value, f"shape {expected}")
        self._one_device(dict(zip(self.weights, given, strict=True)))
        return dims

    def of_weights(self, dtypes: Sequence[torch.dtype]) -> list[Manifest]:
        """The manifests of the variants whose weights have these dtypes."""
        return [
            one
            for found, one in self.variants.items()
            if [found[place] for place in self.weight_places] == list(dtypes)
        ]

    def output_shape(self, output: Argument, sizes: Sizes) -> tuple[Size, ...]:
        shape = [size(axis, sizes.dims) for axis in output.shape]
        return (*sizes.leading, *shape[1:]) if self.batched(output) else tuple(shape)

    def dtypes(self, given: Sequence[torch.Tensor]) -> tuple[torch.dtype, ...]:
        """The dtypes of the outputs.  Raises RuntimeError for arguments of dtypes that the task does not take."""
        found = tuple(value.dtype for value in given)
        known = self.variants.get(found)
        if known is not None:
            return tuple(torch_dtype(output.dtype) for output in known.outputs)
        floats: dict[torch.dtype, str] = {}
        for tensor, dtype in zip(self.tensors, found, strict=True):
            wanted = torch_dtype(tensor.dtype)
            if wanted in FLOATS and not self._mixed:
                if dtype not in FLOATS:
                    raise RuntimeError(
                        f"{self.name}(): expected {tensor.name} of a floating-point dtype, but got {dtype}"
                    )
                floats.setdefault(dtype, tensor.name)
            elif dtype != wanted:
                raise RuntimeError(f"{self.name}(): expected {tensor.name} of dtype {wanted}, but got {dtype}")
        if len(floats) > 1:
            got = ", ".join(f"{t.name} {dtype}" for t, dtype in zip(self.tensors, found, strict=True))
            raise RuntimeError(f"{self.name}(): expected arguments of one floating-point dtype, but got {got}")
        one = next(iter(floats), None)
        own = tuple(torch_dtype(output.dtype) for output in self.outputs)
        return tuple(one if one is not None and dtype == self._own else dtype for dtype in own)

    def device(self, given: Sequence[torch.Tensor]) -> torch.device:
        """Where the arguments are.  Raises RuntimeError where that are several places."""
        return self._one_device(dict(zip((tensor.name for tensor in self.tensors), given, strict=True)))

    def refuse_layouts(self, given: Sequence[torch.Tensor]) -> None:
        """Raises RuntimeError where an argument has no strides to be read by."""
        for tensor, value in zip(self.tensors, given, strict=True):
            if value.layout is not torch.strided:
                raise RuntimeError(
                    f"{self.name}(): expected {tensor.name} to be a dense tensor, but got one of layout {value.layout}"
                )

    def refuse_none(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Raises RuntimeError where an argument is None: no operator has one that may be left out."""
        names = [*(tensor.name for tensor in self.tensors), *self.numbers]
        for name, value in (*zip(names, given, strict=False), *named.items()):
            if value is None:
                raise RuntimeError(f"{self.name}(): expected {name} to be a tensor, but got None")

    def _one_device(self, given: Mapping[str, torch.Tensor]) -> torch.device:
        devices = {value.device for value in given.values()}
        if len(devices) > 1:
            got = ", ".join(f"{name} on {value.device}" for name, value in given.items())
            raise RuntimeError(f"{self.name}(): expected all tensors on the same device, but got {got}")
        return next(iter(devices))

    def _named(self, tensor: Argument) -> str:
        axes = [show(axis) for axis in tensor.shape]
        return ", ".join(["...", *axes[1:]] if self.batched(tensor) else axes)

    def _wrong(self, tensor: Argument, value: torch.Tensor, wanted: str) -> RuntimeError:
        shape = list(value.shape)
        return RuntimeError(
            f"{self.name}(): expected {tensor.name} with {wanted}, but got shape {shape} ({self.text()})"
        )


def _axes(number: int) -> str:
    return f"{number} axis" if number == 1 else f"{number} axes"
