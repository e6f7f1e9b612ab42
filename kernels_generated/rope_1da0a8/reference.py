"""rope_1da0a8 in PyTorch: what its kernels compute.

x[M, N, N2, N3], cos[N, N3], sin[N, N3] -> y[M, N2, 1, N, N3].
Sizes must have N3 % 2 == 0.
"""

import torch


def rope_1da0a8(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    M, N, N2, N3 = x.shape
    permute = x.permute(0, 2, 1, 3)
    reshape = permute.reshape(M, N2, 1, N, N3)
    return reshape * cos + torch.cat([-reshape.chunk(2, -1)[1], reshape.chunk(2, -1)[0]], dim=-1) * sin
