"""linear_silu_mul_c0ad0d in PyTorch: what its kernels compute.

x[M, K], x2[M, N], w[N, K] -> y[M, N].
"""

import torch
import torch.nn.functional as F


def linear_silu_mul_c0ad0d(x: torch.Tensor, x2: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    linear = F.linear(x, w)
    silu = F.silu(x2)
    return linear * silu
