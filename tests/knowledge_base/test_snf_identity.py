"""A task's identity: what changes it and what does not; everyday tasks; JSON."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snf_strategies import texts, values

from kernels_generated.runtime.expr import Expr, substitute
from knowledge_base.errors import UserError
from knowledge_base.snf import Task, canonical, decompose, everyday, load_target, parse, reference
from knowledge_base.snf.canonical import canonicalise
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.graph import Graph, Node
from knowledge_base.snf.op_table import OPS
from knowledge_base.snf.printer import show

MODEST = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def disguised(graph: Graph, chance: random.Random) -> Graph:
    """The same graph: other names and sizes, inputs and nodes in another order, commutative operands exchanged."""
    dims = {name: f"Z{i}" for i, (name, _) in enumerate(chance.sample(graph.dims, len(graph.dims)))}
    by: dict[str, Expr] = dict(dims)
    names = {v.name: f"v{i}" for i, v in enumerate(chance.sample(graph.values, len(graph.values)))}

    def size(expr: Expr) -> Expr:
        return substitute(expr, by)

    def node(n: Node) -> Node:
        args = [names[a] for a in n.args]
        if OPS[n.op].commutative and chance.random() < 0.5:
            args.reverse()
        attrs = tuple(
            (k, tuple(map(size, v)) if k == "shape" else size(v) if k in ("n", "expr") else v) for k, v in n.attrs
        )
        name = "$" + names[n.name] if n.name.startswith("$") else names[n.name]
        return replace(n, name=name, args=tuple(args), attrs=attrs, shape=tuple(map(size, n.shape)))

    names = {old: ("$" + new if old.startswith("$") else new) for old, new in names.items()}
    waiting, done, nodes = list(graph.nodes), {t.name for t in graph.inputs}, []
    while waiting:
        ready = chance.choice([n for n in waiting if set(n.args) <= done])
        waiting.remove(ready)
        done.add(ready.name)
        nodes.append(replace(node(ready), name=names[ready.name]))
    inputs = tuple(replace(t, name=names[t.name], shape=tuple(map(size, t.shape))) for t in graph.inputs)
    outputs = tuple(names[o] for o in graph.outputs)
    shuffled = tuple(chance.sample(inputs, len(inputs)))
    sizes = tuple((dims[d], n + 1 if d != "D" else n) for d, n in graph.dims)
    return replace(graph, dims=sizes, inputs=shuffled, nodes=tuple(nodes), outputs=outputs)


@MODEST
@given(texts(40), st.randoms(use_true_random=False))
def test_names_sizes_order_and_commuted_operands_do_not_change_the_identity(text: str, chance: random.Random) -> None:
    graph = parse(text)
    mine, theirs = canonical(graph), canonical(disguised(graph, chance))
    assert theirs.identity == mine.identity
    assert theirs.name == mine.name
    assert theirs.at(**mine.sizes).graph == mine.graph  # what is written for one fits the other


@MODEST
@given(texts(40))
def test_a_canonical_task_means_what_its_graph_means_and_is_its_own_canonical_form(text: str) -> None:
    graph = parse(text)
    found = canonicalise(graph)
    again = canonical(found.task.graph)
    assert again.identity == found.task.identity
    assert again.graph == found.task.graph
    assert Task.from_json(json.loads(json.dumps(found.task.to_json()))) == found.task
    inputs = values(graph)
    given_ = {t.name: inputs[a] for t, a in zip(found.task.inputs, found.arguments, strict=True)}
    made = reference.run(found.task.graph, given_)  # type: ignore[arg-type]
    whole = reference.run(graph, inputs)  # type: ignore[arg-type]
    for name, result in zip(found.results, found.task.graph.outputs, strict=True):
        import torch

        torch.testing.assert_close(
            made[result].reshape(whole[name].shape), whole[name], rtol=1e-9, atol=1e-9, equal_nan=True
        )


ATTENTION = """
B, T, H, D = 2, 8, 3, 16
qkv: {dtype}[B, T, 3*H*D]
q, k, v = qkv.split(3)
y = Merge(Softmax(Heads(q, H) @ Heads(k, H).T / sqrt(D) {mask}) @ Heads(v, H))
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ATTENTION.format(dtype="bf16", mask=""), ATTENTION.format(dtype="bf16", mask="+ Mask_Causal")),
        (ATTENTION.format(dtype="bf16", mask=""), ATTENTION.format(dtype="f16", mask="")),
        ("M, N = 2, 3\nx: bf16[M, N]\ny = LayerNorm(x)", "M, N = 2, 3\nx: bf16[M, N]\ny = LayerNorm(x, eps=1e-6)"),
        ("M, N = 2, 3\nx: bf16[M, N]\ny = GELU(x)", 'M, N = 2, 3\nx: bf16[M, N]\ny = GELU(x, approximate="none")'),
        ("M, N = 2, 3\nx: f32[M, N]\ny = Linear(x)", "M, N = 2, 3\nx: f32[M, N]\ny = Linear(x)\nprecision: tf32"),
        ("M, N = 2, 3\nx: f32[M, N]\ny = Linear(x)", "M, N = 2, 3\nx: f32[M, N]\ny = Linear(x, bias=False)"),
        ("N = 2\na: f32[N]\nb: f32[N]\ny = a - b*a", "N = 2\na: f32[N]\nb: f32[N]\ny = b*a - a"),
        ("N = 2\na: f32[N]\ny = a * 0.5", "N = 2\na: f32[N]\ny = a * 0.25"),
        ("M, N = 2, 3\nx: f32[M, N]\ny = Sum(x)", "M, N = 2, 3\nx: f32[M, N]\ny = Sum(x, axis=0)"),
        ("M, N = 2, 3\nx: f32[M, N]\ny = Sum(x)/N", "M, N = 2, 3\nx: f32[M, N]\ny = Sum(x)/M"),
        ("M, N = 2, 3\nx: f32[M, N]\nr: f32[M, N]\ny = x + r", "M, N = 2, 3\nx: f32[M, N]\nr: f32[N]\ny = x + r"),
        ("M, N = 2, 3\nx: f32[M, N]\nθ.w: f32[M, N]\ny = x-θ.w", "M, N = 2, 3\nx: f32[M, N]\nw: f32[M, N]\ny = x-w"),
        ("N = 4\nx: f32[N, 2*N]\na, b = x.split(2)\ny = a - b", "N = 4\nx: f32[N, 2*N]\na, b = x.split(2)\ny = b - a"),
        ("N = 4\nx: f32[N]\ny = Cast(x, bf16)", "N = 4\nx: f32[N]\ny = Cast(x, f16)"),
    ],
)  # fmt: skip
def test_different_meanings_have_different_identities(one: str, other: str) -> None:
    assert canonical(parse(one)).identity != canonical(parse(other)).identity


FOUR_HEADS = """
B, T, C = 2, 8, 48
D_h = C // 4
x: bf16[B, T, 3*C]
a, b, c = x.split()
y = Merge(Softmax(Heads(a, 4) @ Heads(b, 4).T / sqrt(D_h)) @ Heads(c, 4))
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("N = 4\nx: f32[N]\ny = x * x", "N = 4\nx: f32[N]\ny = x ** 2"),
        ("N = 4\nx: f32[N]\ny = x * 2", "K = 9\na: f32[3, 3, K]\nb = 2.0 * a"),
        ("M, C = 4, 6\nx: f32[M, C]\ny = Linear(x)", "B, T = 2, 3\nx: f32[B, T, 5]\ny = Linear(x, 7, θ.q)"),
        ("M, N = 4, 5\nx: f32[M, 6]\nθ.w: f32[N, 6]\ny = x @ θ.w.T",
         "M, K = 4, 6\nx: f32[M, K]\ny = Linear(x, bias=False)"),
        ("C = 6\nx: f32[C]\ny = LayerNorm(x)", "M, C = 4, 6\nx: f32[M, C]\ny = LayerNorm(x)"),
        (ATTENTION.format(dtype="bf16", mask=""), FOUR_HEADS),
    ],
)  # fmt: skip
def test_different_spellings_of_one_meaning_have_one_identity(one: str, other: str) -> None:
    assert canonical(parse(one)).identity == canonical(parse(other)).identity


def test_heads_left_implicit_are_the_explicit_ones() -> None:
    start = "B, T, C, H = 2, 8, 48, 3\nD_h = C // H\nq: bf16[B, T, C]\nk: bf16[B, T, C]\nv: bf16[B, T, C]\n"
    implicit = parse(start + "att = Softmax(q @ k.T / sqrt(D_h) + Mask_Causal)\ny = att @ v")
    explicit = parse(start + "y = Merge(Softmax(Heads(q, H) @ Heads(k, H).T / sqrt(D_h) + Mask_Causal) @ Heads(v, H))")
    assert canonical(implicit).identity == canonical(explicit).identity
    assert canonical(implicit).inputs == canonical(explicit).inputs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_shipped_spec_is_its_everyday_task(name: str, dtype: str) -> None:
    target = load_target(name.replace("_", "-"))
    graph = parse(target.text.replace("bf16", dtype))
    task = everyday(name, dtype)
    (call,) = decompose(graph, "v2").calls
    assert call.task == task.at(**call.task.sizes) == canonical(graph).at(**call.task.sizes)
    assert call.task.name == name


def test_everyday_tasks_have_the_documented_arguments() -> None:
    def signature(name: str) -> str:
        task = everyday(name)
        return ", ".join(f"{t.name}[{','.join(map(str, t.shape))}]" for t in (*task.inputs, *task.outputs))

    assert signature("gelu") == "x[M,N], y[M,N]"
    assert signature("add") == "a[M,N], b[M,N], y[M,N]"
    assert signature("layernorm") == "x[M,N], weight[N], bias[N], y[M,N]"
    assert signature("linear") == "x[M,K], w[N,K], b[N], y[M,N]"
    assert signature("linear_residual") == "x[M,K], w[N,K], b[N], r[M,N], y[M,N]"
    assert signature("attention") == "qkv[B,T,3,H,D], y[B,T,H,D]"
    assert signature("attention_qkv") == "q[B,H,T,D], k[B,H,T,D], v[B,H,T,D], y[B,H,T,D]"
    assert signature("embedding") == "tokens[B,T], wte[V,C], wpe[P,C], y[B,T,C]"
    assert everyday("attention").constants == (("D", (16, 32, 64, 80, 128)),)
    assert everyday("embedding").constraints == (("<=", "T", "P"),)
    assert everyday("linear-gelu").name == "linear_gelu"


def test_a_wrong_everyday_name_or_size_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match="linear_gelu"):
        everyday("linear_gelo")
    with pytest.raises(UserError, match="no dimension 'Q'"):
        everyday("gelu", Q=3)
    with pytest.raises(UserError, match="T <= P"):
        everyday("embedding", T=2000)


def test_other_tasks_are_named_by_their_ops_and_take_weights_after_activations() -> None:
    graph = parse("M, N = 4, 6\nx: f32[M, N]\nr: f32[M, N]\ny = RMSNorm(x, θ) * r")
    task = canonical(graph)
    assert task.name == f"rmsnorm_mul_{task.identity[:6]}"
    assert [t.role for t in task.inputs] == ["input", "input", "weight"]
    assert [t.name for t in task.outputs] == ["y"]


def test_cross_attention_with_a_mask_needs_no_more_queries_than_keys() -> None:
    text = "H, T, S, D = 2, 3, 5, 16\nq: f32[H, T, D]\nk: f32[H, S, D]\nv: f32[H, S, D]\n"
    task = canonical(parse(text + "y = Softmax(q @ k.T / sqrt(D) + Mask_Causal) @ v"))
    ((comparison, rows, columns),) = task.constraints
    assert comparison == "<="
    assert task.sizes[str(rows)] == 3
    assert task.sizes[str(columns)] == 5
    assert dict(task.constants) == {"D": (16, 32, 64, 80, 128)}


def test_rope_turns_pairs_and_its_task_says_so() -> None:
    task = canonical(parse("T, D = 3, 16\nx: f32[T, D]\nc: f32[T, D]\ns: f32[T, D]\ny = RoPE(x, c, s)"))
    assert task.constraints == (("==", ("mod", task.inputs[0].shape[-1], 2), 0),)
    with pytest.raises(UserError, match="does not hold"):
        parse("T, D = 3, 5\nx: f32[T, D]\nc: f32[T, D]\ns: f32[T, D]\ny = RoPE(x, c, s)")


def test_a_listed_dimension_is_a_constant_of_the_tasks_that_have_it() -> None:
    task = canonical(parse("M, N = 4, 48\nN in (32, 64)\nx: f32[M, N]\ny = Softmax(x) * 2.0"))
    assert task.constants == (("N", (32, 48, 64)),)  # the sample always is one


@MODEST
@given(texts(300))
def test_canonical_graphs_print_as_snf_and_parse_back(text: str) -> None:
    graph = canonical(parse(text)).graph
    assert parse(show(graph)).nodes == graph.nodes
