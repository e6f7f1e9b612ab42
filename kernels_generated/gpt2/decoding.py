"""What makes a token cost one token's work: keys and values that are kept, and on a GPU a step that is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from .config import GPTConfig


class KVCache:
    """Keys and values of the tokens so far: ``kv[layer]`` is [2, B, n_head, room, D].

    They begin as zeros, because what a kernel reads behind the last token counts with weight 0, and 0 · NaN is NaN.
    ``last`` [B, 1, 1, 1] is the place of the last token, on the device.
    """

    def __init__(self, config: GPTConfig, batch: int, room: int, like: torch.Tensor) -> None:
        shape = (config.n_layer, 2, batch, config.n_head, room, config.n_embd // config.n_head)
        with torch.inference_mode(False):  # which may end before the text does, and what it made can't be written then
            self.kv = torch.zeros(shape, dtype=like.dtype, device=like.device)
            self.last = torch.full((batch, 1, 1, 1), -1, dtype=torch.int64, device=like.device)


class RecordedStep:
    """``step`` as a CUDA graph: what it launches is recorded once, and launched as a whole from then on.

    It gives the same tensor each time, so what was in it is gone with the next call.  ``step`` must have been called
    before with tensors of these sizes: a kernel that has yet to be chosen and loaded can't be recorded.
    """

    _one_at_a_time = threading.Lock()

    def __init__(self, step: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor) -> None:
        with torch.inference_mode(False):
            self._argument = like.clone()
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(like.device)
        # what other threads do meanwhile is none of its business
        with self._one_at_a_time, torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._result = step(self._argument)

    def __call__(self, argument: torch.Tensor) -> torch.Tensor:
        self._argument.copy_(argument)
        self._graph.replay()
        return self._result
