"""What an operator costs beside its kernel: importing them, and a call whose kernel does nothing.

Prints JSON lines.  The driver that does nothing stands for the GPU's, so that what is measured is Python, the
dispatcher and the making of outputs; ``empty_us`` is what one output costs of it.  Where there is a GPU that kernels
ship for, a call of one that takes two µs there is measured as well, beside PyTorch's own operator; then the kernels of
every operator beside what PyTorch runs for the same task (reference.py beside the kernels).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from functools import partial

import torch

from kernels_generated import ops
from kernels_generated.ops.gpu import Gpu
from kernels_generated.ops.interface import FLOATS, size, torch_dtype
from kernels_generated.runtime import backend
from kernels_generated.runtime.driver import LoadedKernel

IMPORT = (
    "import torch, time; t = time.perf_counter(); from kernels_generated import ops; print(time.perf_counter() - t)"
)


class Idle:
    """A driver whose kernels do nothing, and take whatever they are given."""

    def load(self, cubin: bytes, symbol: str) -> LoadedKernel:
        return LoadedKernel(None, None, _Any())  # type: ignore[arg-type]

    def unload(self, kernel: LoadedKernel) -> None: ...

    def launch(self, kernel: LoadedKernel, grid: tuple[int, int, int], parameters: int, stream: int) -> None: ...

    def fill(self, address: int, element: bytes, count: int, stream: int) -> None: ...


class _Any(tuple):  # equal to whatever parameters the plan has
    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def us(call: Callable[[], object]) -> float:
    """µs of a call: the median of eleven rounds."""
    number = 2000
    return round(1e6 * statistics.median(timeit.repeat(call, number=number, repeat=11)) / number, 2)


def graph_us(call: Callable[[], object], calls: int = 20, rounds: int = 15) -> float:
    """µs of a call on the GPU: so many in a CUDA graph, one behind the other, so that what they read may stay in L2."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    took = []
    for _ in range(rounds):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        took.append(1e3 * before.elapsed_time(after) / calls)
    return statistics.median(took)


def beside_pytorch() -> None:
    """A line for each operator, dtype and shape that a winner was measured at: its time and PyTorch's."""
    for name, operator in ops.operators().items():
        for manifest in operator.manifests:
            for shape in {tuple(winner.shape.items()): winner.shape for winner in manifest.winners}.values():
                given = [
                    torch.randint(100, [size(n, shape) for n in t.shape], device="cuda")
                    if torch_dtype(t.dtype) not in FLOATS
                    else torch.randn([size(n, shape) for n in t.shape], device="cuda").to(torch_dtype(t.dtype))
                    for t in manifest.inputs
                ]
                ours, theirs = (graph_us(partial(f, *given)) for f in (operator.packet, operator.reference))
                figures = {
                    "operator": name, "dtype": manifest.outputs[0].dtype, "shape": dict(shape), "us": round(ours, 2),
                    "torch_us": round(theirs, 2), "torch/ours": round(theirs / ours, 3),
                }  # fmt: skip
                print(json.dumps(figures))


def main() -> None:
    imported = [float(subprocess.check_output([sys.executable, "-c", IMPORT], text=True)) for _ in range(5)]
    backend.install("cpu", Gpu(Idle(), "sm_90", 132, lambda: 0))
    x, w, b = torch.randn(8, 768).bfloat16(), torch.randn(3072, 768).bfloat16(), torch.randn(3072).bfloat16()
    operator = ops.operators()["linear_gelu"]
    key, one = (x, w, b), torch.ones(1, 1)
    ops.linear_gelu(*key)
    figures = {
        "benchmark": "operators",
        "import_ms": round(1e3 * statistics.median(imported), 1),
        "call_us": us(lambda: ops.linear_gelu(x, w, b)),
        "with_gradients_us": us(lambda: ops.linear_gelu(x.requires_grad_(), w, b)),
        "choose_us": us(lambda: operator.chosen(key)),
        "empty_us": us(lambda: torch.empty(8, 3072, dtype=torch.bfloat16)),
        "linear_us": us(lambda: torch.nn.functional.linear(one, one)),
    }
    if torch.cuda.is_available():
        z = torch.randn(16, 64, device="cuda").bfloat16()
        ops.gelu(z)
        figures |= {
            "device": torch.cuda.get_device_name(),
            "gpu_call_us": us(lambda: ops.gelu(z)),
            "gpu_torch_us": us(lambda: torch.nn.functional.gelu(z, approximate="tanh")),
        }
    print(json.dumps(figures))
    if torch.cuda.is_available():
        beside_pytorch()


if __name__ == "__main__":
    main()
