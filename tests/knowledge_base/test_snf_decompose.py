"""Tasks compose: running any plan's calls in order is the graph, which is the GPT-2 block that torch.nn writes."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snf_strategies import network_texts, texts, values

from knowledge_base.snf import decompose, everyday, load_target, parse, reference
from knowledge_base.snf.decompose import PLANS
from knowledge_base.snf.op_table import OPS

SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


@SLOW
@given(st.one_of(network_texts(), texts(40)), st.sampled_from(sorted(PLANS)))
def test_running_the_calls_of_any_plan_in_order_equals_the_graph(text: str, plan: str) -> None:
    graph = parse(text)
    inputs = values(graph)
    whole = reference.run(graph, inputs)  # type: ignore[arg-type]
    pieces = reference.run_calls(decompose(graph, plan), inputs)  # type: ignore[arg-type]
    assert list(pieces) == list(whole)
    for name in whole:
        close(pieces[name], whole[name])


class Block(torch.nn.Module):
    """GPT-2's block as torch.nn has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.fc, self.out = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        att = torch.nn.functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.proj(att.transpose(1, 2).reshape(b, t, c))
        return x + self.out(torch.nn.functional.gelu(self.fc(self.ln2(x)), approximate="tanh"))


@pytest.mark.parametrize("sizes", [(2, 7, 24, 3), (1, 1, 16, 1), (3, 13, 40, 5)])
def test_graph_and_every_plan_equal_a_gpt2_block_written_with_torch_nn(sizes: tuple[int, int, int, int]) -> None:
    b, t, c, h = sizes
    torch.manual_seed(0)
    block = Block(c, h).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(b, t, c, dtype=torch.float64)
    graph = load_target("gpt2-block", {"B": b, "T": t, "C": c, "H": h}).graph
    named = {"ln1": block.ln1, "ln2": block.ln2, "attn.qkv": block.qkv, "attn.proj": block.proj, "mlp.fc": block.fc,
             "mlp.proj": block.out}  # fmt: skip
    inputs = {"h_in": x}
    for path, module in named.items():
        inputs |= {f"θ.{path}.weight": module.weight.detach(), f"θ.{path}.bias": module.bias.detach()}
    expected = block(x).detach()
    close(reference.run(graph, inputs)["h_out"], expected)
    for plan in PLANS:
        close(reference.run_calls(decompose(graph, plan), inputs)["h_out"], expected)


def test_the_fused_gpt2_block_is_seven_everyday_tasks() -> None:
    calls = decompose(load_target("gpt2-block").graph, "v2").calls
    names = ["layernorm", "linear", "attention", "linear_residual", "layernorm", "linear_gelu", "linear_residual"]
    assert [call.task.name for call in calls] == names
    assert [call.task.identity for call in calls] == [everyday(name).identity for name in names]
    for call, name in zip(calls, names, strict=True):
        assert call.task.inputs == everyday(name).inputs
        assert call.task.constants == everyday(name).constants
    qkv, attention, proj = calls[1], calls[2], calls[3]
    assert attention.arguments == qkv.results  # q, k and v are read where the linear left them
    assert proj.arguments[0] == attention.results[0]
    assert dict(proj.sizes) == {"M": ("*", "B", "T"), "N": ("*", "D_h", "H"), "K": ("*", "D_h", "H")}


def test_gpt2_is_everyday_tasks_but_for_the_output_projection_without_bias() -> None:
    calls = decompose(load_target("nanogpt-nano").graph, "v2").calls
    layer = ["layernorm", "linear", "attention", "linear_residual", "layernorm", "linear_gelu", "linear_residual"]
    assert [c.task.name for c in calls[:-1]] == ["embedding", *layer * 3, "layernorm"]
    assert calls[-1].task.name.startswith("linear_")
    assert [t.role for t in calls[-1].task.inputs] == ["input", "weight"]
    assert calls[-1].arguments[1] == "θ.wte" == calls[0].arguments[1]  # tied


def test_gpt2_equals_itself_cut_into_tasks() -> None:
    graph = load_target("nanogpt-nano", {"B": 2, "T": 9, "C": 12, "H": 3, "P": 11, "V": 13}).graph
    inputs = values(graph)
    whole = reference.run(graph, inputs)["logits"]  # type: ignore[arg-type]
    for plan in PLANS:
        close(reference.run_calls(decompose(graph, plan), inputs)["logits"], whole)  # type: ignore[arg-type]


SQUARED_RELU = """
T, C = 200, 80
x: bf16[T, C]
n = RMSNorm(x, θ.norm)
h = square(ReLU(Linear(n, 4*C, θ.fc, bias=False)))
y = x + Linear(h, C, θ.proj, bias=False)
"""


def test_a_squared_relu_mlp_with_rmsnorm_is_three_tasks() -> None:
    calls = decompose(parse(SQUARED_RELU), "v2").calls
    ops = [[n.op for n in c.task.graph.nodes] for c in calls]
    assert ops == [["rmsnorm"], ["linear", "relu", "square"], ["linear", "add"]]
    sizes = [dict(c.task.sizes) for c in calls]
    assert sizes == [{"M": 200, "N": 80}, {"M": 200, "K": 80, "N": 320}, {"M": 200, "K": 320, "N": 80}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "y = x * rsqrt(Mean(square(x), keepdims=True) + 1e-5) * θ.g",
            [["square", "mean", "add", "rsqrt", "mul", "mul"]],
        ),
        ("y = GELU(LayerNorm(x, θ.n) * 2.0)", [["layernorm", "mul", "gelu"]]),
        ("y = Softmax(LayerNorm(x, θ.n))", [["layernorm"], ["softmax"]]),
        ("y = tanh(x) * sigmoid(x) + exp(-x)", [["tanh", "sigmoid", "mul", "neg", "exp", "add"]]),
        ("a = x + 1.0\ny = LayerNorm(a, θ.n) + a", [["add", "layernorm", "add"]]),
        ("y = SiLU(Linear(x, C, θ.a)) * Linear(x, C, θ.b)", [["linear", "linear", "silu", "mul"]]),
        ("y = SiLU(Linear(x, C, θ.a)) * Linear(-x, C, θ.b)", [["linear"], ["neg"], ["linear", "silu", "mul"]]),
        ("a, b = Linear(x, 8, θ.a), Linear(x, 8, θ.b)\ny = a * b + Linear(x, 8, θ.c)",
         [["linear"], ["linear", "mul", "linear", "add"]]),
        ("a, b = Linear(x, 8, θ.a), Linear(x, 8, θ.b)\noutputs = a * b, a", [["linear"], ["linear", "mul"]]),
        ("a, b = Linear(x, 8, θ.a), Linear(x, 1, θ.b)\ny = a * b", [["linear"], ["linear", "mul"]]),
        ("a = Linear(x, C, θ.a)\ny = a + Linear(a, C, θ.b)", [["linear"], ["linear", "add"]]),
        ("a, b = Linear(x, 8, θ.a).split(2)\ny = SiLU(a) * b", [["linear", "silu", "mul"]]),
        ("a, b = Linear(x, 8, θ.a).split(2)\noutputs = SiLU(a) * b, LayerNorm(a, θ.n)",
         [["linear"], ["silu", "mul"], ["layernorm"]]),
        ("a, b, c = Linear(x, 9, θ.a).split(3)\ny = a * b * c", [["linear"], ["mul", "mul"]]),
        ("a, b = Linear(x, 8, θ.a).split(2)\ny = a * b + Linear(x, 4, θ.b)", [["linear"], ["mul", "linear", "add"]]),
        ("h = Linear(x, C, θ.a)\ny = h * sigmoid(h)", [["linear", "sigmoid", "mul"]]),
        ("y = LayerNorm(x + Linear(x, C, θ.a), θ.n)", [["linear", "add"], ["layernorm"]]),
        ("h = Linear(x, C, θ.a)\noutputs = h, GELU(h)", [["linear"], ["gelu"]]),
        ("y = Sum(x * 2.0) / 3", [["mul", "sum", "div"]]),
        ("y = Sum(GELU(x), axis=0)", [["gelu"], ["sum"]]),
        ("far = Range(T).reshape(T, 1) - Range(T).reshape(1, T)\ny = Softmax(Where(far < 3, x @ x.T, -inf)) @ x",
         [["sub", "lt", "matmul", "where", "softmax", "matmul"]]),
        ("i = Range(T) * 2\noutputs = i, GELU(x * i.reshape(T, 1))", [["mul"], ["mul", "gelu"]]),
        ("i = abs(Range(T) - 2)\ny = Gather(x, i) + Gather(x, i)", [["sub", "abs", "gather", "add"]]),
        ("m: f32[T, 1]\ny = Softmax(x @ x.T + m * (Range(T) - T)) @ x",
         [["sub", "mul", "matmul", "add", "softmax", "matmul"]]),
        ("m: f32[T, T]\ny = Softmax(x @ x.T + tanh(m)) @ x", [["tanh", "matmul", "add", "softmax", "matmul"]]),
        ("m: f32[T, T]\nn: f32[T, T]\ny = Softmax(x @ x.T + m * n) @ x",
         [["mul"], ["matmul", "add", "softmax", "matmul"]]),
        ("a = Cast(x, f64)\noutputs = LayerNorm(a, θ.n), Sum(a, axis=0)", [["cast", "layernorm"], ["cast", "sum"]]),
        ("a = Cast(x, f64)\noutputs = a, LayerNorm(a, θ.n)", [["cast"], ["layernorm"]]),
        ("k = x * 2.0\ny = Softmax(x @ k.T) @ x", [["mul"], ["matmul", "softmax", "matmul"]]),
        ("outputs = Linear(x, 8, θ.a), GELU(Linear(x, 3, θ.b)), Linear(x, 1, θ.c)", [["linear"] * 3 + ["gelu"]]),
        ("n = -x\noutputs = Linear(n, 8, θ.a), Linear(x, 3, θ.b), Linear(n, 1, θ.c)",
         [["neg"], ["linear", "linear"], ["linear"]]),
        ("outputs = Linear(x, 8, θ.a), Linear(x, C, θ.b) + LayerNorm(x, θ.n)",
         [["linear", "linear"], ["layernorm", "add"]]),
        ("outputs = Linear(x, 8, θ.a), Linear(x, 6, θ.b) * Linear(x, 6, θ.c)",
         [["linear"], ["linear", "linear", "mul"]]),
        ("outputs = " + ", ".join(f"Linear(x, {n}, θ.w{n})" for n in range(1, 6)), [["linear"] * 4, ["linear"]]),
    ],
)  # fmt: skip
def test_what_plan_v2_fuses(text: str, expected: list[list[str]]) -> None:
    graph = parse(f"T, C = 5, 6\nx: f32[T, C]\nθ.g: f32[C]\n{text}")
    quiet = ("view", "source", "scalar")
    ops = [
        sorted(n.op for n in c.task.graph.nodes if OPS[n.op].kind not in quiet and not n.name.startswith("$"))
        for c in decompose(graph, "v2").calls
    ]
    assert ops == [sorted(e) for e in expected]


@pytest.mark.parametrize(
    "lines",
    [
        [f"s{i + 1} = s{i} + s{i} * 0.5" for i in range(300)],
        [f"s{i + 1} = GELU(s{i})" for i in range(2000)],
        ["s = Softmax(s0)"] + [f"s{i + 1} = tanh(s{i}) * s{i} - s0" for i in range(200)] + ["z = s + s200"],
    ],
    ids=["doubling", "long", "wide"],
)
def test_long_and_doubling_chains_decompose_in_time(lines: list[str]) -> None:
    last = f"y = Softmax({lines[-1].split(' ')[0]}) @ x"
    graph = parse("\n".join(["H, T = 2, 3", "x: f32[H, T, T]", "s0 = x @ x", *lines, last]))
    start = time.process_time()
    for plan in PLANS:
        assert decompose(graph, plan).calls
    assert time.process_time() - start < 30


HEADS = "B, T, H, D = 2, 5, 3, 4\nx: f32[B, T, H*D]\n"


def test_a_linear_that_reads_merged_heads_of_a_stored_value_makes_its_producer_store_them_merged() -> None:
    graph = parse(HEADS + "s = GELU(Heads(x, H))\ny = Linear(Merge(s), 7, θ.p)")
    first, second = decompose(graph, "v1").calls
    assert first.task.graph.nodes[-1].op == "permute"  # the producer's output layout
    assert second.task.name == "linear"
    assert not any(n.op == "permute" for n in second.task.graph.nodes)


def test_an_op_that_needs_a_size_which_its_arrays_do_not_tell_belongs_to_the_task_that_feeds_it() -> None:
    graph = parse(
        "B, H, T, D = 2, 3, 5, 4\nq: f32[B, H, T, D]\nk: f32[B, H, T, D]\ny = Softmax(q @ k.T / sqrt(D) + Mask_Causal)"
    )
    first, *rest = decompose(graph, "v1").calls
    assert [n.op for n in first.task.graph.nodes if n.op in ("matmul", "div")] == ["matmul", "div"]
    assert not any(n.op == "dim" for call in rest for n in call.task.graph.nodes)
    shown = parse("B, T, D = 2, 5, 4\nx: f32[B, T, D]\ny = GELU(x) / sqrt(D)")
    assert [len(decompose(shown, plan).calls) for plan in PLANS] == [2, 1]  # here the shape tells it


def test_products_with_views_that_must_be_copied_first_are_not_made_before_the_copy() -> None:
    graph = parse(
        "B, T, C = 2, 5, 12\nx: f32[B, T, C]\nv: f32[B, C, 4]\nw: f32[B, 2, C, 3]\noutputs = x @ v, x @ Merge(w)"
    )
    calls = decompose(graph, "v2").calls
    assert [c.task.name.split("_")[0] for c in calls] == ["matmul", "copy", "matmul"]
    made = {t.name for t in graph.inputs}
    for call in calls:
        assert made.issuperset(call.arguments)
        made.update(call.results)


def test_a_linear_that_reads_merged_heads_of_an_input_gets_a_copy() -> None:
    graph = parse("B, T, H, D = 2, 5, 3, 4\nx: f32[B, H, T, D]\ny = Linear(Merge(x), 7, θ.p)")
    copy, linear = decompose(graph, "v2").calls
    assert copy.task.name.startswith("copy_")
    assert [n.op for n in copy.task.graph.nodes] == ["permute"]
    assert linear.arguments[0] == copy.results[0]
    assert linear.task.name == "linear"


@pytest.mark.parametrize(
    ("outputs", "tasks"),
    [("Range(T)", 1), ("Range(T), GELU(x)", 2), ("Range(T).reshape(T, 1)", 1), ("Mask_Causal(x @ x.T), x @ x.T", 2)],
)
def test_outputs_that_are_positions_or_masks_are_stored_too(outputs: str, tasks: int) -> None:
    graph = parse(f"T, C = 5, 3\nx: f32[T, C]\noutputs = {outputs}")
    inputs = values(graph)
    whole = reference.run(graph, inputs)  # type: ignore[arg-type]
    for plan in PLANS:
        cut = decompose(graph, plan)
        assert len(cut.tasks) == tasks
        made = reference.run_calls(cut, inputs)  # type: ignore[arg-type]
        for name in graph.outputs:
            close(made[name], whole[name])


def test_outputs_that_are_views_are_stored_as_they_are_asked_for() -> None:
    graph = parse(HEADS + "a, b, c = GELU(x).split(3)\noutputs = a, c, Heads(x, H)")
    inputs = values(graph)
    whole = reference.run(graph, inputs)  # type: ignore[arg-type]
    for plan in PLANS:
        made = reference.run_calls(decompose(graph, plan), inputs)  # type: ignore[arg-type]
        for name in graph.outputs:
            close(made[name], whole[name])
