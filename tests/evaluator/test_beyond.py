"""Kernels that are right up to some size beyond the task's own, or on chips with as many multiprocessors as one has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from evaluator.judging.conditions import capacities
from evaluator.judging.cover import Cover, cover
from evaluator.judging.judgement import judge
from evaluator.judging.oracle import Oracle
from evaluator.judging.rejection import Rejected
from evaluator.judging.sizes import PROCESSORS, judged_sizes
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, Trial
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

RTX5070 = chip("rtx5070")
ZERO = "padding_mode=ct.PaddingMode.ZERO"
LAYERNORM = f"""\
import cuda.tile as ct

@ct.kernel
def rows(x, weight, bias, y):
    row = ct.bid(0)
    n = x.shape[1]
    v = ct.load(x, (row, 0), (1, 1024), {ZERO}).astype(ct.float32)
    d = ct.where(ct.arange(1024, dtype=ct.int32)[None, :] < n, v - ct.sum(v) / n, 0.0)
    w = ct.load(weight, (0,), (1024,), {ZERO})[None, :]
    b = ct.load(bias, (0,), (1024,), {ZERO})[None, :]
    ct.store(y, (row, 0), (d * ct.rsqrt(ct.sum(d * d) / n + 1e-5) * w + b).astype(y.dtype))

def launch(stream, x, weight, bias, y):
    ct.launch(stream, (x.shape[0],), rows, (x, weight, bias, y))
"""
LINEAR = f"""\
import cuda.tile as ct

@ct.kernel
def products(x, w, b, y):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((32, 32), ct.float32)
    for k in range(min(ct.cdiv(x.shape[1], 32), 26)):
        acc = ct.mma(ct.load(x, (i, k), (32, 32), {ZERO}), ct.load(w, (j, k), (32, 32), {ZERO}).transpose(), acc)
    ct.store(y, (i, j), (acc + ct.load(b, (j,), (32,), {ZERO})[None, :].astype(ct.float32)).astype(y.dtype))

def launch(stream, x, w, b, y):
    ct.launch(stream, (ct.cdiv(x.shape[0], 32), ct.cdiv(w.shape[0], 32)), products, (x, w, b, y))
"""
SOFTMAX = """\
import cuda.tile as ct

@ct.kernel
def rows(x, y):
    row = ct.bid(0)
    top = ct.full((256,), float("-inf"), ct.float32)
    for c in ct.static_iter(range(4)):
        at = c * 256 + ct.arange(256, dtype=ct.int32)
        top = ct.maximum(top, ct.gather(x, (row, at), padding_value=float("-inf")).astype(ct.float32))
    top = ct.max(top)
    total = ct.zeros((256,), ct.float32)
    for c in ct.static_iter(range(4)):
        at = c * 256 + ct.arange(256, dtype=ct.int32)
        total += ct.exp(ct.gather(x, (row, at), padding_value=float("-inf")).astype(ct.float32) - top)
    total = ct.sum(total)
    for c in ct.static_iter(range(4)):
        at = c * 256 + ct.arange(256, dtype=ct.int32)
        ct.scatter(y, (row, at), (ct.exp(ct.gather(x, (row, at)).astype(ct.float32) - top) / total).astype(y.dtype))

def launch(stream, x, y):
    ct.launch(stream, (x.shape[0],), rows, (x, y))
"""
GELU = """\
import cuda.tile as ct

@ct.kernel
def tiles(x, y):
    at = ct.bid(0) * 1024 + ct.arange(1024, dtype=ct.int32)
    v = ct.gather(x, at).astype(ct.float32)
    u = 0.7978845608 * (v + 0.044715 * v * v * v)
    ct.scatter(y, at, (0.5 * v * (1 + ct.tanh(u))).astype(y.dtype))

def launch(stream, x, y):
    ct.launch(stream, (256,), tiles, (x.reshape(-1), y.reshape(-1)))
"""
PERSISTENT = f"""\
import cuda.tile as ct

@ct.kernel
def tiles(x, y):
    for t in range(ct.bid(0), ct.cdiv(x.shape[0], 256), ct.num_blocks(0)):
        v = ct.load(x, (t,), (256,), {ZERO}).astype(ct.float32)
        u = 0.7978845608 * (v + 0.044715 * v * v * v)
        ct.store(y, (t,), (0.5 * v * (1 + ct.tanh(u))).astype(y.dtype))

def launch(stream, x, y, *, num_sms):
    ct.launch(stream, (num_sms,), tiles, (x.reshape(-1), y.reshape(-1)))
"""


@dataclass(frozen=True)
class Short:
    """A file that computes ``task`` up to ``most`` of a dimension, which is more than it has."""

    text: str
    task: Task
    dimension: str
    most: int

    @property
    def guarded(self) -> str:
        """The same file, which says so."""
        head, _, rest = self.text.partition("    ct.launch(")
        return f"{head}    if {self.size} > {self.most}:\n        raise ValueError('too long')\n    ct.launch({rest}"

    @property
    def size(self) -> str:
        return f"x.shape[{'MNK'.index(self.dimension) and 1}]" if self.dimension != "M*N" else "x.shape[0] * x.shape[1]"


SHORT = {
    "a row in one tile": Short(LAYERNORM, everyday("layernorm", M=64, N=768), "N", 1024),
    "tiles of a sum": Short(LINEAR, everyday("linear", M=64, N=64, K=768), "K", 832),
    "unrolled gathers": Short(SOFTMAX, everyday("softmax", M=64, N=200), "N", 1024),
    "blocks of a grid": Short(GELU, everyday("gelu", M=300, N=200), "M*N", 256 * 1024),
}


def judged(text: str, task: Task, oracle: Oracle, seed: int) -> Trial:
    candidate = Candidate(source=text, task=task.identity)
    return judge(begin(candidate, task, RTX5070), task, RTX5070, oracle=oracle, seed=seed)


def traced(text: str, task: Task) -> Traced:
    (answer,) = trace(text, task, [Request(task.sizes)], RTX5070)
    assert isinstance(answer, Traced), answer
    return answer


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SHORT)
def test_what_is_right_up_to_a_number_in_the_kernel_is_wrong(name: str, seed: int, oracle: Oracle) -> None:
    short = SHORT[name]
    verdict = judged(short.text, short.task, oracle, seed).verdict
    assert verdict is not None
    assert (verdict.status, verdict.error_class) in {
        ("unsafe", "output-not-written"), ("wrong", "wrong-numbers"), ("wrong", "sum-tail")
    }, verdict  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_it_is_right_where_launch_refuses_what_lies_beyond(name: str, oracle: Oracle) -> None:
    short = SHORT[name]
    done = judged(short.guarded, short.task, oracle, 1)
    assert done.correct, done.verdict


def test_a_capacity_is_an_extent_and_what_tiles_hold_of_it() -> None:
    short = SHORT["a row in one tile"]
    one = traced(short.text, short.task)
    assert {str(c) for c in capacities(one.plan, one.kernels, short.task.sizes)} == {"N <= 1024"}
    assert capacities(one.plan, one.kernels, {"M": 64, "N": 4000}) == ()  # more than a tile already
    one = traced(short.guarded, short.task)
    assert capacities(one.plan, one.kernels, short.task.sizes) == ()  # no more of it is served
    for name, most in (("unrolled gathers", "N <= 1024"), ("blocks of a grid", "M*N <= 262144")):
        short = SHORT[name]
        one = traced(short.text, short.task)
        assert most in {str(c) for c in capacities(one.plan, one.kernels, short.task.sizes)}


@pytest.mark.parametrize("count", [48, 170])
def test_a_number_of_multiprocessors_in_the_kernel_is_wrong(count: int, oracle: Oracle) -> None:
    task, gpu = everyday("gelu", M=1024, N=768), chip({48: "rtx5070", 170: "rtx5090"}[count])
    assert gpu.sm_count == count
    text = PERSISTENT.replace("ct.num_blocks(0)", str(count))
    for seed in range(4):
        done = judge(begin(Candidate(source=text, task=task.identity), task, gpu), task, gpu, oracle=oracle, seed=seed)
        assert done.verdict is not None
        assert not done.correct
        assert "num_sms=" in done.verdict.message, done.verdict


def test_a_plan_that_asks_for_multiprocessors_is_judged_with_other_numbers_too(oracle: Oracle) -> None:
    task = everyday("gelu", M=1024, N=768)
    done = judged(PERSISTENT, task, oracle, 1)
    assert done.correct, done.verdict
    counts = {at.get("num_sms", RTX5070.sm_count) for at in done.judged}
    assert RTX5070.sm_count in counts
    assert len(counts) > 1
    assert counts <= {*PROCESSORS, RTX5070.sm_count}
    without = traced(GELU, task)
    assert all("num_sms" not in at for at in judged_sizes(task, [without.plan], {}, 1))


def test_a_grid_that_no_chip_takes_says_nothing_about_the_kernel() -> None:
    """One of too few blocks does."""
    task = everyday("gelu", M=64, N=64)
    text = GELU.replace("(256,)", "(1, x.shape[0], 256)")
    found = cover(text, task, RTX5070, {}, Cover(traced=[traced(text, task)]), [{"M": 65536, "N": 2}, {"M": 9, "N": 2}])
    assert ([at for at, _ in found.chosen], found.infeasible) == ([{"M": 9, "N": 2}], [])
    text = GELU.replace("(256,)", "(x.shape[0] // 16,)")
    with pytest.raises(Rejected, match="grid axis 0 is 0"):
        cover(text, task, RTX5070, {}, Cover(traced=[traced(text, task)]), [{"M": 9, "N": 2}])
