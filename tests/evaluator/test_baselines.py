"""Baselines: each computes what the task says, or says why it does not."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from device_double import CHIP, DeviceDouble, traced

from evaluator.baselines import BASELINES, libraries, torch_program
from evaluator.baselines.torch_program import ATTENTION, TorchProgram, linear_gelu
from evaluator.judging import Rejected, question
from evaluator.replay import OURS, Composition, bench, contestants
from evaluator.replay.bench import NearOracle
from evaluator.replay.stopwatch import SETS
from knowledge_base.snf import load_target, parse
from knowledge_base.snf.attention_idiom import attention
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

CPU = torch.device("cpu")

BLOCK = load_target("gpt2-block", {"B": 2, "T": 24, "D_h": 16, "H": 2}).graph
GROUPED = """
B, K, R, T, D = 2, 2, 3, 10, 16
q: bf16[B, K, R, T, D]
k: bf16[B, K, 1, T, D]
v: bf16[B, K, 1, T, D]
a = (q @ k.T) / sqrt(D)
y = Softmax(a + Mask_Causal(a)) @ v
"""
TASKS = {
    "gelu": everyday("gelu", M=33, N=48),
    "layernorm": everyday("layernorm", M=33, N=48),
    "softmax": everyday("softmax", M=33, N=48),
    "linear": everyday("linear", M=33, N=48, K=64),
    "linear_gelu": everyday("linear_gelu", M=33, N=48, K=64),
    "attention": everyday("attention", B=2, T=24, H=2, D=16),
    "attention_qkv": everyday("attention_qkv", B=2, T=24, H=2, D=16),
    "embedding": everyday("embedding", B=2, T=8, V=50, P=16, C=32),
    "grouped": Task("grouped", "", parse(GROUPED, "grouped")),
    "block": Task("block", "", BLOCK),
}  # fmt: skip


def answers(task: Task, device: DeviceDouble) -> list[Any]:
    sets = [question(task, task.sizes, "normal", seed) for seed in range(SETS)]
    return list(NearOracle(device.place).expect_all(sets))


def made(name: str, task: Task) -> Any:
    device = DeviceDouble({}, {})
    with torch.device(device.place):  # as the bench does
        return contestants.baseline(name, device, task, answers(task, device))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_eager_is_right(task: Task) -> None:
    assert isinstance(made("eager", task), contestants.Called)


@pytest.mark.parametrize("task", ["gelu", "linear_gelu", "grouped", "block"])
def test_compiled_is_right(task: str) -> None:
    assert isinstance(made("compile", TASKS[task]), contestants.Called)


def in_two_pieces(program: TorchProgram, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    torch._dynamo.graph_break()
    return given


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_nothing_is_left_uncompiled(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that PyTorch cuts into pieces runs some of them uncompiled: it would be timed as compiled."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # quick
    assert isinstance(made("compile", task), contestants.Called)


def test_what_cannot_be_compiled_whole_is_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(TorchProgram, "run", in_two_pieces)
    assert str(made("compile", TASKS["gelu"])).startswith("fails: Unsupported")


def test_what_was_compiled_for_one_task_stays_when_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled again while a graph is recorded, it would break the recording; left uncompiled, it would be eager."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # quick
    functions = []
    for n in range(10):  # more than torch.compile makes of one code object
        task = everyday("gelu", M=8, N=32 + n)
        given = torch.ones(8, 32 + n, dtype=torch.bfloat16)
        function = BASELINES["compile"](task, CPU)
        assert function is not None
        before = counters["stats"]["unique_graphs"]
        function(given)
        assert counters["stats"]["unique_graphs"] == before + 1
        functions.append((function, given))
    before = counters["stats"]["unique_graphs"]
    for function, given in functions:
        function(given)
    assert counters["stats"]["unique_graphs"] == before


@pytest.mark.parametrize("task", ["linear_gelu"])
def test_the_vendors_calls_are_right(task: str) -> None:
    assert isinstance(made("vendor", TASKS[task]), contestants.Called)


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [
        ("vendor", "gelu", None),
        ("vendor", "block", "cudnn_attention wants a GPU"),
        ("vendor, compile", "linear_gelu", None),  # nothing is left to compile
        ("flash", "attention", "flash_attention wants a GPU"),
        ("flash", "linear", None),
        ("TileGym", "block", None),  # it has no linear with a bias
        ("CuPy", "linear", None),
        ("CuPy", "gelu", None),  # it has no bf16
        ("Liger", "layernorm", "not installed (liger_kernel)"),
        ("FlashInfer", "attention", "not installed (flashinfer)"),
    ],
)
def test_what_a_baseline_does_not_have_is_left_out_or_said(name: str, task: str, said: str | None) -> None:
    assert made(name, TASKS[task]) == said


# ---------------------------------------------------------------------------------------------------- idioms


@pytest.mark.parametrize(
    ("task", "idioms", "plain"), [("attention", 1, 0), ("attention_qkv", 1, 0), ("grouped", 1, 0), ("block", 2, 7)]
)
def test_attention_is_one_call_however_it_is_spelled(task: str, idioms: int, plain: int) -> None:
    found = TorchProgram(TASKS[task], [ATTENTION, linear_gelu])
    assert (found.idioms, found.plain) == (idioms, plain)


HEADS = "B, H, T, S, D = 1, 2, 8, {s}, 16\nq: bf16[B, H, T, D]\nk: bf16[B, H, S, D]\nv: bf16[B, H, S, D]\n"


@pytest.mark.parametrize(
    ("s", "body"),
    [
        (12, "a = q @ k.T\ny = Softmax(a + Mask_Causal(a)) @ v"),  # the last query sees the last key
        (8, "a = q @ k.T\np = Softmax(a)\ny = p @ v\noutputs = y, p"),  # the probabilities are asked for
        (8, "a = q @ k.T\ny = Softmax(a + a) @ v"),  # no mask
        (8, "a = q @ k.T\ny = Softmax(2.0 / a) @ v"),
        (8, "a = q @ k.T\np = Softmax(a)\ny = p @ v + 0.5 * p @ v"),
    ],
)
def test_what_only_looks_like_attention_stays_what_it_is(s: int, body: str) -> None:
    task = Task("looks", "", parse(HEADS.format(s=s) + body, "looks"))
    assert TorchProgram(task, [ATTENTION]).idioms == 0
    assert isinstance(made("eager", task), contestants.Called)


def test_scale_and_mask_are_the_graphs() -> None:
    body = "a = (q @ k.T) * 0.25\ny = Softmax(a) @ v"
    graph = parse(HEADS.format(s=12) + body, "cross")
    numbers = torch_program.Reading(Task("cross", "", graph)).numbers
    found = attention(graph, graph.nodes[-1], numbers)
    assert found is not None
    assert (found.scale(numbers), found.causal) == (0.25, False)


# ---------------------------------------------------------------------------------------------------- right, or no time


def test_a_baseline_that_is_not_right_or_changes_its_input_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["gelu"]

    def swap(function: Any) -> Any:
        monkeypatch.setitem(BASELINES, "eager", lambda task, place: function)
        return made("eager", task)

    said = swap(lambda x: (torch.nn.functional.relu(x),))
    assert said.startswith("not right: y[")
    said = swap(lambda x: (torch.nn.functional.gelu(x.clone(), approximate="tanh"), x.zero_())[:1])
    assert said == "not right: it changes x, which it may only read"
    said = swap(lambda x: 1 / 0)
    assert said == "fails: ZeroDivisionError: division by zero"


def test_ours_and_the_baselines_take_turns_and_what_is_lacking_is_said() -> None:
    task, one = traced("gelu_tiles")
    composition = Composition.of_task(task, one, dict(one.kernels))
    said = bench.compared(composition, CHIP, 1, 2, ("max-autotune", "compile"), bench.Bench(DeviceDouble({}, {})))
    assert set(said) >= {OURS, "eager"}
    assert not {"max-autotune", "compile", "vendor", "CuPy"} & set(said)
    assert all(len(said[name]) == 4 * SETS for name in (OURS, "eager"))


def test_ours_has_to_be_right() -> None:
    task, one = traced("gelu_tiles")
    composition = Composition.of_task(task, one, dict(one.kernels))
    with pytest.raises(Rejected, match="on the GPU: y"):
        bench.compared(composition, CHIP, 1, 1, tuple(BASELINES), bench.Bench(DeviceDouble({}, {"off": 0})))


# ---------------------------------------------------------------------------------------------------- libraries


@pytest.mark.parametrize("op", sorted(libraries.CUPY))
def test_cupys_expressions_mean_what_the_ops_mean(op: str) -> None:
    """The expressions are NumPy's as well: the libraries agree in these functions."""
    import numpy

    from knowledge_base.snf.op_table import OPS

    attrs: Mapping[str, Any] = dict(OPS[op].attrs)
    x = torch.linspace(0.1, 3.0, 50, dtype=torch.float64)
    given = [x, x.flip(0)][: OPS[op].arity[0]]
    expected = OPS[op].run(given, attrs)
    found = libraries.CUPY[op](numpy, [g.numpy() for g in given], attrs)
    assert torch.allclose(torch.from_numpy(numpy.asarray(found)), expected, rtol=1e-12), op


def test_cupy_is_for_elementwise_tasks_of_its_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert libraries.cupy(everyday("gelu", M=4, N=4), CPU) is None
    assert libraries.cupy(TASKS["layernorm"], CPU) is None
    body = "M, N = 4, 4\nx: f32[M, N]\ny = GELU(x)"
    task = Task("gelu32", "", parse(body, "gelu32"))
    monkeypatch.setitem(sys.modules, "cupy", None)  # not installed
    with pytest.raises(ImportError, match="cupy"):
        libraries.cupy(task, CPU)
    assert made("CuPy", task) == "not installed (cupy)"
