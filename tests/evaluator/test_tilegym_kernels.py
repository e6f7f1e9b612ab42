"""TileGym's kernels, unchanged from the installed package, run by the emulator on CPU tensors and agree with PyTorch.

The package's own host functions run too: only ``ct.launch``, the tuner and the questions to the GPU's driver are
answered here (as by an sm_120 chip with four multiprocessors, whose configurations have the smallest tiles). Every
launch is watched by the sanitizer, and runs with two different fills of undetermined padding.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

ct = pytest.importorskip("cuda.tile")
pytest.importorskip("tilegym")
logging.getLogger("tilegym").setLevel(logging.ERROR)
from tilegym.backend.dispatcher import _REGISTRY  # noqa: E402
from tilegym.ops import cutile as _loaded  # noqa: E402, F401

from evaluator import emulator  # noqa: E402
from evaluator.baselines import BASELINES  # noqa: E402
from evaluator.judging import computed, question  # noqa: E402
from evaluator.replay.stopwatch import check_right  # noqa: E402
from evaluator.tileir.sanitizer import Sanitizer  # noqa: E402
from knowledge_base.snf import parse  # noqa: E402
from knowledge_base.snf.everyday import everyday  # noqa: E402
from knowledge_base.snf.task import Task  # noqa: E402

FILLS = (5.0, -48.0)  # finite: honest attention kernels multiply padding by zero


class Gym:
    """TileGym's operators on the emulator, and what the sanitizer found."""

    def __init__(self) -> None:
        self.findings: list[Any] = []
        self.kernels: set[str] = set()
        self.padding = 0.0

    def launch(self, stream: Any, grid: Any, kernel: Any, args: Any, **_: Any) -> None:
        report = emulator.launch(grid, kernel, args, sanitizer=Sanitizer(), padding_fill=self.padding)
        self.findings += report.findings
        self.kernels.add(kernel._annotated_function.pyfunc.__name__)

    def agree(self, operator: str, run: Callable[[Callable[..., Any]], Any], exact: torch.Tensor, ulps: float) -> None:
        """``run`` of the operator equals ``exact`` (float64) within ``ulps`` ulps of its largest element's size, twice.

        TileGym's own tolerances are wider. The sum of products behind an element cancels, hence the common scale.
        """
        function = _REGISTRY[operator]["cutile"]
        results = []
        for self.padding in FILLS:
            with torch.no_grad():
                results.append(run(function))
        first, second = results
        assert torch.equal(first, second), f"{operator}: the result depends on undetermined padding"
        error = (first.double() - exact).abs().max().item()
        allowed = ulps * torch.finfo(first.dtype).eps * exact.abs().max().item()
        assert error <= allowed, f"{operator}: error {error:.3g}, allowed {allowed:.3g}"
        assert self.kernels, f"{operator} launched nothing"
        assert self.findings == [], f"{operator}: {self.findings}"


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> Gym:
    gym = Gym()
    monkeypatch.setenv("TILEGYM_DISABLE_AUTOTUNE", "1")
    monkeypatch.setattr(ct, "launch", gym.launch)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device=None, **options: empty(*size, **options))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (12, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=4))

    def first_configuration(configs: Any, *_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(best=SimpleNamespace(config=next(iter(configs))))

    for name, module in list(sys.modules.items()):
        if name.startswith("tilegym.") and hasattr(module, "exhaustive_search"):
            monkeypatch.setattr(module, "exhaustive_search", first_configuration)
    return gym


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matmul(gym: Gym, dtype: torch.dtype) -> None:
    a, b = normal(200, 100, dtype=dtype), normal(100, 136, dtype=dtype, seed=1)
    gym.agree("matmul", lambda f: f(a, b), a.double() @ b.double(), 1)
    assert gym.kernels == {"_matmul_kernel"}


def test_matmul_of_float32_multiplies_in_tf32(gym: Gym) -> None:
    a, b = normal(130, 70), normal(70, 66, seed=1)
    # tf32 keeps 10 of 23 fraction bits
    gym.agree("matmul", lambda f: f(a, b), a.double() @ b.double(), 2**13)


@pytest.mark.parametrize("transpose", [False, True])
def test_persistent_matmul(gym: Gym, transpose: bool) -> None:
    a, b = normal(200, 100, dtype=torch.float16), normal(100, 136, dtype=torch.float16, seed=1)
    left, right = (a.T.contiguous(), b.T.contiguous()) if transpose else (a, b)
    gym.agree(
        "matmul",
        lambda f: f(left, right, trans_a=transpose, trans_b=transpose, static_persistent=True),
        a.double() @ b.double(),
        1,
    )
    assert gym.kernels == {"_static_persistent_matmul_kernel"}


@pytest.mark.parametrize(
    ("causal", "queries", "keys", "group"),
    # a causal mask of unequal lengths is aligned otherwise than PyTorch's
    [(True, 128, 128, 1), (True, 100, 100, 2), (False, 128, 128, 2), (False, 70, 150, 1)],
)
def test_attention(gym: Gym, causal: bool, queries: int, keys: int, group: int) -> None:
    q = normal(1, 4, queries, 64, dtype=torch.float16)
    k, v = (normal(1, 4 // group, keys, 64, dtype=torch.float16, seed=s) for s in (1, 2))
    wide = [x.double().repeat_interleave(4 // x.shape[1], dim=1) for x in (q, k, v)]
    exact = F.scaled_dot_product_attention(*wide, is_causal=causal)
    gym.agree("fmha", lambda f: f(q, k, v, is_causal=causal), exact, 2)


@pytest.mark.parametrize("mode", ["static_persistent", "multi_wave_reload", "multi_wave_cached"])
def test_rms_norm(gym: Gym, mode: str) -> None:
    x, weight = normal(37, 200, dtype=torch.float16), normal(200, dtype=torch.float16, seed=1)
    exact = F.rms_norm(x.double(), (200,), weight.double(), 1e-5)
    gym.agree("rms_norm", lambda f: f(x, (200,), weight, 1e-5, mode=mode), exact, 2)


def test_layer_norm(gym: Gym) -> None:
    x = normal(37, 200, dtype=torch.float16) + 3
    weight, bias = normal(200, dtype=torch.float16, seed=1), normal(200, dtype=torch.float16, seed=2)
    exact = F.layer_norm(x.double(), (200,), weight.double(), bias.double(), 1e-5)
    gym.agree("layer_norm", lambda f: f(x, 1, 2, weight, bias, 1e-5), exact, 2)
    gym.agree("layer_norm_legacy", lambda f: f(x, (200,), weight, bias, 1e-5), exact, 2)


def test_persistent_layer_norm(gym: Gym) -> None:
    x = normal(64, 256, dtype=torch.bfloat16)
    weight, bias = normal(256, dtype=torch.bfloat16, seed=1), normal(256, dtype=torch.bfloat16, seed=2)
    exact = F.layer_norm(x.double(), (256,), weight.double(), bias.double(), 1e-5)
    gym.agree("persistent_layer_norm", lambda f: f(x, (256,), weight, bias, 1e-5)[0], exact, 2)


@pytest.mark.parametrize("variant", [{}, {"use_tma": True}, {"use_chunked": True}, {"use_multi_wave": True}], ids=str)
def test_softmax(gym: Gym, variant: dict[str, bool]) -> None:
    for columns in (200, 256):
        x = normal(37, columns) * 3
        gym.agree("softmax", lambda f, x=x: f(x, **variant), torch.softmax(x.double(), -1), 8)


def test_chunked_softmax_of_rows_longer_than_a_chunk(gym: Gym) -> None:
    x = normal(3, 9001) * 3
    gym.agree("softmax", lambda f: f(x, use_chunked=True), torch.softmax(x.double(), -1), 32)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rope(gym: Gym, fraction: float) -> None:
    q, k = normal(2, 4, 19, 64), normal(2, 2, 19, 64, seed=1)
    width = int(64 * fraction)
    angle = normal(1, 19, width // 2, seed=2).repeat(1, 1, 2)
    cos, sin = angle.cos(), angle.sin()

    def rotate(x: torch.Tensor) -> torch.Tensor:
        x = x.double()
        head, tail = x[..., :width], x[..., width:]
        half = torch.cat((-head[..., width // 2 :], head[..., : width // 2]), -1)
        return torch.cat((head * cos.double()[:, None] + half * sin.double()[:, None], tail), -1)

    def run(f: Callable[..., Any]) -> torch.Tensor:
        rotated = f(q.clone(), k.clone(), cos, sin, partial_rotary_factor=fraction)
        return torch.cat([x.reshape(-1) for x in rotated])

    gym.agree("apply_rope_base", run, torch.cat([rotate(q).reshape(-1), rotate(k).reshape(-1)]), 2)


def test_relu_and_gelu(gym: Gym) -> None:
    for dtype in (torch.float32, torch.float16):
        x = normal(5, 700, dtype=dtype)
        gym.agree("relu", lambda f, x=x: f(x), F.relu(x.double()), 0)
        # f16 arithmetic rounds after each of a dozen operations; "none" is the tanh form in TileGym, too
        exact = F.gelu(x.double(), approximate="tanh")
        for approximate in ("tanh", "none"):
            gym.agree("gelu", lambda f, x=x, a=approximate: f(x, approximate=a), exact, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_silu_and_mul_and_swiglu(gym: Gym, dtype: torch.dtype) -> None:
    a, b = normal(9, 300, dtype=dtype), normal(9, 300, dtype=dtype, seed=1)
    exact = F.silu(a.double()) * b.double()
    gym.agree("silu_and_mul", lambda f: f(torch.cat((a, b), -1)), exact, 4)
    gym.agree("get_swiglu", lambda f: f()(a, b), exact, 4)


# ---------------------------------------------------------------------------------------------------- as a baseline


def written(name: str, text: str) -> Task:
    return Task(name, "", parse(text, name))


@pytest.mark.parametrize(
    "task",
    [
        everyday("layernorm", M=37, N=64),
        everyday("softmax", M=37, N=64),
        everyday("gelu", M=5, N=64),
        everyday("attention_qkv", B=1, H=2, T=40, D=64),
        Task(
            "linear", "", parse("M, N, K = 40, 48, 64\nx: bf16[M, K]\nw: weight.bf16[N, K]\ny = Linear(x, w)", "linear")
        ),
        Task("rmsnorm", "", parse("M, N = 37, 64\nx: bf16[M, N]\nw: weight.bf16[N]\ny = RMSNorm(x, w)", "rmsnorm")),
    ],
    ids=lambda task: task.name,
)
def test_as_a_baseline_it_computes_the_task(gym: Gym, task: Task) -> None:
    function = BASELINES["TileGym"](task, torch.device("cpu"))
    assert function is not None
    answer = computed(question(task, task.sizes, "normal", 1))
    with torch.no_grad():
        made = function(*(answer.inputs[t.name] for t in task.inputs))
    check_right(task, [answer], [made])
    assert gym.kernels
    assert gym.findings == []
