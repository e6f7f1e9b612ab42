"""The model: every step one operator of :mod:`kernels_generated.ops`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor

from kernels_generated import ops
from kernels_generated.runtime.launch_rules import SIZE_DIVISOR

from .config import GPTConfig
from .decoding import KVCache, RecordedStep

# Tokens that have to be left for recording one's work to pay: recording takes as long as one to three tokens' work does
# eagerly (on an H200's host 4 to 8 ms, a token 3), and replaying a seventh of that (0.46 ms).
WORTH_RECORDING = 4
# Rows of logits that are no multiple of 16 bytes long begin where TMA cannot store.  A weight with rows of zeros below
# makes them longer, as nanoGPT's 50,304 are.  On an H200 it is copied in 42 us, with which 2,048 rows take 282 us
# instead of 337 and 1,536 220 instead of 240, but 1,024 158 instead of 152.
ALIGNED_LOGITS = 64
WORTH_ALIGNING = 1536
LONG_LOGITS = 4096  # with fewer, 63 that nobody reads are more than a hundredth


class TransformerBlock(nn.Module):
    """One transformer block: x + attention(ln_1(x)), then x + mlp(ln_2(x))."""

    def __init__(self, config: GPTConfig, **where: Any) -> None:
        super().__init__()
        C = config.n_embd
        self.n_head, self.activation = config.n_head, config.activation
        self.ln_1, self.ln_2 = nn.LayerNorm(C, **where), nn.LayerNorm(C, **where)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C, **where), "c_proj": nn.Linear(C, C, **where)})
        inner = config.n_inner
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, inner, **where), "c_proj": nn.Linear(inner, C, **where)})

    def forward(
        self, x: torch.Tensor, kv: torch.Tensor | None = None, last: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x[B, T, C] → [B, T, C].

        kv: the layer's part of a cache, [2, B, n_head, room, D], which takes the keys and values of ``x``.  With
        ``last``, their place, ``x`` is one token of each text, all at that place, and looks at all that are in the
        cache; without, at ``x`` alone.
        """
        B, T, C = x.shape
        qkv = self._linear(ops.linear, self.attn["c_attn"], self._norm(self.ln_1, x))
        qkv = qkv.view(B, T, 3, self.n_head, C // self.n_head)
        if kv is None or last is None:
            if kv is not None:
                kv[:, :, :, :T] = qkv[:, :, 1:].permute(2, 0, 3, 1, 4)
            y = ops.attention(qkv)
        else:
            kv.index_copy_(3, last[0].view(1), qkv[:, :, 1:].permute(2, 0, 3, 1, 4).to(kv.dtype))
            y = ops.attention_decode(qkv[:, 0, 0].unsqueeze(2), kv[0], kv[1], last)
        x = self._linear(ops.linear_residual, self.attn["c_proj"], y.view(B, T, C), x)
        h = self._norm(self.ln_2, x)
        if self.activation == "gelu":
            h = F.gelu(self._linear(ops.linear, self.mlp["c_fc"], h))
        else:
            h = self._linear(ops.linear_gelu, self.mlp["c_fc"], h)
        return self._linear(ops.linear_residual, self.mlp["c_proj"], h, x)

    @staticmethod
    def _norm(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return ops.layernorm(x, layer.weight, layer.bias)  # type: ignore[no-any-return]

    @staticmethod
    def _linear(operator: Any, layer: nn.Module, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return operator(x, layer.weight, layer.bias, *more)  # type: ignore[no-any-return]


class GPT(nn.Module):
    """GPT-2 with random weights (normal, σ 0.02), or those that ``load`` gives.

    Parameters have nanoGPT's shapes, and its names without ``transformer.``.  device, dtype: of the parameters;
    bfloat16, float16 and float32 have kernels.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": "meta", "dtype": dtype}  # PyTorch's own random weights take their time
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd, **where)
        self.wpe = nn.Embedding(config.block_size, config.n_embd, **where)
        self.h = nn.ModuleList([TransformerBlock(config, **where) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, **where)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False, **where)
        place = torch.get_default_device() if device is None else torch.device(device)
        if place.type != "meta":
            self.to_empty(device=place)
            self._draw()
        self.tie()

    def tie(self) -> None:
        """Makes the output projection the token embedding, where it is to be."""
        if self.config.tied:
            self.lm_head.weight = self.wte.weight

    @torch.no_grad()
    def _draw(self) -> None:
        for name, one in self.named_parameters():
            if one.dim() == 2:  # what adds to the residual stream is smaller, as GPT-2's paper has it
                many = 2 * self.config.n_layer if name.endswith("c_proj.weight") else 1
                one.normal_(0.0, 0.02 / math.sqrt(many))
            else:
                one.fill_(1.0 if name.endswith("weight") else 0.0)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        """idx[B, T], token numbers → logits[B, T, vocab_size], of which [:, t] has seen tokens 0 … t.

        On a GPU the rows of many logits may be further apart than they are long (as torch.compile's are).

        Raises TypeError for numbers that are no integers, RuntimeError for another rank or device, a T of 0 or above
        block_size, and (of numbers on the CPU) IndexError for those outside the vocabulary.
        """
        self._check(idx, idx.device.type == "cpu")
        return self._logits(self._blocks(idx))

    def generate(
        self,
        idx: torch.Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """idx[B, T] with ``max_new_tokens`` more after it, [B, T + max_new_tokens]; see :meth:`stream`."""
        new = list(self.stream(idx, max_new_tokens, temperature, top_k, generator=generator))
        return torch.cat([idx, *(one[:, None] for one in new)], dim=1)

    def stream(
        self,
        idx: torch.Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Iterator[torch.Tensor]:
        """The tokens that follow idx[B, T], one [B] after the other.

        Logits are divided by ``temperature``, only the ``top_k`` largest stay, and one is drawn by their softmax; a
        temperature of 0 takes the largest.  Keys and values are kept, so that a token costs one token's work; beyond
        block_size tokens the last block_size are looked at, for which all is computed anew.

        Raises as :meth:`forward` does (numbers are looked at on any device), and ValueError for a temperature or
        max_new_tokens below 0, a top_k below 1.
        """
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens is {max_new_tokens}: it is 0 or above")
        if not temperature >= 0:
            raise ValueError(f"temperature is {temperature}: it is 0 or above")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k is {top_k}: it is at least 1")
        self._check(idx[:, -self.config.block_size :] if idx.dim() == 2 else idx, True)
        return self._stream(idx, max_new_tokens, temperature, top_k, generator)

    @torch.no_grad()
    def _stream(
        self,
        idx: torch.Tensor,
        max_new_tokens: int,
        temperature: float,
        top_k: int | None,
        generator: torch.Generator | None,
    ) -> Iterator[torch.Tensor]:
        most, T = self.config.block_size, idx.shape[1]
        length = T + max_new_tokens
        with torch.inference_mode(False):  # as the cache: the text is written to wherever the next token is asked for
            text = torch.cat([idx, idx.new_zeros(len(idx), max_new_tokens)], dim=1)
        if not len(idx):
            yield from text[:, T:].unbind(1)
            return
        cache = KVCache(self.config, len(idx), min(most, -(-length // 64) * 64), self.wte.weight)
        step: Callable[[torch.Tensor], torch.Tensor] = functools.partial(self._next, cache=cache)
        token = idx[:, -1]
        for end in range(T, length):
            if end == T or end > most:  # beyond it every token's position has changed
                seen = text[:, max(0, end - most) : end]
                logits = self._logits(self._blocks(seen, cache if end == T else None)[:, -1])
            else:
                # the step before this one has chosen and loaded its kernels
                if end == T + 2 and idx.is_cuda and min(length, most + 1) - end >= WORTH_RECORDING:
                    step = RecordedStep(step, token[:, None])
                logits = step(token[:, None])
            token = _drawn(logits.float(), temperature, top_k, generator)
            text[:, end] = token
            yield token

    def _blocks(self, idx: torch.Tensor, cache: KVCache | None = None) -> torch.Tensor:
        """idx[B, T] → [B, T, C], before the last normalisation; keys and values go into a cache that is given."""
        x = ops.embedding(idx, self.wte.weight, self.wpe.weight)
        for layer, block in enumerate(self.h):
            x = block(x, None if cache is None else cache.kv[layer])
        if cache is not None:
            cache.last.fill_(idx.shape[1] - 1)
        return x  # type: ignore[no-any-return]

    def _next(self, token: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """token[B, 1], which follows those in the cache → logits[B, V].

        Where it is lies on the device alone, so that the same work, replayed, is the next token's.
        """
        cache.last.add_(1)
        position = self.wpe.weight.index_select(0, cache.last[0].view(1))
        x = ops.embedding(token, self.wte.weight, position)
        for layer, block in enumerate(self.h):
            x = block(x, cache.kv[layer], cache.last)
        return self._logits(x[:, -1])

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        x = ops.layernorm(x, self.ln_f.weight, self.ln_f.bias)
        weight, vocab = self.lm_head.weight, self.config.vocab_size
        if _worth_aligning(x, vocab):
            weight = torch.cat([weight, weight.new_zeros(-vocab % ALIGNED_LOGITS, x.shape[-1])])
        return ops.linear_nobias(x, weight)[..., :vocab]  # type: ignore[no-any-return]

    def _check(self, idx: torch.Tensor, values: bool) -> None:
        if idx.dtype != torch.int64:
            raise TypeError(f"idx is {idx.dtype}: token numbers are torch.int64")
        if idx.dim() != 2:
            raise RuntimeError(f"idx has the shape {list(idx.shape)}, expected [B, T]")
        if idx.device != self.wte.weight.device:
            raise RuntimeError(f"idx is on {idx.device}, the model on {self.wte.weight.device}")
        if not 1 <= idx.shape[1] <= self.config.block_size:
            raise RuntimeError(f"idx has {idx.shape[1]} tokens, the model takes 1 to {self.config.block_size}")
        if values and idx.numel() and not _followed(idx):
            low, high = (int(n) for n in torch.aminmax(idx))
            if low < 0 or high >= self.config.vocab_size:
                raise IndexError(
                    f"idx has numbers from {low} to {high}, the vocabulary is 0 to {self.config.vocab_size - 1}"
                )


def _followed(idx: torch.Tensor) -> bool:
    """Whether numbers cannot be looked at: torch.compile, torch.export or torch.func follow what is done to them."""
    return torch.compiler.is_compiling() or is_functorch_wrapped_tensor(idx)


def _worth_aligning(x: torch.Tensor, vocab: int) -> bool:
    """Whether the rows of logits begin where kernels know of no alignment, and are many and long."""
    many = x.shape[:-1].numel() >= WORTH_ALIGNING and vocab >= LONG_LOGITS
    return x.is_cuda and x.element_size() == 2 and vocab % SIZE_DIVISOR != 0 and many


def _drawn(
    logits: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> torch.Tensor:
    """A token for each row of logits[B, V]."""
    if temperature == 0:
        return logits.argmax(-1)
    if temperature < 1e-30:  # quotients of what is above 0 would overflow
        logits, temperature = logits - logits.amax(-1, keepdim=True), max(temperature, torch.finfo(logits.dtype).tiny)
    logits = logits / temperature
    if top_k is not None:
        kept = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kept, -math.inf)
    return torch.multinomial(torch.softmax(logits, dim=-1), 1, generator=generator)[:, 0]
