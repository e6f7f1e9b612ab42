"""What has to hold of tensors, and of where they are computed with, for an operator to take a module's place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kernels_generated.ops import Operator
from kernels_generated.runtime import backend as backends

EXACT = (torch.Tensor, nn.Parameter)  # a class of its own may compute what it likes
GRADIENTS = "gradients are recorded"
FLOAT32 = "PyTorch multiplies float32 faster"  # docs/measured.md: five times


def unfit(tensors: Sequence[torch.Tensor], operator: Operator) -> str:
    """Why the operator is not to compute with these; empty where it may."""
    if not all(type(one) in EXACT for one in tensors):
        return "not all of its tensors are plain ones"
    device = tensors[0].device
    if device.type != "cuda" and backends.installed(device.type) is None:
        return f"its input is on {device.type}"
    if any(one.device != device for one in tensors) or any(one.layout is not torch.strided for one in tensors):
        return "its tensors are not in one place, or not dense"
    dtypes = tuple(one.dtype for one in tensors)
    if dtypes not in operator.interface.variants:
        return f"its tensors are {', '.join(str(dtype).removeprefix('torch.') for dtype in dict.fromkeys(dtypes))}"
    if operator.contracts and torch.float32 in dtypes:
        return FLOAT32
    if torch.is_autocast_enabled(device.type):
        return "autocast is on"
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return GRADIENTS
    return ""
