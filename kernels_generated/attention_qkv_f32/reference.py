"""attention_qkv in PyTorch: what its kernels compute.

q[B, H, T, D], k[B, H, T, D], v[B, H, T, D] -> y[B, H, T, D].
"""

import math

import torch
import torch.nn.functional as F


def attention_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    D = q.shape[3]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / math.sqrt(D))
