"""attention in PyTorch: what its kernels compute.

qkv[B, T, 3, H, D] -> y[B, T, H, D].
"""

import math

import torch
import torch.nn.functional as F


def attention(qkv: torch.Tensor) -> torch.Tensor:
    D = qkv.shape[4]
    select = qkv.select(2, 0)
    permute = select.permute(0, 2, 1, 3)
    select_2 = qkv.select(2, 1)
    permute_2 = select_2.permute(0, 2, 1, 3)
    select_3 = qkv.select(2, 2)
    permute_3 = select_3.permute(0, 2, 1, 3)
    matmul_2 = F.scaled_dot_product_attention(permute, permute_2, permute_3, is_causal=True, scale=1 / math.sqrt(D))
    return matmul_2.permute(0, 2, 1, 3)
