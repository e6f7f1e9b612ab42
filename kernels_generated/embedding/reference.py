"""embedding in PyTorch: what its kernels compute.

tokens[B, T], wte[V, C], wpe[P, C] -> y[B, T, C].
Sizes must have T <= P.
"""

import torch


def embedding(tokens: torch.Tensor, wte: torch.Tensor, wpe: torch.Tensor) -> torch.Tensor:
    T = tokens.shape[1]
    gather = wte[tokens]
    iota = torch.arange(T, device=tokens.device)
    gather_2 = wpe[iota]
    return gather + gather_2
