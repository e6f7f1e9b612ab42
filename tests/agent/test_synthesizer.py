"""The synthesizer's files: traced as any candidate, run on the emulator with its sanitizer, held to PyTorch's error."""

from __future__ import annotations

import ast
import ctypes
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.proposers.base import ProposalRequest
from agent.proposers.synthesizer import Synthesizer, synthesize
from evaluator.compile import Compiled, compile_kernels
from evaluator.judging.accuracy import Case, Errors, Failure
from evaluator.judging.admission import POISON_A, POISON_B, poisoned
from evaluator.judging.compare import measure
from evaluator.judging.emulation import emulate
from evaluator.judging.inputs import draw
from evaluator.judging.judgement import judge
from evaluator.judging.oracle import Oracle
from evaluator.judging.rejection import Rejected
from evaluator.kernel import Kernel
from evaluator.suspects import suspects
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Stage, Status, Verdict
from knowledge_base.snf import load_target, parse
from knowledge_base.snf.builder import Builder
from knowledge_base.snf.canonical import canonical
from knowledge_base.snf.decompose import decompose
from knowledge_base.snf.everyday import NAMES, everyday
from knowledge_base.snf.graph import Graph, shape_at
from knowledge_base.snf.reference import run
from knowledge_base.snf.task import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from snf_strategies import (
    attention_texts,
    elementwise_texts,
    epilogue_texts,
    network_texts,
    reduction_texts,
)

CHIP = chip("rtx5070")
ENOUGH = 4096  # elements over which errors are pooled: the ratio of two RMS errors is then good to a few per cent
MOST_SEEDS = 6

# a working day's run is short and always the same; --hypothesis-profile=thorough (tests/conftest.py) looks further
EXAMPLES = (
    settings.get_profile("thorough")
    if settings.get_current_profile_name() == "thorough"
    else settings(
        max_examples=6,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
)


def traced(task: Task, source: str, policy: str = "general") -> Traced | Verdict:
    return trace(source, task, [Request(sizes=task.sizes, axes={}, policy=policy)], CHIP)[0]


def error_of(task: Task, source: str, distribution: str = "normal") -> str:
    """What is wrong with a candidate at the task's sizes; empty if nothing is (or its launch refuses the sizes)."""
    plan = traced(task, source)
    if isinstance(plan, Verdict):
        return "" if plan.status is Status.INFEASIBLE else f"{plan.status}: {plan.message} (line {plan.line})"
    programs = {digest: Kernel.of(bytecode).program for digest, bytecode in plan.kernels.items()}
    dims = {**task.sizes, "num_sms": plan.num_sms}
    pooled: dict[str, Errors] = {}
    for seed in range(MOST_SEEDS):
        inputs = draw(task.graph, task.sizes, distribution, seed)
        reference = list(run(task.graph, inputs, "fp64").values())
        eager = list(run(task.graph, inputs, "eager").values())
        results = []
        for poison in (POISON_A, POISON_B):
            outputs = {t.name: poisoned(shape_at(t.shape, task.sizes), t.dtype, poison.output) for t in task.outputs}
            given = {name: value.clone() for name, value in inputs.items()}
            try:
                findings = emulate(plan.plan, programs, given | outputs, dims, poison=poison)
            except Rejected as rejected:
                return rejected.verdict.message
            if findings:
                return f"{findings[0].kind}: {findings[0].message}"
            if any(
                not torch.equal(given[n].view(torch.uint8), inputs[n].view(torch.uint8))
                for n in inputs
                if inputs[n].ndim
            ):
                return "an input was changed"
            results.append(outputs)
        for t, want, yardstick in zip(task.outputs, reference, eager, strict=True):
            got, again = results[0][t.name], results[1][t.name]
            if not torch.equal(got.nan_to_num(7.0), again.nan_to_num(7.0)):
                return f"{t.name} depends on what memory held before"
            found = measure(Case(t.name, t.dtype, distribution, task.sizes, got, want.reshape(got.shape), yardstick))
            if isinstance(found, Failure):
                return f"{t.name}: {found}"
            pooled[t.name] = pooled.get(t.name, Errors()) + found
        if all(e.count >= ENOUGH for e in pooled.values()):
            break
    return "; ".join(f"{name}: {e}" for name, e in pooled.items() if not e.acceptable)


def errors_of(task: Task, distribution: str = "normal") -> list[str]:
    """What is wrong with the candidates for a task."""
    found = [(c.note, error_of(task, c.source, distribution)) for c in synthesize(task, CHIP)]
    return [f"{note}: {error}" for note, error in found if error]


def task_of(builder: Builder, sizes: dict[str, int], *outputs: str, precision: str = "ieee") -> Task:
    graph = builder.graph(sizes, list(outputs))
    return Task("test", "0" * 64, replace(graph, precision=precision), precision)


ODD = {
    "gelu": {"M": 13, "N": 80},
    "add": {"M": 7, "N": 201},
    "layernorm": {"M": 13, "N": 80},
    "softmax": {"M": 5, "N": 1100},
    "linear": {"M": 70, "N": 200, "K": 33},
    "linear_nobias": {"M": 40, "N": 100, "K": 65},
    "linear_gelu": {"M": 129, "N": 65, "K": 80},
    "linear_residual": {"M": 33, "N": 130, "K": 127},
    "dense": {"M": 70, "N": 200, "K": 33},
    "dense_gelu": {"M": 70, "N": 200, "K": 33},
    "dense_residual": {"M": 70, "N": 200, "K": 33},
    "attention": {"B": 2, "T": 77, "H": 2, "D": 80},
    "attention_qkv": {"B": 1, "T": 65, "H": 3, "D": 32},
    "attention_decode": {"B": 2, "H": 2, "S": 77, "D": 80},
    "embedding": {"B": 2, "T": 13, "V": 50, "P": 20, "C": 80},
}


@pytest.mark.parametrize(
    "text", ["y = Sum(x)", "y = Max(x, axis=0)", "y = Mean(x, keepdims=True)", "y = x - Mean(x, keepdims=True)"]
)
def test_no_file_meets_a_known_fault_of_the_compiler(text: str) -> None:
    (task,) = decompose(parse(f"M, N = 64, 64\nx: bf16[M, N]\n{text}\n", "a.snf"), "v2").tasks
    for candidate in synthesize(task, CHIP):
        plan = traced(task, candidate.source)
        if not isinstance(plan, Verdict):
            answers = compile_kernels(plan.kernels, ["sm_90"])
            evidence = [answer.evidence for answer in answers.values() if isinstance(answer, Compiled)]
            assert evidence
            assert suspects(plan.kernels, evidence) == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_everyday_task_is_right_at_odd_sizes(name: str) -> None:
    assert not errors_of(everyday(name, **ODD[name]))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gelu", {"M": 64, "N": 64}),
        ("layernorm", {"M": 9, "N": 768}),
        ("attention", {"B": 1, "T": 128, "H": 2, "D": 64}),
    ],
)
def test_where_it_pays_a_second_file_is_specialised_and_right_at_its_sizes(name: str, sizes: dict[str, int]) -> None:
    task = everyday(name, **sizes)
    general, special = synthesize(task, CHIP)
    assert isinstance(traced(task, special.source), Traced)
    assert error_of(task, special.source) == ""
    odd = task.at(**ODD[name])
    refused = traced(odd, special.source)
    assert isinstance(refused, Verdict)
    assert refused.status is Status.INFEASIBLE
    assert isinstance(traced(odd, general.source), Traced)


def rope(dtype: str, T: int, D: int, heads: tuple[str, ...] = ("H",)) -> Task:
    b = Builder()
    x, (cos, sin) = b.input("x", dtype, (*heads, "T", "D")), [b.input(name, dtype, ("T", "D")) for name in ("c", "s")]
    sizes = dict(zip(heads, (3, 2), strict=False)) | {"T": T, "D": D}
    return task_of(b, sizes, b.node("rope", [x, cos, sin]).name)


@pytest.mark.parametrize("heads", [(), ("H",), ("B", "H")], ids=len)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_rotary_embeddings_read_the_halves_of_a_row_as_tiles(dtype: str, heads: tuple[str, ...]) -> None:
    task = rope(dtype, 64, 128, heads)
    general, special = synthesize(task, CHIP)
    assert "ct.gather" in general.source
    assert "ct.gather" not in special.source
    assert special.source.count("ct.load(x") == 2
    assert not errors_of(task)
    refused = traced(rope(dtype, 64, 64, heads), special.source)
    assert isinstance(refused, Verdict)
    assert refused.status is Status.INFEASIBLE
    assert not errors_of(rope(dtype, 65, 64, heads))  # rows that no tile divides
    assert len(synthesize(rope(dtype, 64, 20, heads), CHIP)) == 1  # halves of 10: no tile
    assert not errors_of(rope(dtype, 5, 20, heads))


@pytest.mark.parametrize("task", [everyday("layernorm", M=1500, N=96), rope("bf16", 96, 32, ("B", "H"))], ids=str)
def test_persistent_blocks_walk_through_all_rows(task: Task) -> None:
    """On two multiprocessors, so that each block has several tiles."""
    (source,) = [c.source for c in synthesize(task, CHIP) if "ct.num_blocks" in c.source]
    few = source.replace("num_sms=None):", "num_sms=None):\n    num_sms = 2", 1)
    assert few != source
    assert not error_of(task, few)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("x: bf16[M, N, K]\nw: weight.bf16[N, K]\ny = x * w", {"M": 70000, "N": 3, "K": 8}),  # by tiles
        ("x: bf16[M, N, K]\nw: weight.bf16[N, K]\ny = x * w", {"M": 70000, "N": 2, "K": 128}),  # by whole rows
        ("x: bf16[M, N, K]\nw: weight.bf16[M, N, 1]\ny = Softmax(x) * w", {"M": 70000, "N": 3, "K": 8}),
    ],
    ids=["tiles", "pieces", "rows"],
)
def test_there_may_be_more_matrices_than_blocks_along_the_grids_second_axis(text: str, sizes: dict[str, int]) -> None:
    task = decompose(parse(f"M, N, K = {', '.join(map(str, sizes.values()))}\n{text}\n"), "v2").tasks[0]
    small = task.at(**{d: min(n, 80) if n == max(task.sizes.values()) else n for d, n in task.sizes.items()})
    found = synthesize(task)
    assert found
    for proposal in found:
        for axes in ({}, {"PERSISTENT": 0} if "PERSISTENT" in proposal.source else {}):
            (plan,) = trace(proposal.source, task, [Request(task.sizes, axes)], CHIP)
            assert isinstance(plan, Traced) or plan.status is Status.INFEASIBLE, plan
        assert error_of(small, proposal.source) == ""


def activations(dtype: str, *more: str) -> Task:
    """Of each a result in ``dtype``, and one in each of ``more``."""
    b = Builder()
    x, z = b.input("x", dtype, ("M", "N")), b.input("z", dtype, ("M", "N"))
    outputs = [b.node("gelu", [x], approximate="tanh"), *(b.node(op, [x]) for op in ("silu", "sigmoid", "tanh", "exp"))]
    outputs += [b.node("sqrt", [b.node("abs", [x])]), b.node("div", [x, z])]
    outputs += [b.node("cast", [x], dtype=other) for other in more]
    return task_of(b, {"M": 65, "N": 130}, *(o.name for o in outputs))


def test_the_hardware_approximates_where_16_bits_are_kept_and_nowhere_else() -> None:
    coarse = synthesize(activations("bf16"), CHIP)[0].source
    assert coarse.count("RoundingMode.APPROX") == 6
    assert coarse.count("RoundingMode.FULL") == 1
    for task in (activations("f32"), activations("bf16", "f32"), activations("bf16", "i32")):
        assert "RoundingMode" not in synthesize(task, CHIP)[0].source
    assert "RoundingMode" not in synthesize(activations("bf16"), CHIP, approximate=False)[0].source
    for dtype in ("bf16", "f16"):
        assert not errors_of(activations(dtype))
        assert not errors_of(activations(dtype), "special")
    assert error_of(activations("f32"), coarse)  # and there the judge sees it


def test_where_an_approximation_was_rejected_the_synthesizer_offers_an_accurate_file() -> None:
    task = activations("bf16")
    request = ProposalRequest(task, CHIP)
    first = Synthesizer().propose(request).proposals
    wrong = Verdict(status=Status.WRONG, stage=Stage.COMPARE, error_class="imprecise", message="too coarse")
    tried = tuple(begin(p.candidate, task, CHIP).fuller(verdict=wrong) for p in first)
    again = Synthesizer().propose(replace(request, tried=tried))
    assert again.proposals
    assert all("RoundingMode" not in p.candidate.source for p in again.proposals)
    rest = (*tried, *(begin(p.candidate, task, CHIP).fuller(verdict=wrong) for p in again.proposals))
    assert not Synthesizer().propose(replace(request, tried=rest)).proposals


def product_of(text: str, dtype: str, M: int, N: int, K: int, precision: str = "ieee") -> Task:
    """The task of a line of SNF over x, w, v, b, r, and t, which is w turned round."""
    shapes = {"x": "[M, K]", "w": "[N, K]", "v": "[N, K]", "t": "[K, N]", "b": "[N]", "r": "[M, N]"}
    inputs = [f"{name}: {dtype}{shape}\n" for name, shape in shapes.items() if name in re.findall("[a-z]+", text)]
    return canonical(parse(f"precision: {precision}\nM, N, K = {M}, {N}, {K}\n{''.join(inputs)}{text}"))


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("y = Linear(x, w, b) + r", "bf16"),
        ("y = GELU(x @ w.T)", "f16"),
        ("y = SiLU(x @ w.T) * (x @ v.T)", "bf16"),
        ("y = Softmax(x * x) @ w.T", "f32"),
    ],
)
def test_a_product_of_few_rows_is_offered_as_sums_along_rows(text: str, dtype: str) -> None:
    task = partial(product_of, text, dtype)
    sums = [one for one in synthesize(task(1, 96, 96), CHIP) if "sums along rows" in one.note]
    assert len(sums) == 2
    assert all("ct.mma" not in one.source for one in sums)
    assert [error_of(task(1, 96, 96), one.source) for one in sums] == ["", ""]
    for sizes in ((5, 33, 77), (3, 130, 1)):
        assert error_of(task(*sizes), sums[0].source) == "", sizes


@pytest.mark.parametrize(
    ("text", "dtype", "unit"),
    [
        ("y = Linear(x, w, b) + r", "bf16", 8),
        ("y = GELU(x @ w.T)", "f16", 8),
        ("y = SiLU(x @ w.T) * (x @ v.T)", "bf16", 8),
        ("y = x @ t", "f32", 4),
    ],
)
def test_rows_that_begin_unaligned_are_offered_class_by_class(text: str, dtype: str, unit: int) -> None:
    task = partial(product_of, text, dtype, precision="tf32" if dtype == "f32" else "ieee")

    def special(odd: int) -> str:
        (source,) = [c.source for c in synthesize(task(512 * unit, 1024 + odd, 64), CHIP) if "begin alike" in c.note]
        return source

    for odd in range(1, unit, 3 if "+ r" in text else unit):
        assert error_of(task(8 * unit, 64 + odd, 33), special(odd)) == ""
    least = task(unit, 2 * unit + 1, 8)
    assert isinstance(traced(least, special(1)), Traced)
    assert error_of(least, special(1)) == ""
    for sizes in ((9 * unit - 1, 65, 33), (8 * unit, unit + 1, 33), (8 * unit, 64, 33), (8 * unit, 66, 33)):
        refused = traced(task(*sizes), special(1))
        assert isinstance(refused, Verdict)
        assert refused.status is Status.INFEASIBLE
    for sizes in ((8192, 1024, 64), (511 * unit, 1025, 64), (8193, 1025, 64)):  # aligned, too few rows, or one too many
        assert not [one for one in synthesize(task(*sizes), CHIP) if "begin alike" in one.note]


@pytest.mark.parametrize(
    "text",
    [
        "x: bf16[B, M, K]\nw: weight.bf16[B, K, N]\ny = x @ w",  # a launch has one matrix
        "x: bf16[M, K]\nw: weight.bf16[N, K]\ny = x @ w.T + Range(N)",  # a column that knows its number
        "x: bf16[M, K]\ny = x @ x.T",  # a slice of rows would be one of columns, too
        "x: bf16[M, K]\nw: weight.bf16[N, K]\ny = Softmax(x @ w.T)",  # more than one kernel
    ],
)
def test_other_products_are_not_cut_into_classes_of_rows(text: str) -> None:
    sizes = [f"{name} = {size}\n" for name, size in (("B", 2), ("M", 8192), ("N", 2049), ("K", 64)) if name in text]
    assert not [c for c in synthesize(canonical(parse("".join(sizes) + text)), CHIP) if "begin alike" in c.note]


def test_a_linear_has_one_file_whatever_divides_its_sizes() -> None:
    assert len(synthesize(everyday("linear_gelu", M=256, N=128, K=128), CHIP)) == 1


@pytest.mark.parametrize(
    ("dtype", "distribution"),
    [("bf16", "offset"), ("bf16", "extreme"), ("bf16", "cancelling"), ("f32", "offset"), ("f32", "extreme")],
)
def test_norms_keep_their_digits_on_hard_inputs(dtype: str, distribution: str) -> None:
    b = Builder()
    x = b.input("x", dtype, ("M", "N"))
    weight, bias = b.input("weight", dtype, ("N",), "weight"), b.input("bias", dtype, ("N",), "weight")
    outputs = [b.node("layernorm", [x, weight, bias]), b.node("var", [x]), b.node("softmax", [x])]
    assert not errors_of(task_of(b, {"M": 17, "N": 700}, *(o.name for o in outputs)), distribution)


def test_elementwise_ops_put_nan_and_infinities_where_pytorch_puts_them() -> None:
    b = Builder()
    x, y = b.input("x", "f32", ("M", "N")), b.input("y", "f32", ("M", "N"))
    unary = ["neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "silu", "relu", "square"]
    outputs = [b.node(op, [x]) for op in unary]
    outputs += [b.node("gelu", [x], approximate=form) for form in ("tanh", "none")]
    outputs += [b.node(op, [x, y]) for op in ("add", "mul", "div", "minimum", "maximum", "lt", "eq", "ne")]
    outputs.append(b.node("where", [b.node("ge", [x, y]), x, b.const(0.5)]))
    outputs += [b.node("pow", [x, b.const(p)]) for p in (2, 3.0, -1.0)]
    assert not errors_of(task_of(b, {"M": 65, "N": 33}, *(o.name for o in outputs)), "special")


@pytest.mark.parametrize(
    "text",
    [
        "y = LayerNorm(x, θ.ln)",
        "y = Softmax(x * 0.1 + w) * 3.3 + tanh(x) / (1.7 + exp(-x))",
        "y = GELU(x) - 1e-3",
    ],
)
def test_constants_keep_their_bits_in_float64(text: str, oracle: Oracle) -> None:
    """cuTile makes a float32 of a number in Python, also where it meets float64."""
    task = canonical(parse(f"M, N = 40, 64\nx: f64[M, N]\nw: f64[N]\n{text}"))
    (general, *_) = synthesize(task, CHIP)
    verdict = judge(begin(general, task, CHIP), task, CHIP, seed=3, oracle=oracle).verdict
    assert verdict is not None
    assert verdict.correct, verdict.message


@pytest.mark.parametrize("text", ["y = Softmax(x @ x.T / sqrt(N)) @ x", "y = Softmax(x @ x.T * 0.3 + Mask_Causal) @ x"])
def test_no_number_of_a_float64_kernel_needs_more_than_float32(text: str) -> None:
    """Attention's, which takes long to assemble."""
    for one in synthesize(canonical(parse(f"M, N = 40, 64\nx: f64[M, N]\n{text}")), CHIP):
        numbers = [n.value for n in ast.walk(ast.parse(one.source)) if isinstance(n, ast.Constant)]
        assert [x for x in numbers if isinstance(x, float) and ctypes.c_float(x).value != x] == []
        assert "ct.exp2(" in one.source


def test_more_elements_than_32_bits_count_are_no_single_row() -> None:
    task = everyday("gelu", M=2**16, N=2**16)
    (plan, *_) = [traced(task, one.source, "sample") for one in synthesize(task, CHIP)]
    assert isinstance(plan, Traced), plan


def test_integers_stay_integers_and_divide_as_floats() -> None:
    b = Builder()
    x, n = b.input("x", "i32", ("M", "N")), b.node("iota", [], n="N")
    shifted = b.node("add", [x, n])
    outputs = [
        shifted,
        b.node("mul", [shifted, b.const(3)]),
        b.node("div", [x, b.const(7)]),
        b.node("sum", [x]),
        b.node("max", [x], axis=-2, keepdims=True),
        b.node("cast", [b.node("mul", [n, b.const(0.5)])], dtype="i32"),
        b.node("where", [b.node("lt", [n, x]), x, n]),
    ]
    assert not errors_of(task_of(b, {"M": 9, "N": 70}, *(o.name for o in outputs)))


def test_parts_of_the_last_axis_and_heads_are_read_where_they_lie() -> None:
    b = Builder()
    x = b.input("x", "bf16", ("B", "M", ("*", 3, ("*", "H", "D"))))
    parts = [b.node("heads", [b.node("split", [x], parts=3, index=i)], n="H") for i in range(3)]
    mixed = b.node("add", [b.node("mul", [parts[0], parts[1]]), parts[2]])
    task = task_of(b, {"B": 2, "M": 19, "H": 3, "D": 10}, b.node("merge", [mixed]).name, mixed.name)
    assert not errors_of(task)
    assert "torch.empty" not in synthesize(task)[0].source


def test_copies_concatenations_turns_and_look_ups_are_right() -> None:
    b = Builder()
    x = b.input("x", "bf16", ("B", "M", "N"))
    cos, sin = b.input("cos", "bf16", ("M", "N")), b.input("sin", "bf16", ("M", "N"))
    table, index = b.input("table", "f32", ("V", "N"), "weight"), b.input("index", "i64", ("B", "M"))
    turned = b.node("rope", [x, cos, sin])
    joined = b.node("concat", [x, turned, x], axis=-2)
    outputs = [
        b.node("permute", [x], perm=(2, 0, 1)),
        b.node("merge", [b.node("relu", [x])]),
        turned,
        b.node("mul", [joined, b.const(0.5)]),
        b.node("reshape", [b.node("permute", [x], perm=(0, 2, 1))], shape=("B", ("*", "M", "N"))),
        b.node("select", [joined], axis=1, index=0),
        b.node("relu", [b.node("gather", [table, index])]),
        b.node("mean", [b.node("gather", [table, index])], axis=-2),
    ]
    assert not errors_of(task_of(b, {"B": 2, "M": 19, "N": 34, "V": 11}, *(o.name for o in outputs)))


def attention(
    dtype: str, sizes: dict[str, int], causal: bool = True, mask: bool = False, precision: str = "ieee"
) -> Task:
    b = Builder()
    q, k, v = (
        b.input(name, dtype, ("B", "H", rows, width))
        for name, rows, width in (("q", "T", "D"), ("k", "S", "D"), ("v", "S", "E"))
    )
    scores = b.node("mul", [b.node("matmul", [q, b.node("permute", [k], perm=(0, 1, 3, 2))]), b.const(0.2)])
    if mask:
        scores = b.node("add", [b.node("tanh", [scores]), b.input("mask", dtype, ("T", "S"))])
    if causal:
        scores = b.node("add", [scores, b.node("causal_mask", [scores])])
    out = b.node("permute", [b.node("matmul", [b.node("softmax", [scores]), v])], perm=(0, 2, 1, 3))
    return task_of(b, sizes, out.name, precision=precision)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (33, 130), (1, 65), (80, 20)])
def test_attention_is_right_for_any_lengths_also_where_a_query_sees_no_key(dtype: str, queries: int, keys: int) -> None:
    task = attention(dtype, {"B": 2, "H": 2, "T": queries, "S": keys, "D": 80, "E": 24})
    assert not errors_of(task)
    assert "torch.empty" not in synthesize(task)[0].source


@pytest.mark.parametrize(("causal", "mask"), [(False, False), (False, True), (True, True)])
def test_attention_takes_any_elementwise_scores(causal: bool, mask: bool) -> None:
    task = attention("f16", {"B": 1, "H": 3, "T": 50, "S": 65, "D": 32, "E": 32}, causal, mask)
    assert not errors_of(task)
    assert "torch.empty" not in synthesize(task)[0].source


@pytest.mark.parametrize("seen", ["Range(S) <= n", "n >= Range(S)", "Range(S) < n", "n > Range(S)"])
@pytest.mark.parametrize(("rows", "dtype", "number"), [("1", "bf16", "i64"), ("T", "bf16", "i32"), ("1", "f32", "i32")])
def test_keys_that_a_number_hides_are_not_walked(seen: str, rows: str, dtype: str, number: str) -> None:
    text = f"""
B, H, T, S, D = 2, 2, 70, 90, 32
q: {dtype}[B, H, {rows}, D]
k: {dtype}[B, H, S, D]
v: {dtype}[B, H, S, D]
given: {number}[B]
n = given.reshape(B, 1, 1, 1)
y = Softmax(Where({seen}, q @ k.T * 0.2{" + Mask_Causal" if rows == "T" else ""}, -inf)) @ v
"""
    (task,) = decompose(parse(text), "v2").tasks
    files = synthesize(task)
    assert all("// TN" in one.source.split("seen = ct.astype(")[1] for one in files)
    assert not errors_of(task)


def test_tf32_rounds_operands_and_ieee_does_not() -> None:
    sizes = {"B": 1, "H": 2, "T": 33, "S": 40, "D": 64, "E": 64}
    for precision in ("tf32", "ieee"):
        task = attention("f32", sizes, precision=precision)
        assert ("tfloat32" in synthesize(task)[0].source) == (precision == "tf32")
        assert not errors_of(task)


SWIGLU = """
T, C, F = 4096, 4096, 14336
x: bf16[T, C]
y = SiLU(Linear(x, F, θ.gate, bias=False)) * Linear(x, F, θ.up, bias=False)
"""


@pytest.mark.parametrize("dtype", ["bf16", "f32", "tf32"])
@pytest.mark.parametrize("parted", [False, True])
def test_two_products_of_one_operand_are_one_kernel_or_two_and_right(dtype: str, parted: bool) -> None:
    products = "Linear(x, 2*F, θ.p).split(2)" if parted else "Linear(x, F, θ.p), Linear(x, F, θ.q, bias=False)"
    head = f"T, C, F = 131, 67, 130\nx: {dtype.replace('t', '')}[T, C]\n"
    tail = "\nprecision: tf32" if dtype == "tf32" else ""
    (task,) = decompose(parse(f"{head}g, u = {products}\ny = SiLU(g) * u{tail}"), "v2").tasks
    files = synthesize(task, CHIP)
    assert [file.source.count("ct.launch(") for file in files] == [1, 2]
    assert [file.source.count("torch.empty(") for file in files] == [0, 1]
    assert not errors_of(task)


MLP = """
T, C = 200, 80
x: bf16[T, C]
n = RMSNorm(x, θ.norm)
h = square(ReLU(Linear(n, 4*C, θ.up, bias=False)))
y = x + Linear(h, C, θ.down, bias=False)
"""


@pytest.mark.parametrize("plan", ["v1", "v2"])
def test_a_users_own_network_is_right_task_by_task(plan: str) -> None:
    for task in decompose(parse(MLP, "mlp"), plan).tasks:
        assert not errors_of(task), task.name


def plain_names(graph: Graph) -> Graph:
    """The graph with parameters called by identifiers, as a task's are."""

    def plain(name: str) -> str:
        return name.replace("θ.", "p_").replace(".", "_")

    inputs = tuple(replace(t, name=plain(t.name)) for t in graph.inputs)
    nodes = tuple(replace(n, args=tuple(plain(a) if a.startswith("θ") else a for a in n.args)) for n in graph.nodes)
    return replace(graph, inputs=inputs, nodes=nodes)


def check_tasks(text: str) -> None:
    for task in decompose(parse(text, "drawn"), "v2").tasks:
        assert not errors_of(task), task.name


ATTENTION = "B, H, T, D = 2, 3, 50, 16\nq: bf16[B, H, T, D]\nk: bf16[B, H, T, D]\nv: bf16[B, H, T, D]\n"
APART = "far = Range(T).reshape(T, 1) - Range(T).reshape(1, T)\n"
PIECES = {
    "sliding window with soft cap": f"{ATTENTION}{APART}s = 50.0 * tanh(q @ k.T / sqrt(D) / 50.0)\n"
    "y = Softmax(Where(far < 20, s, -inf) + Mask_Causal) @ v",
    "ALiBi": f"{ATTENTION}m: f32[H, 1, 1]\n{APART}y = Merge(Softmax(q @ k.T / sqrt(D) - m * far + Mask_Causal) @ v)",
    "latent attention": "B, H, T, D, R = 1, 2, 40, 16, 8\nq: bf16[B, H, T, D]\nk: bf16[B, H, T, D]\n"
    "r: bf16[B, H, T, R]\ns: bf16[B, 1, T, R]\ny = Softmax((q @ k.T + r @ s.T) / sqrt(D + R) + Mask_Causal) @ k",
    "router": "M, C, E = 33, 40, 8\nx: bf16[M, C]\np = Softmax(Cast(Linear(x, E, θ.g, bias=False), f32))\n"
    "rest = Where(p == Max(p, keepdims=True), 0.0, p)\nkept = Where(p >= Max(rest, keepdims=True), p, 0.0)\n"
    "y = kept / Sum(kept, keepdims=True)",
    "causal convolution": "T, C, K = 30, 70, 3\nx: f32[T + K - 1, C]\nw: weight.f32[K, C]\ni = Range(T)\n"
    "z = Gather(x, i) * Select(w, 0, 0) + Gather(x, i + 1) * Select(w, 0, 1) + Gather(x, i + 2) * Select(w, 0, 2)\n"
    "y = SiLU(z)",
    "cross entropy with label smoothing": "N, V = 9, 100\nx: bf16[N, V]\nt: i64[N]\nl = Cast(x, f32)\n"
    "top = Max(l, keepdims=True)\nlse = log(Sum(exp(l - top), keepdims=True)) + top\n"
    "hit = Sum(Where(Range(V).reshape(1, V) == t.reshape(N, 1), l, 0.0))\n"
    "y = Where(t == -100, 0.0, lse.reshape(N) - 0.9 * hit - 0.1 * Mean(l))",
    "group norm": "B, G, D, S = 2, 3, 4, 20\nx: f32[B, G, D*S]\nw: weight.f32[G, D, 1]\nb: weight.f32[G, D, 1]\n"
    "mu = Mean(x, keepdims=True)\nv = Mean(square(x - mu), keepdims=True)\n"
    "y = ((x - mu) * rsqrt(v + 1e-5)).reshape(B, G, D, S) * w + b",
    "patches": "B, H, W, P, E = 2, 3, 2, 4, 24\nx: bf16[B, 3, H*P, W*P]\n"
    "y = Linear(Permute(x.reshape(B, 3, H, P, W, P), 0, 2, 4, 1, 3, 5).reshape(B, H*W, 3*P*P), E, θ.p)",
    "projections": "M, C, H, K, D = 100, 96, 4, 2, 40\nx: f32[M, C]\n"
    "outputs = GELU(Linear(x, H*D, θ.q)), Linear(x, K*D, θ.k), Linear(x, 1, θ.v, bias=False)",
    "projections of matrices": "B, T, C, D = 3, 30, 48, 20\nx: bf16[B, T, C]\nw: bf16[B, C, D]\nu: bf16[B, C, 2*D]\n"
    "outputs = x @ w, x @ u",
    "adaptive layernorm": "B, T, C = 2, 7, 70\nx: bf16[B, T, C]\nd: bf16[B, 1, C]\ns: bf16[B, 1, C]\n"
    "y = (x - Mean(x, keepdims=True)) * rsqrt(Var(x, keepdims=True) + 1e-6) * (1.0 + s) + d",
}


@pytest.mark.parametrize("piece", PIECES)
def test_pieces_of_real_models_have_right_kernels(piece: str) -> None:
    check_tasks(PIECES[piece])


def test_what_masks_attention_by_position_is_part_of_its_kernel() -> None:
    for piece in ("sliding window with soft cap", "ALiBi"):
        (task,) = decompose(parse(PIECES[piece])).tasks
        assert launches(task) == 1


def test_products_of_one_operand_are_one_launch_with_a_file_beside_it_that_has_one_each() -> None:
    for piece, count in (("projections", 3), ("projections of matrices", 2)):
        (task,) = decompose(parse(PIECES[piece])).tasks
        candidates = synthesize(task, CHIP)
        assert [c.source.count("ct.launch(") for c in candidates] == [1, count]


@pytest.mark.parametrize("text", ["y = Softmax(x * 1.7)", "a = square(x)\ny = exp(a - Max(a, keepdims=True))"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_largest_of_a_row_of_products_is_zero_below_itself(text: str, dtype: str) -> None:
    """Squares of 1e5 have roundings of 512: as one multiply-add a number lies that far from its own maximum."""
    task = canonical(parse(f"M, N = 5, 70\nx: {dtype}[M, N]\n{text}"))
    for candidate in synthesize(task, CHIP):
        traced_plan = traced(task, candidate.source)
        assert isinstance(traced_plan, Traced)
        inputs = {n: (1e5 * v.double()).to(v.dtype) for n, v in draw(task.graph, task.sizes, "normal", 0).items()}
        (want,) = run(task.graph, inputs, "fp64").values()
        y = torch.empty_like(want, dtype=inputs["x"].dtype)
        programs = {digest: Kernel.of(code).program for digest, code in traced_plan.kernels.items()}
        emulate(traced_plan.plan, programs, inputs | {"y": y}, {**task.sizes, "num_sms": traced_plan.num_sms})
        torch.testing.assert_close(y.double(), want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "value", ["x - m", "square(x - m)", "abs(m) * x + m", "e - x", "(x + e) * r", "x + r", "x * m"]
)
@pytest.mark.parametrize("reduction", ["Sum({})", "({}) @ w"])
def test_padding_counts_for_nothing_under_operands_of_one_row_column_or_element(value: str, reduction: str) -> None:
    """Beyond a row's end x is 0, and x - m is not."""
    inputs = "M, N = 13, 80\nx: f32[M, N]\nm: f32[M, 1]\nr: f32[1, N]\ne: f32[1, 1]\nw: f32[N, 9]"
    graph = parse(f"{inputs}\ny = {reduction.format(value)}")
    used = {t.name for t in graph.inputs if any(t.name in n.args for n in graph.nodes)}
    graph = replace(graph, inputs=tuple(t for t in graph.inputs if t.name in used))
    assert not errors_of(Task("drawn", "0" * 64, graph))


@EXAMPLES
@given(elementwise_texts())
def test_any_elementwise_graph_is_right(text: str) -> None:
    check_tasks(text)


@EXAMPLES
@given(reduction_texts())
def test_any_reduction_with_what_surrounds_it_is_right(text: str) -> None:
    check_tasks(text)


@EXAMPLES
@given(epilogue_texts())
def test_any_matmul_with_any_epilogue_is_right(text: str) -> None:
    check_tasks(text)


@EXAMPLES
@given(attention_texts(130))
def test_any_attention_is_right(text: str) -> None:
    check_tasks(text)


@settings(EXAMPLES, max_examples=4)
@given(network_texts())
def test_a_whole_network_as_one_task_becomes_several_launches_and_is_right(text: str) -> None:
    # with its sizes as numbers: no tensor of such a network tells how wide a head is
    sizes = parse(text, "drawn").sizes
    sizes["C"] = sizes["H"] * sizes["D"]
    lines = [re.sub(r"(?<!\.)\b[BTHDC]\b", lambda name: str(sizes[name[0]]), line) for line in text.splitlines()[2:]]
    graph = plain_names(parse("\n".join(lines), "drawn"))
    assert not errors_of(Task("network", "0" * 64, graph, graph.precision))


# ---------------------------------------------------------------------------------------------------- structure


def launches(task: Task) -> int:
    return synthesize(task)[0].source.count("ct.launch(")


def test_what_belongs_together_is_one_launch() -> None:
    b = Builder()
    x, w = b.input("x", "bf16", ("M", "K")), b.input("w", "bf16", ("N", "K"), "weight")
    r = b.input("r", "bf16", ("M", "N"))
    h = b.node("mul", [b.node("silu", [b.node("linear", [x, w])]), b.node("square", [r])])
    fused = task_of(b, {"M": 20, "K": 30, "N": 40}, h.name)
    assert launches(fused) == 1
    assert launches(everyday("attention")) == 1
    norms = b.node("softmax", [b.node("rmsnorm", [r, b.input("g", "bf16", ("N",), "weight")])])
    assert launches(task_of(b, {"M": 20, "N": 40}, norms.name)) == 1


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b-block"])
def test_every_axis_reaches_a_kernel(name: str) -> None:
    for task in decompose(load_target(name).graph, "v2").tasks:
        for product in ("h200", "b200", "rtx5070"):
            for file in synthesize(task, chip(product)):
                names = re.findall(r"\w+", file.source[file.source.index("num_sms=None") :])
                axes = ast.literal_eval(file.source.split("AXES = ")[1].split("\n")[0])
                assert [axis for axis in axes if axis not in names] == [], task.name


def test_what_cannot_fuse_goes_through_a_workspace() -> None:
    b = Builder()
    x, w = b.input("x", "bf16", ("M", "K")), b.input("w", "bf16", ("N", "K"), "weight")
    task = task_of(b, {"M": 20, "K": 30, "N": 40}, b.node("softmax", [b.node("linear", [x, w])]).name)
    source = synthesize(task)[0].source
    assert launches(task) == 2
    assert source.count("torch.empty") == 1
    assert not errors_of(task)


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("attention")])
def test_the_general_file_has_one_plan_for_every_size(name: str) -> None:
    plan = traced(everyday(name), synthesize(everyday(name), CHIP)[0].source)
    assert isinstance(plan, Traced)
    for sizes in (ODD[name], dict.fromkeys(ODD[name], 1)):
        assert plan.plan.applies({**sizes, "num_sms": 48})


def test_a_product_of_one_row_may_lose_it() -> None:
    b = Builder()
    x, w = b.input("x", "bf16", (1, "K")), b.input("w", "bf16", ("K", "N"), "weight")
    row = b.node("select", [b.node("matmul", [x, w])], axis=0, index=0)
    vector = b.node("linear", [b.node("relu", [row]), b.input("v", "bf16", ("M", "N"), "weight")])
    assert not errors_of(task_of(b, {"K": 33, "N": 70, "M": 20}, row.name, vector.name))


def test_names_that_a_kernel_needs_for_itself_are_given_way() -> None:
    b = Builder()
    acc, tile = b.input("acc", "f32", ("TM", "p")), b.input("tile", "f32", ("i", "p"), "weight")
    gelu = b.node("gelu", [b.node("linear", [acc, tile], "step")], "top")
    assert not errors_of(task_of(b, {"TM": 9, "p": 17, "i": 5}, gelu.name))


def test_a_size_that_no_array_tells_is_an_argument_of_launch() -> None:
    b = Builder()
    x = b.input("x", "f32", ("M",))
    task = task_of(b, {"M": 4, "D": 64}, b.node("mul", [x, b.dim("D")]).name)
    assert task.size_arguments == ("D",)
    (file,) = synthesize(task)
    assert "def launch(stream, x, y, D, *," in file.source
    assert not errors_of(task)


def test_a_size_is_read_off_a_product_or_a_sum_of_sizes() -> None:
    b = Builder()
    x, rows = b.input("x", "f32", (("*", "H", "D"), ("+", "S", "T"))), b.input("s", "f32", ("S",))
    heads = b.input("h", "f32", ("H",))
    scaled = b.node("mul", [x, b.node("add", [b.dim("D"), b.dim("T")])], "scaled")
    total = b.node("add", [b.node("sum", [rows]), b.node("sum", [heads])], "total")
    task = task_of(b, {"H": 3, "D": 5, "S": 7, "T": 4}, b.node("add", [scaled, total]).name)
    assert not task.size_arguments
    source = synthesize(task)[0].source
    assert "D = x.shape[0] // H" in source
    assert "T = x.shape[1] - S" in source
    assert not errors_of(task)


def test_the_same_task_gives_the_same_text() -> None:
    assert [c.source for c in synthesize(everyday("attention"))] == [
        c.source for c in synthesize(everyday("attention"))
    ]


def test_the_proposer_has_all_its_ideas_at_once() -> None:
    task = everyday("layernorm")
    first = Synthesizer().propose(ProposalRequest(task, CHIP))
    assert [proposal.candidate.task for proposal in first.proposals] == [task.identity] * 2
    tried = tuple(begin(proposal.candidate, task, CHIP) for proposal in first.proposals)
    assert Synthesizer().propose(ProposalRequest(task, CHIP, known=tried)) == first
    assert Synthesizer().propose(ProposalRequest(task, CHIP, tried=tried[:1])).proposals == first.proposals[1:]
    assert Synthesizer().propose(ProposalRequest(task, CHIP, tried=tried)).over


CHIPS_OF = {"sm_90": "h200", "sm_100": "b200", "sm_120": "rtx5070"}


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        *(("sm_90", name) for name in ("layernorm", "linear", "linear_residual", "attention", "swiglu")),
        *(("sm_100", name) for name in ("linear", "attention")),
        *(("sm_120", name) for name in ("attention", "swiglu")),
    ],
)
def test_defaults_do_not_spill(arch: str, name: str) -> None:
    task = everyday(name) if name in NAMES else decompose(parse(SWIGLU), "v2").tasks[0]
    source = synthesize(task, chip(CHIPS_OF[arch]))[0].source
    kernels: dict[str, bytes] = {}
    for policy in ("general", "sample"):
        plan = traced(task, source, policy)
        assert isinstance(plan, Traced)
        kernels |= plan.kernels
    for answer in compile_kernels(kernels, [arch], jobs=2).values():
        assert not isinstance(answer, Verdict), answer.message
        assert answer.evidence.spill_bytes == 0
        assert answer.evidence.mma != "" or name == "layernorm"


@given(st.integers(1, 5000))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_row_is_cut_into_powers_of_two_that_cover_it(n: int) -> None:
    from agent.proposers.synthesizer.variants import pieces

    cut = pieces(n)
    assert cut is not None
    assert all(c.width & (c.width - 1) == 0 and c.offset % c.width == 0 for c in cut)
    assert [c.offset for c in cut] == [sum(c.width for c in cut[:i]) for i in range(len(cut))]
    assert sum(c.width for c in cut) >= n
    assert (sum(c.width for c in cut) == n) == cut[0].exact or n == cut[0].width
