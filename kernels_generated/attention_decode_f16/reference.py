"""attention_decode in PyTorch: what its kernels compute.

q[B, H, 1, D], k[B, H, S, D], v[B, H, S, D], last[B, 1, 1, 1] -> y[B, H, 1, D].
"""

import math

import torch
import torch.nn.functional as F


def attention_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    D = q.shape[3]
    S = k.shape[2]
    iota = torch.arange(S, device=q.device)
    le = iota <= last
    permute = k.permute(0, 1, 3, 2)
    matmul = q @ permute
    div = matmul / math.sqrt(D)
    where = torch.where(le, div, -math.inf)
    softmax = F.softmax(where, dim=-1)
    return softmax @ v
