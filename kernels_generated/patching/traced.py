"""Nodes of a graph that torch.compile traced: what is known of their values, and what they do beside giving them."""

from __future__ import annotations

import functools
import operator as calls
from collections.abc import Container, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from kernels_generated.ops import Operator, operators

from .recognition import FUNCTIONS, METHODS

# Functions that change none of their arguments: those of a module's formula, and others that models are made of.
HARMLESS = FUNCTIONS | {
    calls.le, calls.lt, calls.ge, calls.gt, calls.eq, calls.ne, calls.and_, calls.or_,
    torch.tensor, torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.cat, torch.where,
    torch.bmm, torch.cos, torch.sin, F.dropout, F.embedding, F.scaled_dot_product_attention,
}  # fmt: skip
HARMLESS_METHODS = METHODS | {
    "permute", "flatten", "unflatten", "expand", "chunk", "split", "unsqueeze", "squeeze", "clone", "cos", "sin",
    "le", "lt", "ge", "gt", "eq", "ne",
}  # fmt: skip
_IN_PLACE: dict[Any, int] = {F.silu: 1, F.dropout: 3, F.embedding: 3}  # the place of the argument that asks for it
_ASKING = ("inplace", "max_norm", "out")


def value(node: fx.Node) -> Any:
    """What it gave while it was traced: a tensor without data, mostly."""
    return node.meta.get("example_value")


@functools.cache
def called() -> dict[Any, Operator]:
    """Operators by what a graph that calls them names."""
    found: dict[Any, Operator] = {}
    for one in operators().values():
        found |= {one.packet: one, one.packet.default: one}
    return found


def is_harmless(node: fx.Node) -> bool:
    """Whether it surely changes no tensor."""
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output") or node.target in HARMLESS_METHODS
    if node.target in called() or is_of_vmap(node):
        return True
    # Some write to what they are given where they are asked to.
    asked = [*node.args[_IN_PLACE.get(node.target, len(node.args)) :][:1], *(node.kwargs.get(one) for one in _ASKING)]
    return node.target in HARMLESS and all(one is None or one is False for one in asked)


def is_of_vmap(node: fx.Node) -> bool:
    """Whether it is a step of torch.vmap."""
    module = getattr(node.target, "__module__", None) or ""  # functions of PyTorch 2.11 have none
    return module.startswith("torch._functorch.")


def is_undisturbed(first: fx.Node, last: fx.Node, but: Container[fx.Node] = ()) -> bool:
    """Whether nothing between them, ``but`` these, changes a tensor: what the first one reads, the last one may."""
    node = first
    while node is not last:
        node = node.next
        if node.op == "root" or not (node is last or node in but or is_harmless(node)):
            return False
    return True


def is_plain(node: fx.Node) -> bool:
    """Whether it gives an ordinary tensor that no gradient is recorded for."""
    given = value(node)
    if (
        not isinstance(given, torch.Tensor)
        or is_traceable_wrapper_subclass(given)
        or is_functorch_wrapped_tensor(given)
    ):
        return False
    return given.layout is torch.strided and not (torch.is_grad_enabled() and given.requires_grad)


def are_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether sizes, which may be symbols, are surely the same; nothing new is said of a symbol."""
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other, strict=True))
