"""A kernel with one operation changed is refused, or so like the honest one that no seed tells them apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from cheats import RESETS, Attempt, split_k
from honest import HONEST
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants import mutants

from evaluator.judging import Oracle, judge
from evaluator.judging.own_size import stores_of
from evaluator.kernel import Kernel
from evaluator.tileir import ir
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from knowledge_base.chips import CHIPS
from knowledge_base.records import Candidate, Verdict

CHIP = CHIPS["rtx5070"]
OTHER_SEEDS = (11, 12, 13)
ORIGINALS = {
    **{name: Attempt(name) for name in ("gelu", "softmax", "layernorm", "linear", "attention", "embedding")},
    "split K": split_k(RESETS),
    **{n: HONEST[n] for n in ("moments by a launch of their own", "a workspace with places left")},
}


@cache
def kernels(name: str) -> tuple[bytes, ...]:
    """The bytecode of all kernels by which the judge sees the file."""
    attempt = ORIGINALS[name]
    odd = {d: 2 * k + 15 for k, d in enumerate(attempt.task.sizes)}
    requests = [Request(attempt.task.sizes, {}, "sample"), Request(odd, {}, "general")]
    found = [t for t in trace(attempt.source, attempt.task, requests, CHIP) if isinstance(t, Traced)]
    return tuple(dict.fromkeys(code for t in found for code in t.kernels.values()))


@contextmanager
def changed(code: bytes, module: ir.Module) -> Iterator[None]:
    """Where the kernel of this bytecode is another."""
    kernel = Kernel.of(code)
    kept = dict(kernel.__dict__)
    for name in ("program", "counts"):
        kernel.__dict__.pop(name, None)
    kernel.__dict__["module"] = module
    stores_of.cache_clear()
    try:
        yield
    finally:
        kernel.__dict__.clear()
        kernel.__dict__.update(kept)
        stores_of.cache_clear()


def verdict(name: str, seed: int, oracle: Oracle) -> Verdict:
    attempt = ORIGINALS[name]
    trial = begin(Candidate(source=attempt.source, task=attempt.task.identity), attempt.task, CHIP)
    found = judge(trial, attempt.task, CHIP, oracle=oracle, seed=seed).verdict
    assert found is not None
    return found


def attack(data: st.DataObject, oracle: Oracle, seed: int) -> None:
    name = data.draw(st.sampled_from(sorted(ORIGINALS)))
    code = data.draw(st.sampled_from(kernels(name)))
    said, module = data.draw(mutants(Kernel.of(code).module))
    with changed(code, module):
        first = verdict(name, seed, oracle)
        assert first.error_class != "evaluator-defect", f"{name}, {said}: {first}"
        if first.correct:
            for other in OTHER_SEEDS:
                again = verdict(name, other, oracle)
                assert again.correct, f"{name}, {said}: correct by seed {seed}, and by {other} {again}"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that never end are many here."""
    monkeypatch.setattr("evaluator.judging.executable.LAUNCH_SECONDS", 4.0)


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_kernel_is_refused_or_as_good(oracle: Oracle, data: st.DataObject) -> None:
    attack(data, oracle, seed=1)


@pytest.mark.attack
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(1, 10))
def test_many_changed_kernels_are_refused_or_as_good(oracle: Oracle, seed: int, data: st.DataObject) -> None:
    attack(data, oracle, seed)
