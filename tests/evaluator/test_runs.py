"""Runs and spans say what the vectors say that they stand for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.tileir.runs import NOWHERE, Runs, Spans

numbers = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(1, 9)).map(lambda run: [run[0]] * run[1]), max_size=12
).map(lambda runs: np.array([n for run in runs for n in run], dtype=np.int32))  # fmt: skip


def flags(spans: Spans, length: int) -> np.ndarray:
    out = np.zeros(length, dtype=bool)
    for begin, end in zip(spans.begins, spans.ends, strict=True):
        assert 0 <= begin < end <= length
        assert not out[begin:end].any()
        out[begin:end] = True
    return out


def longest(spans: Spans) -> bool:
    return bool(np.all(spans.begins[1:] > spans.ends[:-1]))


@given(numbers, st.integers(-1, 4), st.integers(0, 40), st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True)
def test_runs_are_the_vector_that_they_were_made_of(each: np.ndarray, number: int, length: int, rng) -> None:  # type: ignore[no-untyped-def]
    length = min(length, len(each))
    runs, each = Runs.of(each).first(length), each[:length]
    wanted = np.array([rng.random() < 0.3 for _ in each], dtype=bool)
    assert runs.places(number).tolist() == np.flatnonzero(each == number).tolist()
    assert runs.among(wanted) == set(each[wanted].tolist())
    assert set(runs.numbers.tolist()) == set(each.tolist())
    assert flags(runs.marked(), length).tolist() == (each != 0).tolist()
    assert longest(runs.marked())
    whole = each[: len(each) // 2 * 2]
    pairs, groups = whole.reshape(-1, 2), runs.first(len(whole)).of_groups(2)
    if (pairs[:, 0] != pairs[:, 1]).any():
        assert groups is None
    else:
        assert groups is not None
        assert [groups.places(n).tolist() for n in range(-1, 4)] == [
            np.flatnonzero(pairs[:, 0] == n).tolist() for n in range(-1, 4)
        ]


@given(numbers, numbers, st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True)
def test_spans_are_sets_of_places(one: np.ndarray, other: np.ndarray, rng) -> None:  # type: ignore[no-untyped-def]
    length = min(len(one), len(other)) // 2 * 2
    a, b = (Runs.of(v).first(length).marked() for v in (one, other))
    x, y = flags(a, length), flags(b, length)
    both = a | b
    assert flags(both, length).tolist() == (x | y).tolist()
    assert longest(both)
    assert (a <= b) == bool((x <= y).all())
    assert a >= NOWHERE
    assert (both.outside(length) is None) == bool((x | y).all())
    if not (x | y).all():
        assert both.outside(length) == np.flatnonzero(~(x | y))[0]
    assert flags(a.grouped(2), length // 2).tolist() == x.reshape(-1, 2).all(1).tolist()
    assert flags(a.parted(3), 3 * length).tolist() == x.repeat(3).tolist()
    wanted = np.array([rng.random() < 0.3 for _ in x], dtype=bool)
    assert a.meet(wanted) == bool((x & wanted).any())


def test_tiles_of_a_matrix_make_few_runs() -> None:
    """As many as rows times tiles across: 4,096 x 16 of 16 million marks."""
    rows, columns = np.arange(4096)[:, None] // 128, np.arange(4096)[None, :] // 256
    marks = (1 + rows * 16 + columns).astype(np.int32).reshape(-1)
    assert len(Runs.of(marks).numbers) == 4096 * 16
