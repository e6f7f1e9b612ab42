"""Attention inside a module's forward: scaled_dot_product_attention that is causal, by an operator.

A module that attends is more than its attention, so its forward stays; while it runs, calls of that function go to an
operator where one computes the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from kernels_generated.ops import operators

from .fitness import unfit

ATTENTION = "attention_qkv"  # of as many heads of keys as of queries
GROUPED = "matmul_div_add_softmax_2821c9"  # of groups of queries that share one
LIKE = 1e-6  # how near a scale is to 1/√D


@dataclass(frozen=True)
class Attends:
    """A module's forward with attention by an operator."""


@dataclass(frozen=True)
class AttentionCall:
    """One call.  ``run`` gives what scaled_dot_product_attention would give.  The dtypes are its arguments'."""

    operator: str
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    run: Callable[[], torch.Tensor]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall | str:
    """The operator's call for arguments of scaled_dot_product_attention; why there is none."""
    if attn_mask is not None:
        return "its attention takes a mask"
    if not is_causal:
        return "its attention is not causal"
    if dropout_p:
        return "its attention drops out"
    shapes = [tuple(one.shape) for one in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes) or shapes[1] != shapes[2] or 0 in shapes[0]:
        return f"its attention is on the shapes {shapes[0]}, {shapes[1]} and {shapes[2]}"
    (B, H, T, D), (_, heads, *_) = shapes[:2]
    if scale is not None and abs(scale * math.sqrt(D) - 1) > LIKE:
        return f"its attention is scaled by {scale}"
    if shapes[1] != (B, heads, T, D) or (heads != H and not (enable_gqa and heads and H % heads == 0)):
        return f"its attention is on the shapes {shapes[0]}, {shapes[1]} and {shapes[2]}"
    name = ATTENTION if heads == H else GROUPED
    operator = operators().get(name)
    if operator is None:
        return f"there is no operator {name}"
    reason = unfit((query, key, value), operator)
    if reason:
        return reason
    call, dtypes = operator.packet.default, (query.dtype, key.dtype, value.dtype)
    if heads == H:
        return AttentionCall(name, dtypes, query.device, lambda: call(query, key, value))

    def grouped() -> torch.Tensor:
        made: torch.Tensor = call(query.unflatten(1, (heads, H // heads)), key, value.transpose(1, 2))
        return made.flatten(2, 3).transpose(1, 2)

    return AttentionCall(name, dtypes, query.device, grouped)


class AttentionMode(TorchFunctionMode):
    """While it lasts, attention is an operator's where one computes it.

    seen: is told of each call what was found, what PyTorch gives and what is given in its place; then both are
    computed.  only_look: what PyTorch gives is given in any case.
    """

    def __init__(
        self,
        seen: Callable[[AttentionCall | str, torch.Tensor, torch.Tensor], None] | None = None,
        only_look: bool = False,
    ) -> None:
        super().__init__()
        self._seen, self._only_look = seen, only_look

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pytorchs = functools.partial(func, *args, **(kwargs or {}))
        if func is not F.scaled_dot_product_attention:
            return pytorchs()
        found = attention(*args, **(kwargs or {}))
        if self._seen is None:
            return pytorchs() if isinstance(found, str) else found.run()
        own = pytorchs()
        made = own if isinstance(found, str) or self._only_look else found.run()
        self._seen(found, own, made)
        return made
