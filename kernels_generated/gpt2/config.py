"""Sizes of GPT-2 models."""

from __future__ import annotations

from dataclasses import dataclass

# GPT-2's feed-forward non-linearity is GELU's tanh form; nanoGPT has the exact one.
ACTIVATIONS = ("gelu_tanh", "gelu")


@dataclass(frozen=True)
class GPTConfig:
    """What a model looks like, in nanoGPT's and minGPT's names.

    block_size: most tokens that it can look at.  n_inner: width of the feed-forward layer, 4 n_embd unless given.
    activation: gelu_tanh or gelu (exact).  tied: whether the output projection is the token embedding.

    Raises ValueError for sizes that are no integers from 1 on, an n_embd that n_head does not divide, and an unknown
    activation.
    """

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int = 1024
    vocab_size: int = 50257
    n_inner: int = 0
    activation: str = "gelu_tanh"
    tied: bool = True

    def __post_init__(self) -> None:
        if not self.n_inner:
            object.__setattr__(self, "n_inner", 4 * self.n_embd)
        for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "n_inner"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}: sizes are integers from 1 on")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd = {self.n_embd} is not a multiple of n_head = {self.n_head}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation is {self.activation!r}, not {' or '.join(ACTIVATIONS)}")


PRESETS: dict[str, GPTConfig] = {
    "nano": GPTConfig(3, 3, 48, block_size=64, vocab_size=65),  # minGPT's gpt-nano, on characters
    "tile-medium": GPTConfig(6, 4, 128, block_size=256),  # cutileGPT's: all sizes are powers of two
    # Radford et al., Language Models are Unsupervised Multitask Learners (2019)
    "gpt2": GPTConfig(12, 12, 768),
    "gpt2-medium": GPTConfig(24, 16, 1024),
    "gpt2-large": GPTConfig(36, 20, 1280),
    "gpt2-xl": GPTConfig(48, 25, 1600),
}
