"""dense_gelu in PyTorch: what its kernels compute.

x[M, K], w[K, N], b[N] -> y[M, N].
"""

import torch
import torch.nn.functional as F


def dense_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    matmul = x @ w
    add = matmul + b
    return F.gelu(add, approximate="tanh")
