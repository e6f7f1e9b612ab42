"""A task on some of its rows: which dimensions allow that, and the graph and inputs that are left.

A dimension is *separable* where an element of a result depends on no other elements along it: rows of a linear, and its
columns; heads and sequences of an attention.  Its reference can then be computed on a few of them.  Whether one is so
is found by trying, at small sizes and in float64: the restricted graph gives the same numbers, or it does not.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence

import torch

from kernels_generated.runtime.expr import Expr, symbols
from knowledge_base.snf import reference
from knowledge_base.snf.graph import Graph
from knowledge_base.snf.task import Task

from .inputs import draw
from .sizes import PRIMES, fit

Keep = Mapping[str, Sequence[int]]  # dimension -> the indices along it that are kept, ascending
TRIALS = 2  # sizes at which a dimension is tried


class NotSeparable(ValueError):
    """A dimension along which some input or output cannot be taken apart."""


def restricted(graph: Graph, inputs: Mapping[str, torch.Tensor], keep: Keep) -> tuple[Graph, dict[str, torch.Tensor]]:
    """The graph at as many of each dimension as are kept, and its inputs there.  Raises NotSeparable."""
    made = {t.name: taken(inputs[t.name], t.shape, keep) for t in graph.inputs}
    return graph.at(**{name: len(kept) for name, kept in keep.items()}), made


def taken(tensor: torch.Tensor, shape: Sequence[Expr], keep: Keep) -> torch.Tensor:
    """The elements of ``tensor``, which has ``shape`` in dimensions, that are kept.  Raises NotSeparable."""
    for axis, size in enumerate(shape):
        if isinstance(size, str) and size in keep:
            tensor = tensor.index_select(axis, torch.as_tensor(keep[size], dtype=torch.int64))
        elif symbols(size) & keep.keys():
            raise NotSeparable(f"{size} is an axis together with others")
    return tensor


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, 1e-9, 1e-12, equal_nan=True) if a.dtype.is_floating_point else torch.equal(a, b)


@functools.lru_cache(maxsize=64)
def separable(task: Task) -> tuple[str, ...]:
    """The dimensions that can be restricted, alone and together, found by trying."""
    rng = random.Random(task.identity)
    bound = {s for _, left, right in task.constraints for s in symbols(left) | symbols(right)}
    found: tuple[str, ...] = ()
    for name in task.sizes:
        if name not in bound and all(_same(task, (*found, name), rng) for _ in range(TRIALS)):
            found = (*found, name)
    return found


def _same(task: Task, names: Sequence[str], rng: random.Random) -> bool:
    """Whether restricting ``names`` changes no result, at sizes and inputs drawn from ``rng``."""
    sizes = fit(task, {name: rng.choice(PRIMES[2:7]) for name in task.sizes}, frozenset())
    if sizes is None:
        return False
    # Never the first indices alone: an element's number would be the same among those kept.
    keep = {name: sorted(rng.sample(range(1, sizes[name]), sizes[name] // 2)) for name in names if sizes[name] > 1}
    if len(keep) < len(names):
        return False
    graph = task.graph.at(**sizes)
    inputs = draw(graph, sizes, "normal", rng.randrange(2**32))
    try:
        with torch.no_grad():
            whole = reference.run(graph, inputs, "fp64", task.precision)
            part = reference.run(*restricted(graph, inputs, keep), "fp64", task.precision)
        pairs = [(part[name], taken(whole[name], graph.value(name).shape, keep)) for name in graph.outputs]
        return all(a.shape == b.shape and _equal(a, b) for a, b in pairs)
    except (NotSeparable, IndexError, RuntimeError, ValueError):  # a table without a row that an index names
        return False
