"""The operators on a card that their cubins are for: every kernel that ships, against PyTorch in float64."""

from __future__ import annotations

import threading

import pytest
import torch
from operator_arguments import KERNELS, OPERATORS, given, near, wide

from kernels_generated import ops
from kernels_generated.ops.gpu import gpu

pytestmark = pytest.mark.gpu

LARGER = {"M": 333, "N": 192, "K": 160, "B": 3, "T": 130, "H": 4, "D": 64, "N2": 8, "N3": 64, "N4": 64, "V": 300,
          "P": 200, "C": 192}  # fmt: skip
EVEN = {**LARGER, "M": 512, "N": 256, "K": 256, "T": 256, "P": 256, "C": 256}


@pytest.fixture(autouse=True)
def _here() -> None:
    card = gpu(0)
    if isinstance(card, str):
        pytest.skip(card)
    if card.arch != "sm_90":
        pytest.skip(f"the cubins that ship are for sm_90, this is {card.arch}")


@pytest.mark.parametrize("sizes", [{}, LARGER, EVEN], ids=["small", "odd", "even"])
@pytest.mark.parametrize(("name", "dtype"), KERNELS)
@pytest.mark.filterwarnings("error::kernels_generated.ops.ThroughPyTorch")
def test_each_kernel(name: str, dtype: torch.dtype, sizes: dict[str, int]) -> None:
    if name.startswith("rope"):
        sizes = {**sizes, "M": 3}  # its grid has all heads on one axis, of which CUDA takes 65,535
    arguments = [one.cuda() for one in given(name, dtype, **sizes)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        found = getattr(ops, name)(*arguments)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert 1 <= len(kernels) <= 2, [event.name for event in kernels]  # our own, one of two plans has a fill
    near(found, OPERATORS[name].reference(*wide(arguments)))


def test_strides_streams_threads_and_graphs() -> None:
    x, w, b = (one.cuda() for one in given("linear_gelu", **EVEN))
    expected = ops.linear_gelu(x, w, b)
    room = torch.zeros(512, 512, dtype=x.dtype, device="cuda")
    room[:, 256:] = x
    assert torch.equal(ops.linear_gelu(room[:, 256:], w, b), expected)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.equal(ops.linear_gelu(x, w, b), expected)
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(ops.linear_gelu(x, w, b))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(one, expected) for one in found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = ops.linear_gelu(x, w, b)
    x.neg_()
    graph.replay()
    assert torch.equal(made, ops.linear_gelu(x, w, b))


def test_compiled_with_inductor() -> None:
    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ops.layernorm(ops.linear_gelu(x * 2, w, b), b, b) + 1

    x, w, b = (one.cuda().requires_grad_() for one in given("linear_gelu", **EVEN))
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(block, fullgraph=True, mode=mode)
        for _ in range(3):
            gradients = torch.autograd.grad(compiled(x, w, b).float().square().mean(), (x, w, b))
        expected = torch.autograd.grad(block(x, w, b).float().square().mean(), (x, w, b))
        for one, other in zip(gradients, expected, strict=True):
            assert (one - other).norm() <= 2**-6 * other.norm()
