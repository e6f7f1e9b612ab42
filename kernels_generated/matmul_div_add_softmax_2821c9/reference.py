"""matmul_div_add_softmax_2821c9 in PyTorch: what its kernels compute.

x[B, H, G, T, D], x2[B, H, T, D], x3[B, T, H, D] -> y[B, T, H, G, D].
"""

import math

import torch
import torch.nn.functional as F


def matmul_div_add_softmax_2821c9(x: torch.Tensor, x2: torch.Tensor, x3: torch.Tensor) -> torch.Tensor:
    _, H, G, _, D = x.shape
    permute_2 = x3.permute(0, 2, 1, 3)
    attention = F.scaled_dot_product_attention(
        x.flatten(1, 2), x2, permute_2, is_causal=True, scale=1 / math.sqrt(D), enable_gqa=True
    )
    matmul_2 = torch.unflatten(attention, 1, (H, G))
    return matmul_2.permute(0, 3, 1, 2, 4)
