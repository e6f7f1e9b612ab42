"""linear_gelu in PyTorch: what its kernels compute.

x[M, K], w[N, K], b[N] -> y[M, N].
"""

import torch
import torch.nn.functional as F


def linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    linear = F.linear(x, w, b)
    return F.gelu(linear, approximate="tanh")
