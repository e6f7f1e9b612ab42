"""A model run twice on one example: as it was, and with operators in place of its modules."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

# The largest root-mean-square difference, relative to the output as it was, that is rounding: of one module by its
# output's dtype, and of a model, whose layers carry each other's rounding on, by the least precise dtype in it.
ONE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}
WHOLE = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 1e-4}
AT_ONCE = 1 << 22  # elements that are compared at a time, in float64


def limit(known: Mapping[torch.dtype, float], dtypes: Iterable[torch.dtype]) -> float:
    """``known``'s for the least precise of the dtypes."""
    return max((known.get(dtype, 0.0) for dtype in dtypes), default=0.0) or known[torch.float32]


class NothingToCompare(ValueError):
    """A model that ran, but gave nothing that says whether another form of it computes the same."""


def run(model: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The model's floating-point outputs by their paths, in evaluation mode; arguments and random state stay.

    Raises NothingToCompare where there are none, or none that holds a number.
    """
    with torch.no_grad(), _evaluating(model), torch.random.fork_rng(_cards(model, given, named)):
        torch.manual_seed(0)
        made = model(*_copied(given), **_copied(named))
        found = {path: one.detach().clone() for path, one in _tensors(made, "", set())}
    if not found:
        raise NothingToCompare(
            f"the model returns no floating-point tensors that could be compared, but {type(made).__name__}"
        )
    if not any(one.numel() for one in found.values()):
        raise NothingToCompare("the model's outputs on this example are empty, so nothing can be compared")
    if not any(torch.isfinite(one).any() for one in found.values()):
        raise NothingToCompare("the model's outputs on this example are not finite, so nothing can be compared")
    return found


def difference(before: torch.Tensor, after: Any) -> float:
    """Root mean square of the difference, relative to that of ``before``; infinite where shapes or dtypes differ.

    What is not finite has to be so in both.
    """
    if not isinstance(after, torch.Tensor) or (after.shape, after.dtype) != (before.shape, before.dtype):
        return math.inf
    if before.is_complex():
        before, after = torch.view_as_real(before), torch.view_as_real(after)
    off = size = 0.0
    for a, b in zip(before.reshape(-1).split(AT_ONCE), after.reshape(-1).split(AT_ONCE), strict=True):
        finite = torch.isfinite(a)
        if not torch.equal(finite, torch.isfinite(b)):
            return math.inf
        if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
            return math.inf
        wide = a[finite].double()
        off += float((b[finite].double() - wide).square().sum())
        size += float(wide.square().sum())
    return math.sqrt(off / size) if size else (math.inf if off else 0.0)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, and without statistics that a run in training would change."""
    before = [(module, module.training) for module in model.modules()]
    for module, _ in before:
        module.training = False
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _cards(model: nn.Module, *arguments: Any) -> list[int]:
    """The GPUs whose random numbers may be drawn."""
    tensors = (*model.parameters(), *model.buffers(), *pytree.tree_leaves(arguments))
    return sorted({one.get_device() for one in tensors if isinstance(one, torch.Tensor) and one.is_cuda})


def _tensors(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """The floating-point tensors in what a model returns: in sequences, mappings, and attributes of other objects.

    PyTorch's own walk (pytree) knows no paths in what models of transformers return, and stops at dataclasses.
    """
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex():
            yield path, value
        return
    if id(value) in seen or isinstance(value, nn.Module):
        return
    seen.add(id(value))
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        parts = ((f"[{key!r}]", one) for key, one in value.items())
    elif isinstance(value, list | tuple):
        parts = ((f"[{place}]", one) for place, one in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        parts = ((f".{name}", one) for name, one in vars(value).items())
    for name, one in parts:
        yield from _tensors(one, path + name, seen)


def _copied(arguments: Any) -> Any:
    """What the model may write to, such as a cache of keys and values, is the caller's no more."""
    try:
        return pytree.tree_map(
            lambda one: one.clone() if isinstance(one, torch.Tensor) else copy.deepcopy(one), arguments
        )
    except Exception as error:
        raise TypeError(f"patch(): the example cannot be copied, as each run has to have its own: {error}") from error
