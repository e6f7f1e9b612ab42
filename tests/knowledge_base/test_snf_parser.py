"""SNF texts: what is accepted, what it means, and what is refused where and why."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snf_strategies import network_texts, texts

from knowledge_base.errors import UserError
from knowledge_base.snf import SnfError, decompose, parse, show
from knowledge_base.snf.graph import Graph
from knowledge_base.snf.parser import parse_noted

MODEST = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@MODEST
@given(st.one_of(texts(300), network_texts()))
def test_printing_and_parsing_is_the_identity(text: str) -> None:
    graph = parse(text)
    printed = show(graph)
    assert parse(printed) == graph
    assert show(parse(printed)) == printed


@MODEST
@given(st.text(alphabet="xyθ=+-*@/()[],.:0123456789 \n\tTLinearSoftmaxbf16", max_size=80))
def test_any_text_is_a_graph_or_an_error_with_its_place(text: str) -> None:
    errors = []
    try:
        parse(text, "fuzz.snf")
    except SnfError as error:
        errors.append(error)
    assert all(error.line >= 1 and error.column >= 1 and error.reason for error in errors)


DIMS = "B, T, C, H = 2, 8, 48, 3\nD_h = C // H\nh_in: bf16[B, T, C]\n"


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes if not n.name.startswith("$")]


def test_the_lines_of_the_users_documents_are_accepted_as_they_stand() -> None:
    text = (
        DIMS
        + """x = h_in
n1 = LayerNorm(h_in, θ.ln1)
q, k, v = Linear(x).split()
att = Softmax(q @ k.T / sqrt(D_h) + Mask_Causal)
h_mid = h_in + Linear(att @ v)
n2 = LayerNorm(h_mid, θ.ln2)
h = GELU(Linear(n2, 4*C))
h_out = h_mid + Linear(h, C)
"""
    )
    parsed = parse_noted(text)
    assert parsed.graph.outputs == ("h_out",)
    assert parsed.notes == ("line 7: q is D_h*H wide and the scale names D_h: read as H heads",)
    assert [t.name for t in parsed.graph.inputs] == [
        "h_in", "θ.q_k_v.weight", "θ.q_k_v.bias", "θ.h_mid.weight", "θ.h_mid.bias", "θ.ln2.weight", "θ.ln2.bias",
        "θ.h.weight", "θ.h.bias", "θ.h_out.weight", "θ.h_out.bias",
    ]  # fmt: skip


def test_a_mask_that_masks_nothing_is_told() -> None:
    """Beside the scores, of which it has not the queries."""
    text = "T, D = 9, 16\nq: f32[T, D]\nb: f32[1, T]\n"
    assert parse_noted(f"{text}y = Softmax(b + Mask_Causal + q @ q.T) @ q").notes == (
        "line 4: of a single query Mask_Causal masks nothing: it belongs to the scores",
    )
    assert parse_noted(f"{text}y = Softmax(b + q @ q.T + Mask_Causal) @ q").notes == ()


@pytest.mark.parametrize(
    ("declared", "line", "expected"),
    [
        ("", "n1 = LayerNorm(h_in, θ.ln1)", ["layernorm"]),
        ("x: bf16[B, T, C]", "q, k, v = Linear(x).split()\noutputs = q, k, v", ["linear", "split", "split", "split"]),
        ("q: bf16[B, T, C]\nk: bf16[B, T, C]", "att = Softmax(q @ k.T / sqrt(D_h) + Mask_Causal)",
         ["heads", "heads", "permute", "matmul", "div", "causal_mask", "add", "softmax"]),
        ("att: bf16[B, T, T]\nv: bf16[B, T, C]", "h_mid = h_in + Linear(att @ v)", ["matmul", "linear", "add"]),
        ("n2: bf16[B, T, C]", "h = GELU(Linear(n2, 4*C))", ["linear", "gelu"]),
        ("h: bf16[B, T, 4*C]\nh_mid: bf16[B, T, C]", "h_out = h_mid + Linear(h, C)", ["linear", "add"]),
        ("V, P = 11, 9\ntoken: i64[B, T]\nθ_wte: bf16[V, C]\nθ_wpe: bf16[P, C]",
         "h = Gather(θ_wte, token) + Gather(θ_wpe, Range(T))", ["gather", "iota", "gather", "add"]),
    ],
)  # fmt: skip
def test_each_line_of_the_users_documents_is_accepted_on_its_own(declared: str, line: str, expected: list[str]) -> None:
    assert ops(parse(f"{DIMS}{declared}\n{line}")) == expected


def test_linear_has_four_spellings_and_unnamed_parameters_are_called_after_the_assigned_name() -> None:
    graph = parse(
        DIMS
        + "a = Linear(h_in)\nb = Linear(a, 2*C)\nc = Linear(b, C, θ.p)\nd, e, f = Linear(c).split()\n"
        + "g = Linear(Linear(d)) + e + f"
    )
    shapes = {t.name: t.shape for t in graph.inputs if t.name.endswith("weight")}
    wide = ("*", "D_h", "H")
    assert shapes == {
        "θ.a.weight": (wide, wide), "θ.b.weight": (("*", 2, wide), wide), "θ.p.weight": (wide, ("*", 2, wide)),
        "θ.d_e_f.weight": (("*", 3, wide), wide), "θ.g.weight": (wide, wide), "θ.g_2.weight": (wide, wide),
    }  # fmt: skip


def test_functions_and_loops_unroll_with_a_parameter_tree_each() -> None:
    text = """
L, M, N = 3, 4, 6
x: f32[M, N]
def Layer(h, θ):
    up = GELU(Linear(h, 2*N, θ.up))
    return h + Linear(up, N, θ.down, bias=False)
for l in range(L):
    x = Layer(x, θ.layers[l])
"""
    graph = parse(text)
    assert ops(graph) == ["linear", "gelu", "linear", "add"] * 3
    assert "θ.layers[2].down.weight" in {t.name for t in graph.inputs}
    assert dict(graph.dims) == {"M": 4, "N": 6}  # L decided the structure: it is a number now
    assert len(ops(parse_noted(text, shape={"L": 5}).graph)) == 20


def test_the_same_parameter_twice_is_tied_and_must_agree() -> None:
    graph = parse(
        "V, C, T = 11, 6, 4\ntoken: i64[T]\nθ.wte: bf16[V, C]\n"
        "h = Gather(θ.wte, token)\ny = Linear(h, V, θ.wte, bias=False)"
    )
    assert [t.name for t in graph.inputs] == ["token", "θ.wte"]
    with pytest.raises(SnfError, match=r"θ.p.weight is \[C, C\] elsewhere"):
        parse("T, C = 4, 6\nx: f32[T, C]\ny = Linear(Linear(x, C, θ.p), 7, θ.p)")


def test_a_width_that_heads_divide_becomes_a_product_and_prints_so() -> None:
    graph = parse(DIMS + "y = Merge(Heads(GELU(h_in), H))")
    assert dict(graph.dims) == {"B": 2, "T": 8, "D_h": 16, "H": 3}
    heads, merged = (graph.value(n.name) for n in graph.nodes[1:])
    assert heads.shape == ("B", "H", "T", "D_h")
    assert merged.shape == ("B", "T", ("*", "D_h", "H"))
    assert parse(show(graph)) == graph
    assert dict(parse_noted(DIMS + "y = Merge(Heads(GELU(h_in), H))", shape={"C": 96}).graph.dims)["D_h"] == 32


def test_dtypes_follow_torch() -> None:
    graph = parse(
        "N = 4\na: bf16[N]\nb: f32[N]\ni: i32[N]\nc = a + b\nd = i / 2\ne = a * 0.5\nf = i * 2\n"
        "g = Sum(i)\nh = Where(a > b, a, 0.0)\nj = Cast(i, f16)\noutputs = c, d, e, f, g, h, j"
    )
    assert {n.name: n.dtype for n in graph.nodes if n.name in graph.outputs} == {
        "c": "f32", "d": "f32", "e": "bf16", "f": "i32", "g": "i64", "h": "bf16", "j": "f16",
    }  # fmt: skip


def test_precision_listed_dimensions_comments_and_outputs_are_read() -> None:
    graph = parse(
        '"A comment"\nM, D = 4, 16  # sizes\nD in (16, 32)\nprecision: tf32\n'
        "x: f32[M, D]\na = x + 1\nb = x * 2\noutputs = b"
    )
    assert (graph.precision, graph.listed, graph.outputs) == ("tf32", (("D", (16, 32)),), ("b",))


ERRORS = [
    ("y = Sofmax(x)", 3, 5, "there is no op Sofmax", "Softmax"),
    ("y = GELU(xx)", 3, 10, "xx is not defined", "did you mean x?"),
    ("y = Linear(x, 4*K)", 3, 17, "K is not defined", "K = 128"),
    ("y = x + θ.bias", 3, 9, "parameter θ.bias is used as a tensor", "declare θ.bias"),
    ("y = x.spilt(2)", 3, 5, "there is no .spilt()", ".split"),
    ("y = x.split(5)", 3, 5, "N = 6 is not a multiple of 5", "N%5 == 0"),
    ("y = Heads(x, 4)", 3, 5, "N = 6 is not a multiple of 4", ""),
    ("y = x @ x", 3, 5, "the inner sizes N and M differ", ""),
    ("y = Softmax(x, axes=1)", 3, 21, "Softmax has no axes", ""),
    ("y = Sum(x, keepdim=True)", 3, 20, "Sum has no keepdim", "keepdims"),
    ("y = GELU(x, approximate='tan')", 3, 25, "approximate can't be", '"tanh" or "none"'),
    ("d: f64[N]\ny = x * Sum(d)", 4, 9, "sum gives one f64 value of an array", ""),
    ("i: i32[N]\ny = i + 3000000000", 4, 5, "3000000000 is no i32: Cast the array to i64", ""),
    ("i: i64[N]\ny = i ** -1", 4, 5, "integers have no power -1: Cast to f32 before it", ""),
    ("y = Mask_Causal", 3, 1, "this can't be given a name", ""),
    ("y = GELU(Mask_Causal)", 3, 10, "Mask_Causal stands for nothing here", "scores + Mask_Causal"),
    ("y = x if M else x", 3, 5, "SNF has no if: use Where", ""),
    ("y = [x]", 3, 5, "SNF has no list", ""),
    ("y = x // 2", 3, 5, "// and % are for sizes only", ""),
    ("y = x\ny = 1 < 2", 4, 5, "comparing two numbers", ""),
    ("y = x[0]", 3, 5, "tensors are not indexed", "Select"),
    ("import os", 3, 1, "SNF has no import statement", ""),
    ("while x: y = x", 3, 1, "SNF has no while statement", ""),
    ("y = x +", 3, 8, "syntax: invalid syntax", ""),
    ("z: float32[M]\ny = z", 3, 4, "there is no dtype float32", "f32"),
    ("z: f32[M, Q]\ny = z", 3, 11, "Q is not defined", ""),
    ("x: f32[M]", 3, 1, "x is already declared or used", ""),
    ("y = Cast(x, float16)", 3, 13, "float16 is not defined", "f16"),
    ("a, b = x.split(3)", 3, 1, "2 names and 3 values", ""),
    ("a, a = x.split(2)\ny = a", 3, 4, "a is assigned twice in one line", ""),
    ("θ.θ = x", 3, 1, "only names are assigned", ""),
    ("M = 5\ny = x", 3, 1, "M is already a dimension", ""),
    ("y = GELU(x)\noutputs = y, q", 4, 14, "q is not defined", ""),
    ("y = x", 3, 1, "output x is not computed", ""),
    ("y = x * 1e400", 3, 9, "too large for a float64", "write inf"),
    ("y = x * (1e300 * 1e300)", 3, 10, "has no value", ""),
    ("y = GELU(x)\noutputs = y, y", 4, 14, "y is an output twice", ""),
    ("precision: tf23\ny = GELU(x)", 3, 12, "there is no precision tf23", "tf32"),
    ("M in (0, 3)\ny = GELU(x)", 3, 6, "listed values are whole numbers", ""),
    ("x + x", 3, 1, "this line assigns nothing", ""),
    ("y = Gather(x, x)", 3, 5, "index must be i32 or i64", ""),
    ("y = Where(x, x, x)", 3, 5, "condition must be a comparison", ""),
    ("y = LayerNorm(x, θ.n, eps=x)", 3, 27, "eps is a small number", ""),
    ("y = GELU(x, 3)", 3, 13, "GELU takes 1 arguments at most", ""),
    ("def f(a):\n    b = GELU(a)\ny = f(x)", 3, 1, "f returns nothing", ""),
    ("def f(a):\n    return f(a)\ny = f(x)", 4, 12, "calls nested deeper than 16", "no recursion"),
    ("é = GELU(x) + GELU(ü)", 3, 20, "ü is not defined", ""),
]


@pytest.mark.parametrize(("line", "row", "column", "reason", "mend"), ERRORS)
def test_an_error_names_line_column_reason_and_what_to_do(
    line: str, row: int, column: int, reason: str, mend: str
) -> None:
    with pytest.raises(SnfError) as caught:
        parse(f"M, N = 4, 6\nx: f32[M, N]\n{line}", "my.snf")
    error = caught.value
    assert (error.line, error.column) == (row, column), str(error)
    assert reason in error.reason
    assert mend in error.mend
    assert str(error).startswith(f"my.snf:{row}:{column}: ")
    if row <= 3 and "syntax" not in reason:
        assert line.split("\n")[0] in str(error)


GROUPED = """B, T, C, H, G = 1, 8, 96, 12, 3
{}
x: f32[B, T, C]
q = Linear(x, H*D, θ.q).reshape(B, T, K, G, D)
k = Linear(x, K*D, θ.k).reshape(B, T, K, 1, D)
y = Permute(q, 0, 2, 3, 1, 4) @ Permute(k, 0, 2, 3, 4, 1)"""


@pytest.mark.parametrize("lines", ["D = C // H\nK = H // G", "K = H // G\nD = C // H"])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ({}, {"K": 4, "G": 3, "D": 8}),
        ({"H": 24}, {"K": 8, "G": 3, "D": 4}),
        ({"G": 6, "C": 192}, {"K": 2, "G": 6, "D": 16}),
        ({"K": 2}, {"K": 2, "G": 3, "D": 16}),
        ({"D": 5}, {"K": 4, "G": 3, "D": 5}),
    ],
)
def test_heads_are_grouped_as_people_write_it(lines: str, shape: dict[str, int], dims: dict[str, int]) -> None:
    """Dimensions that are taken apart twice: C is H·D, and H is G·K."""
    graph = parse_noted(GROUPED.format(lines), shape=shape).graph
    assert {name: graph.sizes[name] for name in dims} == dims


def test_grouped_heads_are_the_same_tasks_however_their_sizes_are_written() -> None:
    free = "B, T, K, G, D = 1, 8, 4, 3, 8\nC = K*G*D\nH = K*G"
    texts = [free + GROUPED.split("{}")[1]]
    texts += [GROUPED.format(lines) for lines in ("D = C // H\nK = H // G", "D = C // H\nK = C // D // G")]
    first, *others = ([t.place for t in decompose(parse(text)).tasks] for text in texts)
    assert [first] * 2 == others


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ("u = 0\ny = Where(x > 0.5, x, u)", "$0"),
        ("u = -1\ny = Maximum(x, u)", "$(-1)"),
        ("p = 2\ny = x ** p", "$2"),
        ("p, q = 2, 5\ny = x * (p + q)", "$7"),
    ],
)
def test_what_is_in_no_shape_is_a_number(lines: str, number: str) -> None:
    graph = parse(f"N = 4\nx: f32[N]\n{lines}")
    assert dict(graph.dims) == {"N": 4}
    assert number in [node.name for node in graph.nodes]


def test_shape_overrides_name_dimensions_that_exist_and_are_free() -> None:
    for shape, reason in [({"Q": 3}, "has no dimension Q"), ({"W": 3}, "W is derived"), ({"C": 47}, "not a multiple")]:
        with pytest.raises(UserError, match=reason):
            parse_noted(DIMS + "W = 2*C\ny = Heads(Linear(h_in, W), 2) * sqrt(D_h)", shape=shape)
    assert dict(parse_noted(DIMS + "y = h_in * D_h", shape={"D_h": 5}).graph.dims) == {"B": 2, "T": 8, "D_h": 5, "H": 3}


HOSTILE = [
    "x: f32[4]\ny = " + "(" * 5000 + "x" + ")" * 5000,
    "x: f32[4]\ny = " + "-" * 9000 + "x",
    "x: f32[4]\ny = " + "x+" * 4000 + "x",
    "N = " + "9" * 8000,
    "N = 10**10**10\nx: f32[N]\ny = GELU(x)",
    "N = 2\nx: f32[N]\nfor i in range(1000000000):\n    x = GELU(x)",
    "N = 2\nx: f32[N]\n" + "".join(f"{' ' * i}for i{i} in range(99):\n" for i in range(15)) + " " * 15 + "x = GELU(x)",
    "N = 2\nx: f32[N]\n"
    + "def f0(a):\n    return GELU(a)\n"
    + "".join(f"def f{i + 1}(a):\n    return f{i}(f{i}(a))\n" for i in range(40))
    + "y = f40(x)",
    "a, b, c, d = 2, 2, 2, 2\nn = " + "*".join(["(a+b+c+d)"] * 30) + "\nx: f32[n]\ny = GELU(x)",
    "N = 1099511627776\nx: f32[N, N, N]\ny = GELU(x)",
    "N = 4\nx: f32[N]\ny = x.split(100000000)",
    "N = 4\ns = sqrt(N)\n" + "s = s * sqrt(s)\n" * 200 + "x: f32[N]\ny = x * s",
    "x: f32[4]\ny = x\x00",
    "z" * 2_000_000,
    "\n".join(["N = 4", "x: f32[N]", *[f"x{i} = GELU(x)" for i in range(60_000)]]),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_hangs_or_explodes(text: str) -> None:
    start = time.process_time()
    with pytest.raises(SnfError) as caught:
        parse(text)
    assert time.process_time() - start < 10
    assert len(str(caught.value)) < 2_000


def test_parsing_and_decomposing_do_not_import_torch() -> None:
    script = (
        "import sys; from knowledge_base.snf import decompose, load_target, targets; "
        "decompose(load_target('gpt2-block').graph); targets(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
