"""Tasks as PyTorch: the texts, and that they mean what the reference means."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from snf_strategies import network_texts, texts, values
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels_generated.runtime.expr import evaluate, holds
from knowledge_base.snf import decompose, everyday, load_target, parse, reference, targets
from knowledge_base.snf.builder import Builder
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.graph import FLOATS
from knowledge_base.snf.op_table import OPS, fill
from knowledge_base.snf.parser import parse_noted
from knowledge_base.snf.task import Task
from knowledge_base.snf.torch_text import torch_text

# Attention in one call keeps the scores in float32, or adds in another order: what the difference is to the result.
OF_ATTENTION = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5, torch.float64: 1e-12}


def function(task: Task) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(torch_text(task), names)
    made: Callable[..., Any] = names[task.name]
    return made


def outputs(task: Task, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    made = function(task)(*(inputs[t.name] for t in task.inputs), *(task.sizes[d] for d in task.untold_sizes))
    return made if isinstance(made, tuple) else (made,)


def compare(task: Task, seed: int = 0) -> None:
    """To the bit, dtypes and shapes; attention as near as its dtype has it.  Whether tf32 is used, PyTorch is told."""
    inputs: dict[str, Any] = values(task.graph, seed)
    kept = {name: value.clone() for name, value in inputs.items()}
    expected = reference.run(task.graph, inputs, "eager", "ieee")
    text = torch_text(task)
    for made, name in zip(outputs(task, inputs), task.graph.outputs, strict=True):
        right = expected[name]
        assert (made.dtype, made.shape) == (right.dtype, right.shape), text
        if "scaled_dot_product" in text:
            assert torch.dist(made.double(), right.double()) <= OF_ATTENTION[right.dtype] * (right.double().norm() + 1)
        else:
            assert torch.equal(made.nan_to_num(7) if made.is_floating_point() else made,
                               right.nan_to_num(7) if right.is_floating_point() else right), text  # fmt: skip
    assert all(torch.equal(kept[name].nan_to_num(), inputs[name].nan_to_num()) for name in kept)


def small(task: Task, seed: int) -> Task:
    """The task at small sizes that it is for."""
    draw = random.Random(seed)
    while True:
        sizes = {d: draw.choice((2, 3, 4, 5, 6, 8, 12)) for d in task.sizes}
        if all(holds(how, evaluate(left, sizes), evaluate(right, sizes)) for how, left, right in task.constraints):
            return task.at(**sizes)


@cache
def shipped() -> dict[str, Task]:
    """Everyday tasks in all dtypes, and those of the shipped targets by both plans."""
    found = {f"{name}-{dtype}": everyday(name, dtype) for name in NAMES for dtype in FLOATS}
    for name, _ in targets():
        graph = load_target(name).graph
        for plan in ("v1", "v2"):
            found |= {task.identity: task for task in decompose(graph, plan).tasks}
    return found


def drawn(text: str) -> Task:
    return Task("drawn", "", parse(text, "drawn"))


# ---------------------------------------------------------------------------------------------------- texts


def test_the_text_of_a_linear_with_gelu() -> None:
    assert (
        torch_text(everyday("linear_gelu"))
        == '''"""linear_gelu in PyTorch: what its kernels compute.

x[M, K], w[N, K], b[N] -> y[M, N].
"""

import torch
import torch.nn.functional as F


def linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    linear = F.linear(x, w, b)
    return F.gelu(linear, approximate="tanh")
'''
    )


def test_the_text_of_attention() -> None:
    assert (
        torch_text(everyday("attention"))
        == '''"""attention in PyTorch: what its kernels compute.

qkv[B, T, 3, H, D] -> y[B, T, H, D].
"""

import math

import torch
import torch.nn.functional as F


def attention(qkv: torch.Tensor) -> torch.Tensor:
    D = qkv.shape[4]
    select = qkv.select(2, 0)
    permute = select.permute(0, 2, 1, 3)
    select_2 = qkv.select(2, 1)
    permute_2 = select_2.permute(0, 2, 1, 3)
    select_3 = qkv.select(2, 2)
    permute_3 = select_3.permute(0, 2, 1, 3)
    matmul_2 = F.scaled_dot_product_attention(permute, permute_2, permute_3, is_causal=True, scale=1 / math.sqrt(D))
    return matmul_2.permute(0, 2, 1, 3)
'''
    )


def body(task: Task) -> list[str]:
    return [line.strip() for line in torch_text(task).split(":\n    ")[-1].splitlines()]


def test_sizes_are_read_off_shapes_or_given() -> None:
    b = Builder()
    x = b.input("x", "f32", (("+", "S", "T"), 2))
    y = b.input("y", "f32", ("T", ("*", "T", "D")))
    more = [b.node("mul", [b.node("sum", [v]), b.node("sqrt", [b.dim(d)])]) for v, d in ((x, "S"), (y, "D"))]
    out = b.node("concat", [*more, b.node("cast", [b.node("iota", [], n="N")], dtype="f32")], axis=-1)
    task = Task("told", "", b.graph({"S": 3, "T": 5, "D": 4, "N": 2}, [out.name]))
    assert task.untold_sizes == ("N",)
    assert body(task)[:3] == ["T = y.shape[0]", "S = x.shape[0] - T", "D = y.shape[1] // T"]
    compare(task)
    compare(task.at(S=1, N=7))
    b = Builder()
    root = b.node("sqrt", [b.dim(("*", 2, "A"))])
    quotient = b.node("div", [b.input("x", "bf16", ("N",)), root])
    task = Task("given", "", b.graph({"N": 3, "A": 5}, [quotient.name]))
    assert task.untold_sizes == task.size_arguments == ("A",)
    assert body(task) == ["return x / math.sqrt(2 * A)"]
    compare(task)


def test_names_collide_with_nothing() -> None:
    b = Builder()
    args = [b.input(name, "f32", ("F", "if")) for name in ("torch", "F_", "lambda", "θ.w")]
    total = b.node("max", [b.node("concat", args, "F_2", axis=-1)], "max")
    task = Task("names", "", b.graph({"F": 3, "if": 4}, [b.node("mul", [total, b.dim("F")], "math").name]))
    assert torch_text(task).splitlines()[-5:] == [
        "def names(torch_: torch.Tensor, F_: torch.Tensor, lambda_: torch.Tensor, θ_w: torch.Tensor) -> torch.Tensor:",
        "    F_2 = torch_.shape[0]",
        "    F_2_ = torch.cat([torch_, F_, lambda_, θ_w], dim=-1)",
        "    max_ = F_2_.amax(dim=-1, keepdim=False)",
        "    return max_ * F_2",
    ]
    compare(task)


# ---------------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("seed", [1, 2])
def test_what_ships_means_what_the_reference_means(seed: int) -> None:
    for task in shipped().values():
        compare(small(task, seed))


def test_a_text_takes_float32_for_a_backward_pass() -> None:
    for task in shipped().values():
        task = small(task, 3)
        inputs: dict[str, Any] = values(task.graph)
        wide = {n: v.float().requires_grad_() if v.is_floating_point() else v for n, v in inputs.items()}
        made = outputs(task, wide)
        exact = reference.run(task.graph, inputs)
        for one, name in zip(made, task.graph.outputs, strict=True):
            assert one.dtype == (torch.float32 if exact[name].is_floating_point() else exact[name].dtype)
            torch.testing.assert_close(one.double(), exact[name].double(), rtol=1e-3, atol=1e-4)
        if not any(one.requires_grad for one in made):  # a comparison of numbers
            continue
        sum(one.sum() for one in made).backward()  # type: ignore[union-attr]
        assert all(v.grad is not None and v.grad.isfinite().all() for v in wide.values() if v.requires_grad), task.name


def test_a_text_is_traced_without_values() -> None:
    for task in shipped().values():
        task = small(task, 4)
        expected = reference.run(task.graph, values(task.graph), "eager")
        with FakeTensorMode() as fake:
            inputs = {n: fake.from_tensor(v) for n, v in values(task.graph).items()}  # type: ignore[arg-type]
            made = outputs(task, inputs)
        assert [(one.shape, one.dtype) for one in made] == [(v.shape, v.dtype) for v in expected.values()]


@pytest.mark.parametrize("name", ["attention", "grouped", "embedding"])
def test_a_text_compiles_whole_for_all_sizes(name: str) -> None:
    grouped = GROUPED + "y = Softmax(q @ k.T / sqrt(D) + Mask_Causal) @ v"
    task = Task("grouped", "", parse(grouped)) if name == "grouped" else everyday(name, "f32")
    with torch.device("cpu"):  # as the bench does
        compiled = torch.compile(function(task), backend="eager", fullgraph=True, dynamic=True)
        for seed in (5, 6):
            inputs = values(small(task, seed).graph).values()
            torch.testing.assert_close(compiled(*inputs), function(task)(*inputs))


OF_OPS = [
    "x + w", "x - w", "2 * x", "x / w", "2 / (x + 9)", "x ** 3", "2.0 ** x", "x ** (0 - 1)", "-x", "0.5 - x",
    "Minimum(x, w)", "Maximum(0.1, x)", "Maximum(j, 2)", "Maximum(j, 0.3)", "Where(x < w, x, 0.1)",
    "Where(x <= 0, 1, T)", "Where(j > 2, j, 7)", "Where(x >= s, s, x)", "Where(x == x, w, x)",
    "Where(x != w, 2*T, 0.3)", "Maximum(k, j)", "k * Sum(Sum(j))",
    "abs(x)", "exp(x)", "log(abs(x))", "sqrt(abs(x))", "rsqrt(square(x))", "tanh(x)", "erf(x)", "sigmoid(x)", "GELU(x)",
    'GELU(x, approximate="none")', "SiLU(x)", "ReLU(x)", "Sum(x)", "Sum(j)", "Mean(x, axis=-2, keepdims=True)",
    "Mean(j)", "Max(x)", "Max(j)", "Var(x)", "Softmax(x)", "LayerNorm(x, w, w)", "RMSNorm(x, w, eps=1e-6)",
    "LayerNorm(x, s, s)", "RMSNorm(s, w)", "Linear(x, x)", "Linear(x, Cast(x, f32), Sum(x))", "Linear(Cast(x, f32), x)",
    "Linear(x, Cast(x, f16))", "x.T @ x", "x.T @ Cast(x, f32)", "x.reshape(2, -1)", "x.split(3)[1] * 1", "Heads(x, 3)",
    "Merge(Heads(x, 3))", "Permute(Heads(x, 3), 1, 2, 0)", "Select(x, 0, 2)", "Concat(x, w * x, axis=0)",
    "Concat(x, Cast(x, f32))", "Concat(x, j)", "Gather(x, i)", "Gather(w, k)", "Range(T) * 0.5 + w", "Range(T) - 3",
    "RoPE(x, w, w)", "RoPE(x, s, s)", "x + Mask_Causal", "x * sqrt(T) / C", "x * (1 / sqrt(T) + T ** 0.5)",
    "x - (0 - 1e-7)", "x + (T + 1) // 4", "Cast(x, f16) + w", "x + j", "w * Range(T) + s", "j + k", "j * k / 3",
    "j < 2.5", "x * Sum(s)", "s * Sum(w)", "x + Sum(s) * Sum(w)", "Cast(j, f64) * 0.1", "Cast(x > 0, f32) * 2",
    "x * exp(0.5) * log(3.0)", "x * GELU(1.5) * SiLU(0.5)", 'x * GELU(1.5, approximate="none")', "Cast(x, f64) * w",
    "x * Minimum(T, 2.5) * rsqrt(T + 1.0)", "Maximum(x, -inf) + Minimum(x, inf)",
]  # fmt: skip
HEAD = "C, T = 4, 6\nx: {0}[C, T]\nw: {0}[T]\ns: f32[T]\ni: i64[3]\nk: i32[T]\nj: i64[C, T]\ny = {1}"


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_op_means_what_the_reference_means(dtype: str) -> None:
    seen = {"neg"}
    for text in OF_OPS:
        task = drawn(HEAD.format(dtype, text))
        seen |= {node.op for node in task.graph.nodes}
        compare(task)
        compare(Task("sized", "", parse_noted(HEAD.format(dtype, text), "sized", {"C": 8, "T": 12}).graph), seed=1)
    assert seen >= set(OPS)


def test_mixed_dtypes_agree_under_arguments_of_another() -> None:
    for text in OF_OPS:
        task = drawn(HEAD.format("bf16", text))
        inputs: dict[str, Any] = values(task.graph)
        for dtype in (torch.float16, torch.float32, torch.float64):
            made = outputs(task, {n: v.to(dtype) if v.is_floating_point() else v for n, v in inputs.items()})
            assert made[0].shape == outputs(task, inputs)[0].shape


@settings(max_examples=60, deadline=None)
@given(texts(20))
def test_what_users_write_means_what_the_reference_means(text: str) -> None:
    compare(drawn(text))


@settings(max_examples=25, deadline=None)
@given(network_texts(12))
def test_networks_mean_what_the_reference_means(text: str) -> None:
    graph = parse(text, "drawn")
    for call in decompose(graph, "v2").calls:
        compare(call.task)


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.kind == "elementwise"])
def test_ops_of_numbers_are_those_of_tensors(op: str) -> None:
    spec = OPS[op]
    if spec.dtype in ("bool", "attr", "branches"):
        return  # these make no numbers
    for attrs in [{"approximate": "none"}, {"approximate": "tanh"}] if op == "gelu" else [{}]:
        for numbers in ((0.3, 2.5), (1.7, 0.4), (2.0, 3.0)):
            args = [repr(n) for n in numbers[: spec.arity[0]]]
            text = fill(spec.of_numbers(attrs), args, {})
            tensors = [torch.tensor(n, dtype=torch.float64) for n in numbers[: spec.arity[0]]]
            assert eval(text, {"math": math}) == pytest.approx(spec.run(tensors, attrs).item(), rel=1e-15)


# ---------------------------------------------------------------------------------------------------- attention

HEADS = "B, H, T, S, D = 1, 2, 8, {s}, 16\nq: f32[B, H, T, D]\nk: f32[B, H, S, D]\nv: f32[B, H, S, D]\n"
GROUPED = "B, K, R, T, D = 2, 2, 3, 10, 16\nq: f32[B, K, R, T, D]\nk: f32[B, K, 1, T, D]\nv: f32[B, K, 1, T, D]\n"


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (HEADS.format(s=12) + "y = Softmax(q @ k.T * 0.25) @ v", "q, k, v, scale=0.25"),
        (HEADS.format(s=12) + "y = Softmax(q @ k.T) @ v", "q, k, v, scale=1.0"),
        (HEADS.format(s=12) + "y = Softmax(3 * (q @ k.T)) @ v", "q, k, v, scale=3"),
        (HEADS.format(s=8) + "y = Softmax(3 * (q @ k.T) / D) @ v", "q, k, v, scale=3 / D"),
        (HEADS.format(s=8).replace("S", "T") + "y = Softmax(q @ k.T / (D + 1) + Mask_Causal) @ v",
         "q, k, v, is_causal=True, scale=1 / (D + 1)"),
        (GROUPED + "y = Softmax(q @ k.T / sqrt(D) + Mask_Causal) @ v",
         "q.flatten(1, 2), k.squeeze(2), v.squeeze(2), is_causal=True, scale=1 / math.sqrt(D), enable_gqa=True"),
        ("M, T, S, D = 3, 4, 5, 6\nq: f32[M, T, D]\nk: f32[M, D, S]\nv: f32[M, S, D]\ny = Softmax(q @ k) @ v",
         "q, k.transpose(-2, -1), v, scale=1.0"),
        ("T, D = 4, 6\nq: f32[T, D]\nk: f32[T, D]\ny = Softmax(q @ Cast(k, f32).T) @ k",
         "q.to(dtype), cast.to(dtype), k.to(dtype), scale=1.0"),
    ],
)  # fmt: skip
def test_attention_is_one_call_however_it_is_spelled(text: str, call: str) -> None:
    task = drawn(text.replace("B, H, T, T, D = 1, 2, 8, 8, 16", "B, H, T, D = 1, 2, 8, 16"))
    said = " ".join(body(task)).replace("( ", "(").replace(" )", ")")
    assert f"F.scaled_dot_product_attention({call})" in said.replace("y_2", "cast").replace("y_3", "cast")
    assert "softmax" not in said.replace("y", "")
    compare(task)


@pytest.mark.parametrize(
    "text",
    [
        HEADS.format(s=8) + "a = q @ k.T\ny = Softmax(a + Mask_Causal(a)) @ v",  # square at these sizes alone
        HEADS.format(s=12) + "a = q @ k.T\np = Softmax(a)\ny = p @ v\noutputs = y, p",
        HEADS.format(s=12) + "a = q @ k.T\ny = Softmax(a + a) @ v",
        HEADS.format(s=12) + "a = q @ k.T\ny = Softmax(2.0 / a) @ v",
        HEADS.format(s=12) + "o: f32[1, S]\na = q @ k.T\ny = Softmax(a + Mask_Causal(o)) @ v",  # the mask of one row
        HEADS.format(s=12).replace("v: f32", "v: bf16") + "y = Softmax(q @ k.T) @ v",
        "T, D = 4, 6\nq: f32[2, T, D]\nk: f32[T, D]\nv: f32[T, D]\ny = Softmax(q @ k.T) @ v",
    ],
)
def test_what_only_looks_like_attention_is_spelled_out(text: str) -> None:
    task = drawn(text)
    assert "scaled_dot_product" not in torch_text(task)
    compare(task)


# ---------------------------------------------------------------------------------------------------- layout


def test_texts_are_formatted_and_the_same_each_time(tmp_path: Path) -> None:
    tasks = [*shipped().values(), *(drawn(HEAD.format("bf16", text)) for text in OF_OPS)]
    b = Builder()
    many = [b.input(f"an_input_number_{i}", "f32", ("M", "N")) for i in range(20)]
    half = [b.input(f"half_of_it_number_{i}", "bf16", ("M", "N")) for i in range(2)]
    joined = b.node("concat", [*many, *half], axis=-1)
    turned = b.node("rope", [half[0], b.node("neg", [many[0]], "the_cosine"), b.node("neg", [many[1]], "the_sine")])
    tasks.append(Task("long", "", b.graph({"M": 3, "N": 4}, [joined.name, turned.name])))
    compare(tasks[-1])
    written = "\n\n".join(map(torch_text, tasks))
    assert max(map(len, written.splitlines())) <= 120
    assert written == "\n\n".join(map(torch_text, tasks))
    file = tmp_path / "texts.py"
    file.write_text(written, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=120", "--diff", file],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
