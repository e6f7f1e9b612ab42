"""layernorm in PyTorch: what its kernels compute.

x[M, N], weight[N], bias[N] -> y[M, N].
"""

import torch
import torch.nn.functional as F


def layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps=1e-05)
