"""GPT-2 on generated kernels.

    import torch
    from kernels_generated import gpt2

    model = gpt2.load("path/of/gpt2", dtype=torch.bfloat16, device="cuda")   # a folder, a checkpoint, a live model
    logits = model(idx)                                                      # idx[B, T] -> logits[B, T, V]
    tokens = model.generate(idx, 40, temperature=0.8, top_k=50)
    model = gpt2.GPT(gpt2.PRESETS["gpt2"])                                   # random weights

    python -m kernels_generated.gpt2 path/of/gpt2 --prompt "Once upon a time"

Every step is an operator of :mod:`kernels_generated.ops`, so that it runs wherever they do: docs/gpt2.md.
"""

from .checkpoints import CheckpointError, load
from .config import PRESETS, GPTConfig
from .gpt import GPT, KVCache

__all__ = ["GPT", "PRESETS", "CheckpointError", "GPTConfig", "KVCache", "load"]
