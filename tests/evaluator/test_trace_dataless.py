"""View arithmetic of arrays without data equals PyTorch's: shape, strides, offset and refusal, on random programs."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.trace.dataless import MAX_VIEWS, contiguous_strides
from evaluator.trace.fake_torch import BY_CODE, Tensor
from evaluator.trace.refusal import Refusal
from evaluator.trace.symbolic import Context, SymbolicSize, value_of

# PyTorch answers these with one exception or another; the stand-in's classes differ, that it refuses is the law.
REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, Refusal)

dim = st.integers(-4, 4)
size = st.sampled_from([1, 1, 2, 3, 4, 6, 12])


def factorisation(total: int, rng: random.Random) -> list[int]:
    """A random shape with ``total`` elements, now and then with a -1 or a wrong factor."""
    shape = []
    while total > 1 and len(shape) < 4:
        factor = rng.choice([d for d in range(1, total + 1) if total % d == 0])
        shape.append(factor)
        total //= factor
    shape.append(total)
    rng.shuffle(shape)
    if rng.random() < 0.3:
        shape[rng.randrange(len(shape))] = -1
    if rng.random() < 0.1:
        shape.append(rng.choice([1, 2, 5]))
    return shape


def step(x: torch.Tensor, rng: random.Random):
    """One random view as (name, function of the array), sensible more often than not."""
    rank = x.dim()
    axis = rng.randrange(-rank, rank) if rank and rng.random() < 0.95 else rng.choice([-7, 0, 3])
    other = rng.randrange(-rank, rank) if rank else 0
    length = x.shape[axis] if rank and -rank <= axis < rank else 1
    start, stop = rng.randint(-length - 1, length + 1), rng.randint(-length - 1, length + 2)
    order = rng.sample(range(rank), rank)
    wanted = [n if n != 1 or rng.random() < 0.5 else rng.choice([1, 3, -1]) for n in x.shape]
    lead = [rng.choice([1, 2])] if rng.random() < 0.3 else []
    shape = factorisation(x.numel(), rng) if x.numel() else [0, 3]
    key = tuple(
        rng.choice([slice(None), slice(start, stop, rng.choice([None, 1, 2, 3])), None, ..., rng.randint(-2, 2)])
        for _ in range(rng.randint(1, 3))
    )
    key = tuple(k for i, k in enumerate(key) if k is not ... or ... not in key[:i])  # NumPy's rule: one ellipsis
    parts = factorisation(length, rng) if length else [0]
    return (
        rng.choice(
            [
                ("transpose", lambda t: t.transpose(axis, other)),
                ("permute", lambda t: t.permute(order)),
                ("unsqueeze", lambda t: t.unsqueeze(rng_axis)),
                ("squeeze", lambda t: t.squeeze(axis)),
                ("squeeze all", lambda t: t.squeeze()),
                ("select", lambda t: t.select(axis, start)),
                ("narrow", lambda t: t.narrow(axis, start, max(0, stop - start))),
                ("index", lambda t: t[key]),
                ("expand", lambda t: t.expand([*lead, *wanted])),
                ("view", lambda t: t.view(shape)),
                ("view", lambda t: t.view(*shape)),
                ("reshape", lambda t: t.reshape(shape)),
                ("flatten", lambda t: t.flatten(axis, other)),
                ("unflatten", lambda t: t.unflatten(axis, parts)),
                ("mT", lambda t: t.mT if t.dim() else t),
                ("movedim", lambda t: t.movedim(axis, other)),
                ("unbind", lambda t: t.unbind(axis)[0] if few(t, length) else None),
                ("chunk", lambda t: t.chunk(2, axis)[-1]),
                ("split", lambda t: t.split(2, axis)[0] if few(t, length // 2) else None),
                ("contiguous", lambda t: t.contiguous()),
            ]
        )
        if (rng_axis := rng.randint(-rank - 1, rank)) is not None
        else None
    )


def few(x: torch.Tensor | Tensor, views: int) -> bool:
    """Whether an operation that makes so many views is asked of PyTorch: beyond the limit ours must refuse it."""
    return isinstance(x, Tensor) or views <= MAX_VIEWS


def attempt(function, x):
    try:
        return function(x)
    except REFUSALS:
        return None


def facts(x) -> tuple:
    return tuple(int(s) for s in x.shape), tuple(int(s) for s in x.stride()), int(x.storage_offset()), x.is_contiguous()


@settings(max_examples=300, deadline=None)
@given(st.lists(size, min_size=0, max_size=4), st.integers(0, 2**32))
def test_every_view_has_pytorchs_shape_strides_offset_or_refusal(shape: list[int], seed: int) -> None:
    rng = random.Random(seed)
    real = torch.empty(shape)
    ours = Tensor(None, "x", BY_CODE["f32"], 0, shape, contiguous_strides(shape))
    for _ in range(6):
        name, function = step(real, rng)
        expected, got = attempt(function, real), attempt(function, ours)
        if expected is not None and expected.untyped_storage().data_ptr() != real.untyped_storage().data_ptr():
            expected = None  # PyTorch copied: the stand-in refuses
        if real.numel() == 0 and expected is None:
            return  # PyTorch compares addresses of nothing: a view of it and a copy look alike
        assert (got is None) == (expected is None), (name, tuple(real.shape), real.stride())
        if expected is not None:
            assert facts(got) == facts(expected), (name, tuple(real.shape), real.stride())
            real, ours = expected, got


@settings(max_examples=200, deadline=None)
@given(st.lists(size, min_size=1, max_size=4), st.integers(0, 2**32))
def test_views_of_symbolic_sizes_hold_wherever_their_guards_do(shape: list[int], seed: int) -> None:
    """Follow one program on symbols; then at other sizes inside the guards PyTorch must find the same windows."""
    rng = random.Random(seed)
    names = [f"N{i}" for i in range(len(shape))]
    context = Context(dict(zip(names, shape, strict=True)))
    sizes = [context.symbol(name) for name in names]
    ours = Tensor(None, "x", BY_CODE["f32"], 0, sizes, contiguous_strides(sizes))
    real, done = torch.empty(shape), []
    for _ in range(5):
        _, function = step(real, rng)
        got = attempt(function, ours)
        if got is None or 0 in [value_of(s) for s in got.shape]:
            continue
        done.append(function)
        real, ours = function(real), got
    for _ in range(8):
        dims = {name: rng.choice([n, rng.choice([1, 2, 3, 4, 6, 12])]) for name, n in zip(names, shape, strict=True)}
        if not all(g.holds(dims) for g in context.guards):
            continue
        there = torch.empty([dims[n] for n in names])
        for function in done:
            there = function(there)
        window = [at(s, dims) for s in ours.shape]
        assert window == list(there.shape)
        strides = [at(s, dims) for s in ours.stride()]
        assert [s for s, n in zip(strides, window, strict=True) if n > 1] == [
            s for s, n in zip(there.stride(), window, strict=True) if n > 1
        ]
        assert at(ours.storage_offset(), dims) == there.storage_offset()


def at(number, dims: dict[str, int]) -> int:
    from kernels_generated.runtime.expr import evaluate

    return evaluate(number.expr, dims) if type(number) is SymbolicSize else int(number)


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        (("M", "N"), lambda x: x.view(-1)),
        (("M", "N"), lambda x: x.flatten().view(x.shape)),
        (("M", "N"), lambda x: x.reshape(x.shape[0] * x.shape[1])),
        (("B", "T", 3, "H", "D"), lambda x: x[:, :, 1].permute(0, 2, 1, 3)),
        (("B", "T", 3, "H", "D"), lambda x: x.select(2, 2).transpose(1, 2)),
        (("B", "T", 3, "H", "D"), lambda x: x.view(x.shape[0] * x.shape[1], -1)),
        (("B", "H", "T", "D"), lambda x: x.flatten(0, 1)),
        (("B", "H", "T", "D"), lambda x: x.view(x.shape[0] * x.shape[1], *x.shape[2:])),
        (("M", "N"), lambda x: x.t().unsqueeze(0)),
        (("M", "N"), lambda x: x[:, None, :].expand(-1, 4, -1)),
        (("M", "N"), lambda x: x.contiguous().T),
    ],
)
def test_the_usual_views_of_contiguous_arrays_need_no_guard(shape, view) -> None:
    context = Context({"B": 2, "T": 7, "H": 3, "D": 16, "M": 5, "N": 6})
    sizes = [context.symbol(s) if isinstance(s, str) else s for s in shape]
    view(Tensor(None, "x", BY_CODE["bf16"], 0, sizes, contiguous_strides(sizes)))
    assert context.guards == []
