"""What ops mean: the fp64 reference and the eager yardstick against torch written out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from snf_strategies import values

from knowledge_base.snf import everyday, parse, reference
from knowledge_base.snf.op_table import OPS
from knowledge_base.snf.reference import round_tf32

X = torch.linspace(-3, 3, 24, dtype=torch.float64).reshape(4, 6)
W = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)


def logistic(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-x))


MEANINGS = {
    "x + w": X + W,
    "x - w": X - W,
    "x * w": X * W,
    "x / w": X / W,
    "2 / (x + 9)": 2 / (X + 9),
    "1 - x": 1 - X,
    "x ** 3": X * X * X,
    "2.0 ** x": torch.exp(X * math.log(2)),
    "-x": 0 - X,
    "Minimum(x, w)": torch.where(X < W, X, W),
    "Maximum(x, 0.5)": torch.where(X > 0.5, X, 0.5),
    "Where(x < w, x, 0.0)": torch.where(X < W, X, 0.0),
    "Where(x == x, w, x)": W.expand(4, 6),
    "abs(x)": X.abs(),
    "exp(x)": math.e**X,
    "log(abs(x))": X.abs().log(),
    "sqrt(abs(x))": X.abs() ** 0.5,
    "rsqrt(square(x))": 1 / X.abs(),
    "tanh(x)": (torch.exp(2 * X) - 1) / (torch.exp(2 * X) + 1),
    "erf(x)": 2 * torch.distributions.Normal(0, 1).cdf(X * math.sqrt(2)) - 1,
    "sigmoid(x)": logistic(X),
    "GELU(x)": 0.5 * X * (1 + torch.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))),
    'GELU(x, approximate="none")': X * torch.distributions.Normal(0, 1).cdf(X),
    "SiLU(x)": X * logistic(X),
    "ReLU(x)": torch.where(X > 0, X, 0.0),
    "square(x)": X * X,
    "Sum(x)": X @ torch.ones(6, dtype=torch.float64),
    "Sum(x, axis=0)": torch.ones(4, dtype=torch.float64) @ X,
    "Mean(x, axis=-1, keepdims=True)": (X @ torch.ones(6, dtype=torch.float64) / 6)[:, None],
    "Max(x, 0)": X[3],
    "Var(x)": torch.stack([sum((v - row.mean()) ** 2 for v in row) / 6 for row in X]),  # population variance
    "Softmax(x)": torch.exp(X) / torch.exp(X).sum(-1, keepdim=True),
    "LayerNorm(x, w, w)": (X - X.mean(-1, True)) / (X.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * W + W,
    "RMSNorm(x, w, eps=0.5)": X / ((X * X).mean(-1, True) + 0.5).sqrt() * W,
    "Linear(x, x)": X @ X.T,
    "Linear(x, x, Sum(x))": X @ X.T + X.sum(-1),
    "x.T @ x": torch.einsum("ki,kj->ij", X, X),
    "x.reshape(2, -1)": torch.stack([X[:2].flatten(), X[2:].flatten()]),
    "x.split(3)[1] * 1": X[:, 2:4],
    "Heads(x, 3)": torch.stack([X[:, :2], X[:, 2:4], X[:, 4:]]),
    "Merge(Heads(x, 3))": X,
    "Permute(Heads(x, 3), 1, 2, 0)": torch.stack([X[:, :2], X[:, 2:4], X[:, 4:]]).permute(1, 2, 0),
    "Select(x, 0, 2) * 1": X[2],
    "Concat(x, w * x, axis=0)": torch.cat([X, W * X]),
    "Gather(x, i)": X[torch.tensor([2, 0, 3])],
    "Range(T) * 0.5 + w": torch.arange(6, dtype=torch.float64) * 0.5 + W,
    "RoPE(x, w, w)": X * W + torch.cat([-X[:, 3:], X[:, :3]], -1) * W,
    "(x @ x.T) + Mask_Causal": X @ X.T + torch.triu(torch.full((4, 4), -math.inf), 1),
    "x + Mask_Causal": X + torch.tensor([[-math.inf if c > r + 2 else 0.0 for c in range(6)] for r in range(4)]),
    "x * sqrt(T) / C": X * math.sqrt(6) / 4,
    "Cast(x, bf16) + w": X + W,  # arithmetic is real: a cast says how a value would be stored
}


@pytest.mark.parametrize("text", list(MEANINGS))
def test_each_op_means_what_it_says(text: str) -> None:
    graph = parse(f"C, T = 4, 6\nx: f64[C, T]\nw: f64[T]\ni: i64[3]\ny = {text}")
    inputs = {"x": X, "w": W, "i": torch.tensor([2, 0, 3])}
    made = reference.run(graph, {t.name: inputs[t.name] for t in graph.inputs})[graph.outputs[0]]
    torch.testing.assert_close(made, MEANINGS[text].to(torch.float64), rtol=1e-12, atol=1e-12)


def test_every_op_of_the_table_has_a_meaning_tested_here() -> None:
    seen = {"split", "neg"}
    for text in MEANINGS:
        graph = parse(f"C, T = 4, 6\nx: f64[C, T]\nw: f64[T]\ni: i64[3]\ny = {text}")
        seen |= {n.op for n in graph.nodes}
    compared = {"lt", "le", "gt", "ge", "eq", "ne"}
    assert set(OPS) - seen - compared == set()


def test_comparisons_are_numpys() -> None:
    graph = parse(
        "N = 3\na: f32[N]\nb: f32[N]\nc = a < b\nd = a <= b\ne = a > b\nf = a >= b\ng = a == b\n"
        "h = a != b\noutputs = c, d, e, f, g, h"
    )
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 2.0])
    made = reference.run(graph, {"a": a, "b": b})
    assert [v.tolist() for v in made.values()] == [
        [True, False, False], [True, True, False], [False, False, True], [False, True, True], [False, True, False],
        [True, False, True],
    ]  # fmt: skip


def test_what_becomes_an_integer_can_be_moved_by_its_rounding_error() -> None:
    graph = parse("N = 4\na: f32[N]\nc = Cast(a, i32)\nd = Cast(a > 1, i32)\noutputs = c, d")
    a = torch.tensor([3.0, -3.0, 2.5, torch.nextafter(torch.tensor(3.0), torch.tensor(0.0)).item()])
    sides = [reference.run(graph, {"a": a}, moved=moved)["c"].tolist() for moved in (-2.0, 0.0, 2.0)]
    assert sides == [[2, -2, 2, 2], [3, -3, 2, 2], [3, -3, 2, 3]]
    for value in (math.nan, math.inf, 2.0**31, -(2.0**31) - 256):
        beyond = {"a": torch.tensor([0.0, 1.0, value, 2.0])}
        with pytest.raises(reference.Undefined):
            reference.run(graph, beyond, moved=2.0)
        reference.run(graph, beyond)  # unmoved it is whatever torch makes of it
    assert reference.run(graph, {"a": torch.tensor([-(2.0**31)] * 4)}, moved=2.0)["c"].tolist() == [-(2**31)] * 4


def test_the_yardstick_is_eager_torch_op_by_op_in_the_stored_dtype() -> None:
    torch.manual_seed(0)
    task = everyday("linear_gelu", M=5, N=7, K=11)
    x, w, b = (torch.randn(s).bfloat16() for s in [(5, 11), (7, 11), (7,)])
    (made,) = reference.run(task.graph, {"x": x, "w": w, "b": b}, "eager").values()
    assert torch.equal(made, F.gelu(F.linear(x, w, b), approximate="tanh"))
    task = everyday("attention", B=2, T=9, H=3, D=16)
    qkv = torch.randn(2, 9, 3, 3, 16).bfloat16()
    (made,) = reference.run(task.graph, {"qkv": qkv}, "eager").values()
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    scores = q @ k.mT / math.sqrt(16) + torch.full((9, 9), -math.inf).triu(1).bfloat16()
    assert torch.equal(made, (F.softmax(scores, -1) @ v).transpose(1, 2))


def test_parameters_in_another_dtype_than_the_activation_are_accepted() -> None:
    graph = parse(
        "M, N = 3, 8\nx: bf16[M, N]\nθ.n.weight: f32[N]\nθ.n.bias: f32[N]\n"
        "θ.p.weight: f32[N, N]\ny = Linear(LayerNorm(x, θ.n), N, θ.p)"
    )
    inputs = values(graph)
    exact, eager = (reference.run(graph, inputs, mode)["y"] for mode in ("fp64", "eager"))  # type: ignore[arg-type]
    assert eager.dtype == torch.bfloat16
    torch.testing.assert_close(eager.double(), exact, rtol=0.05, atol=0.05)


def test_the_tf32_yardstick_rounds_operands_of_contractions_only() -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(4, 40), torch.randn(6, 40), torch.randn(6)
    task = everyday("linear", "f32", "tf32", M=4, N=6, K=40)
    (made,) = reference.run(task.graph, {"x": x, "w": w, "b": b}, "eager").values()
    assert torch.equal(made, F.linear(round_tf32(x), round_tf32(w), b))
    assert not torch.equal(made, F.linear(x, w, b))
    (exact,) = reference.run(task.graph, {"x": x, "w": w, "b": b}).values()
    torch.testing.assert_close(exact, x.double() @ w.double().T + b.double())


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**126), max_value=2.0**126))
def test_rounding_to_tf32_is_to_the_nearest_of_ten_mantissa_bits(value: float) -> None:
    x = torch.tensor(value, dtype=torch.float32)
    rounded = round_tf32(x).item()
    if abs(value) < 2.0**-126:
        return  # subnormals have fewer bits to round to
    _, exponent = math.frexp(value)
    unit = math.ldexp(1.0, exponent - 11)
    assert rounded / unit == int(rounded / unit)
    assert abs(rounded - value) <= unit / 2


def test_rounding_to_tf32_keeps_infinities_and_nan() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0])
    assert torch.equal(round_tf32(x).nan_to_num(7.0), x.nan_to_num(7.0))
