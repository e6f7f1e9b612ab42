"""Attention inside a module's forward: scaled_dot_product_attention that is causal, by an operator.

A module that attends is more than its attention, so its forward stays; while it runs, calls of that function go to an
operator where one computes the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from kernels_generated.ops import Operator, operators

from .fitness import EXACT, NOT_PLAIN, unfit

ATTENTION = "attention_qkv"  # of as many heads of keys as of queries
PACKED = "attention"  # the same, of one tensor that queries, keys and values are parts of
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


def computing(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Operator | None, str]:
    """The operator for arguments of scaled_dot_product_attention, of these shapes; why there is none."""
    if attn_mask is not None:
        return None, "its attention takes a mask"
    if not is_causal:
        return None, "its attention is not causal"
    if dropout_p:
        return None, "its attention drops out"
    shapes = [tuple(one.shape) for one in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes) or shapes[1] != shapes[2] or 0 in shapes[0]:
        return None, f"its attention is on the shapes {shapes[0]}, {shapes[1]} and {shapes[2]}"
    (B, H, T, D), (_, heads, *_) = shapes[:2]
    if scale is not None and abs(scale * math.sqrt(D) - 1) > LIKE:
        return None, f"its attention is scaled by {scale}"
    if shapes[1] != (B, heads, T, D) or (heads != H and not (enable_gqa and heads and H % heads == 0)):
        return None, f"its attention is on the shapes {shapes[0]}, {shapes[1]} and {shapes[2]}"
    name = ATTENTION if heads == H else GROUPED
    operator = operators().get(name)
    return operator, "" if operator is not None else f"there is no operator {name}"


def compute(operator: Operator, shape: Sequence[int], heads: int, tensors: Sequence[Any]) -> Any:
    """What scaled_dot_product_attention would give, by the operator.

    shape: of the queries.  heads: of the keys.  tensors: query, key and value, or the one that they are parts of; or
    proxies of a graph's.
    """
    (B, H, T, D), call = shape, operator.packet.default
    if operator.name == ATTENTION:
        return call(*tensors)
    if operator.name == PACKED:
        return call(tensors[0].view(B, T, 3, H, D)).transpose(1, 2)
    query, key, value = tensors
    made = call(query.unflatten(1, (heads, H // heads)), key, value.transpose(1, 2))
    return made.flatten(2, 3).transpose(1, 2)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any, **named: Any
) -> AttentionCall | str:
    """The operator's call for arguments of scaled_dot_product_attention; why there is none."""
    if any(type(one) not in EXACT for one in (query, key, value)):
        return NOT_PLAIN
    if torch._C._are_functorch_transforms_active():
        return "its attention is transformed"
    operator, reason = computing(query, key, value, *more, **named)
    if operator is not None:
        reason = unfit((query, key, value), operator)
    if operator is None or reason:
        return reason
    tensors: tuple[torch.Tensor, ...] = (query, key, value)
    whole = _whole(query, key, value) if operator.name == ATTENTION and PACKED in operators() else None
    if whole is not None and not unfit((whole,), operators()[PACKED]):
        operator, tensors = operators()[PACKED], (whole,)
    made = functools.partial(compute, operator, query.shape, key.shape[1], tensors)
    # The operator's result is dense.  So is PyTorch's where it lies as dense queries do, on a GPU.
    turned = operator.name == ATTENTION and not (query.is_cuda and query.is_contiguous())
    run = functools.partial(_heads_inside, made) if turned else made
    return AttentionCall(operator.name, tuple(one.dtype for one in tensors), query.device, run)


def _heads_inside(made: Callable[[], torch.Tensor]) -> torch.Tensor:
    """[B, H, T, D] whose memory is [B, T, H, D], as a view of [B, T, H * D] wants it."""
    return made().transpose(1, 2).contiguous().transpose(1, 2)


def _whole(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
    """The tensor that they are parts of as [B, T, 3, H, D], where they lie in one: nothing is copied then, and what
    comes out lies as PyTorch's does."""
    if query.is_neg() or key.is_neg() or value.is_neg():
        return None
    B, H, T, D = query.shape
    apart, row = H * D, 3 * H * D
    strides = (T * row, D, row, 1)
    offset = query.storage_offset()
    for place, one in enumerate((query, key, value)):
        if one.storage_offset() != offset + place * apart:
            return None
        if any(n > 1 and mine != theirs for n, mine, theirs in zip(query.shape, one.stride(), strides, strict=True)):
            return None
        if place and one.untyped_storage().data_ptr() != query.untyped_storage().data_ptr():
            return None
    return query.as_strided((B, T, 3, H, D), (T * row, row, apart, D, 1))


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
        # Dozens of calls a layer are of something else: nothing more is done for them.
        if func is not F.scaled_dot_product_attention or torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        pytorchs = functools.partial(func, *args, **(kwargs or {}))
        found = attention(*args, **(kwargs or {}))
        if self._seen is None:
            return pytorchs() if isinstance(found, str) else found.run()
        own = pytorchs()
        made = own if isinstance(found, str) or self._only_look else found.run()
        self._seen(found, own, made)
        return made


def only_attention_is_followed() -> bool:
    """Whether PyTorch's functions are called under no mode (TorchFunctionMode) but those of :class:`AttentionMode`."""
    many = torch._C._len_torch_function_stack()
    return all(type(torch._C._get_function_stack_at(place)) is AttentionMode for place in range(many))
