"""dense in PyTorch: what its kernels compute.

x[M, K], w[K, N], b[N] -> y[M, N].
"""

import torch


def dense(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    matmul = x @ w
    return matmul + b
