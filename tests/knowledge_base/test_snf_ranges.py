"""Where whole numbers lie: what an interval says is true of every value, and indices are held to their tables."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.judging.inputs import distributions, draw
from evaluator.judging.sizes import judged_sizes
from kernels_generated.runtime.expr import evaluate
from knowledge_base.snf import parse, reference
from knowledge_base.snf.canonical import canonical
from knowledge_base.snf.errors import SnfError
from knowledge_base.snf.graph import Graph
from knowledge_base.snf.ranges import interval
from knowledge_base.snf.task import constraints

HEAD = "P, T, C = 9, 4, 3\nw: f32[P, C]\nt: i64[T]\nu: i64[T]\n"
STEPS = ("{} + {}", "{} - {}", "{} * {}", "Minimum({}, {})", "Maximum({}, {})", "Where(t > u, {}, {})",
         "-{}", "abs({})", "square({})", "ReLU({})", "Cast({}, i32)", "Where({} <= {}, t, u)", "Where({} == 3, {}, t)",
         "Where({} != {}, u, t)", "Where({} > {}, 1, t)")  # fmt: skip


@st.composite
def whole_numbers(draw: st.DrawFn) -> str:
    """Arithmetic on integers: inputs, positions, sizes, numbers."""
    lines, values = [], ["t", "u", "Range(T)"]
    for i in range(draw(st.integers(1, 5))):
        left, right = draw(st.sampled_from(values)), draw(st.sampled_from([*values, "P", "T - 1", "2", "0"]))
        lines.append(f"v{i} = {draw(st.sampled_from(STEPS)).format(left, right)}")
        values.append(f"v{i}")
    return HEAD + "\n".join(lines)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(whole_numbers(), st.integers(-4, 4), st.integers(0, 5), st.integers(0, 1000))
def test_every_value_lies_in_its_interval(text: str, least: int, span: int, seed: int) -> None:
    graph = parse(text)
    (name,) = graph.outputs
    given = {"t": (least, least + span), "u": (-1, 3)}
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        n: torch.randint(low, high + 1, (graph.sizes["T"],), generator=generator) for n, (low, high) in given.items()
    }
    made = reference.run(graph, {"w": torch.zeros(9, 3), **inputs}, "fp64")[name]
    low, high = interval(graph, name, given)
    assert low is None or evaluate(low, graph.sizes) <= int(made.min())
    assert high is None or int(made.max()) <= evaluate(high, graph.sizes)


INDICES = ["Where(t == -100, u, t)", "Where(t < 0, 0, Minimum(t, P - 1))",
           "t", "t + 2", "t - 1", "3*t + u", "t * t", "P - 1 - t", "Where(t == -100, 0, t)", "t + Range(T)",
           "Minimum(Maximum(t * u, 0), P - 1)", "Range(T) + 2", "P - 1 - Range(T)", "Range(2*T)"]  # fmt: skip


@pytest.mark.parametrize("index", INDICES)
def test_whatever_is_drawn_every_index_lies_in_its_table(index: str) -> None:
    """At all judged sizes and in all distributions; without that the reference itself would fail."""
    task = canonical(parse(f"{HEAD}y = Gather(w, {index})"))
    for sizes, seed in itertools.product(judged_sizes(task, (), {}, 5), range(2)):
        graph = task.at(**sizes).graph
        for distribution in distributions(graph):
            reference.run(graph, draw(graph, sizes, distribution, seed), "fp64")


def test_an_input_that_is_an_index_takes_the_first_row_and_the_last() -> None:
    graph = parse(f"{HEAD}y = Gather(w, t - 1) * Gather(w, u + 2)")
    drawn = draw(graph, {"P": 50, "T": 4000, "C": 3}, "normal", 0)
    assert (int(drawn["t"].min()), int(drawn["t"].max())) == (1, 50)
    assert (int(drawn["u"].min()), int(drawn["u"].max())) == (-2, 47)


def judged(text: str) -> tuple[Graph, list[dict[str, int]]]:
    task = canonical(parse(text))
    return task.graph, [sizes for seed in range(4) for sizes in judged_sizes(task, (), {}, seed)]


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("K, C = 4, 16\nw: f32[K, C]\ny = GELU(Select(w, 0, 3))", 4),
        ("K, C = 20, 16\nw: f32[C, K]\ny = " + " + ".join(f"Select(w, 1, {i}) * {i}.5" for i in range(0, 20, 3)), 19),
        ("K, C = 4, 16\nw: f32[2*K, C]\ny = GELU(Select(w, 0, 5))", 6),
    ],
)
def test_a_position_that_is_selected_is_there_at_every_judged_size(text: str, least: int) -> None:
    graph, sizes = judged(text)
    assert constraints(graph)
    for at in sizes:
        reference.run(graph.at(**at), draw(graph, at, "normal", 0), "fp64")
    name = next(d for d in graph.sizes if graph.sizes[d] in (4, 20, 8))
    assert min(at[name] for at in sizes) == least  # not larger either: the edge itself is judged


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("y = w * Select(w, 0, 9)", "at the samples P > 9 does not hold: 9 and 9"),
        ("y = Gather(w, Range(T) - 1)", "-1 >= 0 never holds"),
        ("y = Gather(w, Range(T) + 6)", "at the samples T + 6 <= P does not hold: 10 and 9"),
        ("y = Gather(w, Cast(Select(w, 1, 0), i64))", "stays within the P rows of w"),
    ],
)
def test_a_text_whose_index_is_outside_is_refused_at_its_place(line: str, reason: str) -> None:
    with pytest.raises(SnfError, match=r"<snf>:5:\d+: ") as caught:
        parse(HEAD + line)
    assert reason in caught.value.reason
