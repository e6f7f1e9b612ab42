"""GPT-2 in plain PyTorch, with the modules, names and masks of transformers, nanoGPT and minGPT."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

DIALECTS = ("transformers", "nanogpt", "mingpt")


class Turned(nn.Module):
    """A linear layer that keeps its weight as [in, out]."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class TanhGelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")


class PlainAttention(nn.Module):
    def __init__(self, layer: Any, C: int, n_head: int, block_size: int, masks: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.n_head = layer(C, 3 * C), layer(C, C), n_head
        if masks:
            self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = (one.view(B, T, self.n_head, -1).transpose(1, 2) for one in self.c_attn(x).split(C, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).tril().logical_not(), -math.inf)
        return self.c_proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(B, T, C))


class PlainBlock(nn.Module):
    def __init__(self, layer: Any, act: nn.Module, C: int, n_head: int, block_size: int, masks: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attn = PlainAttention(layer, C, n_head, block_size, masks)
        self.mlp = nn.ModuleDict({"c_fc": layer(C, 4 * C), "act": act, "c_proj": layer(4 * C, C)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](self.mlp["act"](self.mlp["c_fc"](self.ln_2(x))))


class PlainGPT2(nn.Module):
    """``dialect``: whose names and layouts.  minGPT's output projection is a matrix of its own."""

    def __init__(
        self, dialect: str, n_layer: int = 3, n_head: int = 3, n_embd: int = 48, block_size: int = 64, vocab: int = 65
    ) -> None:
        super().__init__()
        layer = Turned if dialect == "transformers" else nn.Linear
        act = nn.GELU() if dialect == "nanogpt" else TanhGelu()
        blocks = [
            PlainBlock(layer, act, n_embd, n_head, block_size, masks=dialect != "nanogpt") for _ in range(n_layer)
        ]
        self.transformer = nn.ModuleDict(
            {"wte": nn.Embedding(vocab, n_embd), "wpe": nn.Embedding(block_size, n_embd), "h": nn.ModuleList(blocks),
             "ln_f": nn.LayerNorm(n_embd)}
        )  # fmt: skip
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)
        if dialect != "mingpt":
            self.lm_head.weight = self.transformer["wte"].weight
        generator = torch.Generator().manual_seed(7)
        for name, one in self.named_parameters():
            with torch.no_grad():
                drawn = torch.randn(one.shape, generator=generator)
                one.copy_(drawn * 0.1 + (1.0 if "ln_" in name and name.endswith("weight") else 0.0))
        if dialect == "transformers":
            self.settings = {
                "model_type": "gpt2", "n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "vocab_size": vocab,
                "n_positions": block_size, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            }  # fmt: skip
            self.config = SimpleNamespace(to_dict=lambda: self.settings)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        parts = self.transformer
        x = parts["wte"](idx) + parts["wpe"].weight[: idx.shape[1]]
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))
