"""rope_0e46b2 in PyTorch: what its kernels compute.

x[M, N, N2, N3, N4], cos[N, N4], sin[N, N4] -> y[M, N2, N3, N, N4].
Sizes must have N4 % 2 == 0.
"""

import torch


def rope_0e46b2(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    permute = x.permute(0, 2, 3, 1, 4)
    return permute * cos + torch.cat([-permute.chunk(2, -1)[1], permute.chunk(2, -1)[0]], dim=-1) * sin
