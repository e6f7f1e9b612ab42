"""An operator or what PyTorch does in its place: which is faster on a card, by running both there, in turns.

That a kernel was the fastest where it was found says little of other sizes and other cards, where PyTorch's own may be
several times as fast.  To run both takes less than a tenth of a second; what came out is remembered.
"""

from __future__ import annotations

import functools
import logging
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

CALLS = 8  # in a graph, so that a launch's time on the CPU does not count
TURNS = 7  # of each, the median counts
SLOWER = 1.02  # times as long as PyTorch's an operator may take and be taken: so much differs from day to day

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Race:
    """µs of a call, of both.  None where they could not be timed (there is no memory for that)."""

    ours: float | None
    theirs: float | None

    @property
    def won(self) -> bool:
        """Whether the operator is to be taken."""
        return self.ours is not None and self.theirs is not None and self.ours <= SLOWER * self.theirs


_raced: dict[Hashable, Race] = {}


def is_faster(
    name: Hashable, given: Sequence[torch.Tensor], ours: Callable[..., Any], theirs: Callable[..., Any]
) -> bool:
    """Whether an operator is to be taken in PyTorch's place.  Off a card it always is: kernels are emulated there.

    given: tensors without data; both are functions of such that lie like them.  What ``name`` names is timed once for
    tensors that lie alike.  Where sizes are symbols that stand for nothing yet, nothing is taken.
    """
    device = given[0].device
    if not is_raced(device):
        return True
    try:
        key = name, device.index, tuple((one.dtype, *_lies(one)) for one in given)
    except ValueError:
        return False
    if key not in _raced:
        _raced[key] = race(device, given, ours, theirs)
        _log.info("%s: %s", key, _raced[key])
    return _raced[key].won


def is_raced(device: torch.device) -> bool:
    return device.type == "cuda"


def race(
    device: torch.device, given: Sequence[torch.Tensor], ours: Callable[..., Any], theirs: Callable[..., Any]
) -> Race:
    """Times both on a card, on random numbers that lie as ``given`` does."""
    with torch.cuda.device(device), torch.no_grad():
        try:
            made = [like(one) for one in given]
            return Race(*_medians(functools.partial(ours, *made), functools.partial(theirs, *made)))
        except RuntimeError as error:  # of memory, mostly; what is wrong with either is said where it is called
            _log.info("not timed: %s", error)
            return Race(None, None)


def like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of random numbers that lies as one without data does; of a symbol counts what it stands for."""
    shape, strides = _lies(tensor)
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return torch.randn(max(1, span), dtype=tensor.dtype, device=tensor.device).as_strided(shape, strides)


def _lies(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Its shape and strides.  Raises ValueError where one is a symbol that stands for nothing yet."""
    return _numbers(tensor.shape), _numbers(tensor.stride())


def _numbers(sizes: Sequence[Any]) -> tuple[int, ...]:
    found = [n if isinstance(n, int) else n.node.hint for n in sizes]
    if not all(isinstance(n, int) for n in found):
        raise ValueError("a size is a symbol that stands for nothing yet")
    return tuple(found)


def _medians(*runs: Callable[[], Any]) -> list[float]:
    """µs of a call of each."""
    captured = [_captured(run) for run in runs]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(TURNS):
        for graph, of in zip(captured, times, strict=True):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            of.append(1000 * begin.elapsed_time(end) / CALLS)
    return [statistics.median(of) for of in times]


def _captured(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # kernels are loaded, and what PyTorch tries at first is done
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(CALLS):
            run()
    graph.replay()
    torch.cuda.synchronize()
    return graph
