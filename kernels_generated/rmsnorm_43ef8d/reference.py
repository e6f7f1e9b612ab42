"""rmsnorm_43ef8d in PyTorch: what its kernels compute.

x[M, N], weight[N] -> y[M, N].
"""

import torch
import torch.nn.functional as F


def rmsnorm_43ef8d(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps=1e-05)
