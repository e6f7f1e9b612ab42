"""Arguments for the operators of kernels_generated, and what their results are held to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels_generated import ops
from kernels_generated.ops.interface import FLOATS, size, torch_dtype
from kernels_generated.runtime.plan import Argument

OPERATORS = ops.operators()
# Small sizes; of those that kernels are made for (heads of D) one that there are kernels for.
SIZES = {"M": 5, "N": 48, "K": 32, "B": 2, "T": 9, "H": 3, "G": 2, "D": 16, "N2": 3, "N3": 16, "N4": 16,
         "V": 40, "P": 12, "C": 24, "S": 30}  # fmt: skip
KERNELS = [
    (name, dtype)
    for name, operator in OPERATORS.items()
    for dtype in sorted({one for found in operator.interface.variants for one in found if one in FLOATS}, key=str)
]


def given(name: str, dtype: torch.dtype = torch.bfloat16, seed: int = 0, **sizes: int) -> list[torch.Tensor]:
    """Arguments of an operator; integers are places in tables."""
    dims = {**SIZES, **sizes}
    generator = torch.Generator().manual_seed(seed)

    def made(tensor: Argument) -> torch.Tensor:
        shape = [size(axis, dims) for axis in tensor.shape]
        if torch_dtype(tensor.dtype) not in FLOATS:
            return torch.randint(dims["V"], shape, generator=generator)
        return torch.randn(shape, generator=generator).to(dtype)

    return [made(tensor) for tensor in OPERATORS[name].interface.tensors]


def wide(arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [one.double() if one.is_floating_point() else one for one in arguments]


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for rounding: the judge has shown more of each kernel."""
    assert found.shape == expected.shape
    error = (found.double() - expected.double()).square().mean().sqrt()
    assert error <= 2 * torch.finfo(found.dtype).eps * expected.double().square().mean().sqrt()
