"""What has to hold of tensors, and of where they are computed with, for an operator to take a module's place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kernels_generated.ops import Operator
from kernels_generated.runtime import backend as backends

EXACT = (torch.Tensor, nn.Parameter)  # a class of its own may compute what it likes
NOT_PLAIN = "not all of its tensors are plain ones"
APART = "its tensors are not in one place, or not dense"
GRADIENTS = "gradients are recorded"
FLOAT32 = "PyTorch multiplies float32 faster"  # docs/measured.md: five times


def unfit(tensors: Sequence[torch.Tensor], operator: Operator) -> str:
    """Why the operator is not to compute with these; empty where it may."""
    for one in tensors:
        if type(one) not in EXACT:
            return NOT_PLAIN
        if one.get_device() != tensors[0].get_device() or one.layout is not torch.strided or one.is_nested:
            return APART
    dtypes = tuple([one.dtype for one in tensors])
    if dtypes not in operator.interface.variants:
        return f"its tensors are {', '.join(str(dtype).removeprefix('torch.') for dtype in dict.fromkeys(dtypes))}"
    if operator.contracts and dtypes[0] is torch.float32:
        return FLOAT32
    return unfit_now(tensors)


def unfit_now(tensors: Sequence[torch.Tensor]) -> str:
    """The same of plain tensors that were fit, by their ``ops.signature``: what that does not tell.  A microsecond."""
    first = tensors[0]
    on_gpu = first.is_cuda
    if not on_gpu:
        if not first.is_cpu or backends.installed("cpu") is None:
            return f"its input is on {first.device.type}"
        if not all(one.is_cpu for one in tensors):  # meta has the same number
            return APART
    if torch.is_autocast_enabled("cuda" if on_gpu else "cpu"):
        return "autocast is on"
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return GRADIENTS
    return ""
