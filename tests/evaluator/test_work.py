"""Counting a launch's work: exact where loops depend on sizes and blocks, bounds where they depend on data."""

from __future__ import annotations

import math

import pytest

from agent.proposers.synthesizer import synthesize
from evaluator.timing.model import launch_work
from evaluator.timing.work import SAMPLED_BLOCKS, Work, _sample
from evaluator.trace import Request, Traced, trace
from kernels_generated.runtime.bound import bind
from knowledge_base.chips import CHIPS
from knowledge_base.snf import parse
from knowledge_base.snf.decompose import decompose
from knowledge_base.snf.everyday import everyday

CHIP = CHIPS["h200"]


def works(source: str, task, **axes) -> list[Work]:
    """The work of each launch of a candidate at the task's sizes."""
    (found,) = trace(source, task, [Request(task.sizes, axes)], CHIP)
    assert isinstance(found, Traced), found
    dims = {**task.sizes, "num_sms": CHIP.sm_count}
    return [launch_work(launch, found.kernels[launch.kernel]) for launch in bind(found.plan, dims).launches]


@pytest.fixture(scope="module")
def candidates(request):
    folder = request.config.rootpath / "tests" / "candidates"
    return lambda name: (folder / f"{name}.py").read_text()


@pytest.mark.parametrize(("M", "N", "K"), [(256, 128, 64), (100, 130, 70), (65, 1, 128)])
def test_a_matmul_counts_every_tile_whole_edges_included(candidates, M, N, K):
    task = everyday("linear", M=M, N=N, K=K)
    (work,) = works(candidates("linear_tiles"), task, TM=64, TN=64, TK=64)
    rows, columns, depth = (-(-size // 64) for size in (M, N, K))
    assert work.blocks == rows * columns
    assert work.mean.flops == {"bf16": pytest.approx(2 * 64 * 64 * 64 * depth)}
    assert sum(work.mean.loads.values()) == pytest.approx(2 * 64 * 64 * 2 * depth + 64 * 2)
    assert sum(work.mean.stores.values()) == pytest.approx(64 * 64 * 2)
    assert work.mean.steps == pytest.approx(depth)
    assert work.mma == (64, 64, 64)
    assert work.sizes == pytest.approx([1] * len(work.sizes))
    assert (work.mean.mmas, work.mean.trips) == pytest.approx((depth, 1))  # the bias is loaded outside the loop


def test_products_of_one_left_operand_free_its_buffers_together():
    text = "T, C, F = 256, 128, 256\nx: bf16[T, C]\ny = SiLU(Linear(x, F, θ.a)) * Linear(x, F, θ.b)"
    (task,) = decompose(parse(text), "v2").tasks
    (work,) = works(synthesize(task, CHIP)[0].source, task)
    steps = 128 / work.mma[2]
    assert work.mean.steps == work.mean.mmas == pytest.approx(steps)
    assert work.mean.flops == {"bf16": pytest.approx(2 * 2 * math.prod(work.mma) * steps)}


def test_causal_attention_counts_the_triangle_and_its_longest_block(candidates):
    task = everyday("attention", B=2, T=1024, H=3, D=64)
    (work,) = works(candidates("attention_online"), task, TQ=64, TK=64)
    tiles = 1024 // 64
    pairs = tiles * (tiles + 1) / 2 * 2 * 3  # tiles on and below the diagonal, per batch and head
    assert work.blocks * work.mean.flops["bf16"] == pytest.approx(pairs * 2 * 2 * 64 * 64 * 64, rel=0.02)
    assert 1.5 < max(work.sizes) < 2
    assert work.mean.mmas == pytest.approx(2 * work.mean.steps)
    assert work.mean.reduces == pytest.approx(2 * work.mean.steps)  # the row's maximum and its sum
    assert 0.5 < work.mean.step_lanes / work.mean.lanes < 1
    assert work.mean.special > 64 * 64 * (tiles + 1) / 2  # an exponential each


def test_a_persistent_loop_shares_all_tiles_among_its_blocks(candidates):
    task = everyday("linear_gelu", M=2048, N=1024, K=256)
    (work,) = works(candidates("linear_gelu_persistent"), task, TM=64, TN=64, TK=32)
    assert work.blocks == CHIP.sm_count
    tiles = 2048 // 64 * 1024 // 64
    assert work.blocks * work.mean.flops["bf16"] == pytest.approx(tiles * 2 * 64 * 64 * 256, rel=0.03)
    # the straight code, the loop over tiles (it loads the bias) and a loop along K for each tile
    assert work.mean.phases == pytest.approx(2 + tiles / CHIP.sm_count, rel=0.05)


LOOPS = """
import cuda.tile as ct

AXES = {"T": [128]}

@ct.kernel
def kernel(x, y, T: ct.Constant[int]):
    i = ct.bid(0)
    N = x.shape[1]
    s = ct.full((1, T), 0, dtype=ct.float32)
    j = 0
    while j * T < N:
        s = s + ct.load(x, index=(i, j), shape=(1, T), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        j = j + 2
    if i % 2 == 0:
        s = s + ct.load(x, index=(i, 0), shape=(1, T)).astype(ct.float32)
    if ct.sum(s) > 0:
        s = s + ct.load(x, index=(i, 1), shape=(1, T)).astype(ct.float32)
    ct.store(y, index=(i, 0), tile=s.astype(y.dtype))

def launch(stream, x, y, *, T=128):
    ct.launch(stream, (x.shape[0],), kernel, (x, y, T))
"""


def test_while_loops_branches_on_the_block_and_branches_on_data():
    (work,) = works(LOOPS, everyday("gelu", M=8, N=1000))
    trips = 4  # j = 0, 2, 4, 6: 1000 elements in steps of 2 × 128
    tile = 128 * 2
    # half of the blocks are even; of the branch on data both sides count
    assert sum(work.mean.loads.values()) == pytest.approx(tile * (trips + 0.5 + 1))
    assert work.bounded
    assert not work.exact


DATA = "ct.load(x, index=(i, 0), shape=(1, 1)).astype(ct.int32).item()"


@pytest.mark.parametrize(
    ("loop", "trips", "bounded"),
    [
        (f"for j in range({DATA}):\n        load(j)", 1, False),
        (f"for j in range(min({DATA}, 7)):\n        load(j)", 7, True),
        (f"n = min({DATA}, 7) + 1\n    for j in range(n // 2, n):\n        load(j)", 4, True),
        (f"for j in range(min({DATA}, 7), 9):\n        load(j)", 1, False),
        (f"if min({DATA}, 7) == 7:\n        load(i)\n    else:\n        load(i)\n        load(i)", 3, True),
        ("while ct.sum(s) < 1e6:\n        load(j)\n        j = j + 1", 0, False),
        ("while j < 5000:\n        load(j)\n        j = j + 1", 2048, False),
        ("while j < 500:\n        load(j)\n        j = j + 1", 500, True),
        # Conditions in a loop, and numbers that it carries: no trip stands for another.
        ("for j in range(500):\n        if j % 100 == 1:\n            load(j)", 5, True),
        (
            "n = 0\n    for j in range(20):\n        for k in range(n):\n            load(k)\n        n = n + 1",
            190,
            True,
        ),
        ("for j in range(20):\n        for k in range(j):\n            load(k)", 190, True),
    ],
)
def test_trips_count_one_by_one_or_are_a_lower_bound_that_says_so(loop, trips, bounded):
    for index in "ijk":  # each load depends on the innermost trip, so that none is moved out of its loop
        loop = loop.replace(
            f"load({index})", f"s = s + ct.load(x, index=(i, {index}), shape=(1, T)).astype(ct.float32)"
        )
    before, rest = LOOPS.split("    while j * T < N:\n")
    source = f"{before}    {loop}\n    ct.store({rest.split('ct.store(')[1]}"
    (work,) = works(source, everyday("gelu", M=8, N=1000))
    assert work.bounded == bounded
    assert sum(work.mean.loads.values()) == pytest.approx(128 * 2 * trips, rel=0.02)


def test_loads_and_stores_are_told_apart_by_parameter(candidates):
    task = everyday("layernorm", M=64, N=256)
    (work,) = works(candidates("layernorm_one_tile"), task)
    assert len(work.mean.loads) == 3
    assert len(work.mean.stores) == 1
    assert -1 not in work.mean.loads | work.mean.stores


def test_gathers_count_their_bytes(candidates):
    task = everyday("embedding", B=2, T=16, C=256, V=1000, P=64)
    for work in works(candidates("embedding_rows"), task):
        assert work.blocks * sum(work.mean.stores.values()) >= 2 * 16 * 256 * 2
        assert sum(work.mean.loads.values()) >= sum(work.mean.stores.values())


def test_few_blocks_are_all_walked_and_many_are_sampled_evenly():
    assert len(set(_sample((4, 4, 2)))) == 32
    places = list(_sample((16, 96, 1)))
    assert len(places) == SAMPLED_BLOCKS
    assert sum(x for x, _, _ in places) / SAMPLED_BLOCKS == pytest.approx(7.5, abs=0.01)
    assert sum(y for _, y, _ in places) / SAMPLED_BLOCKS == pytest.approx(47.5, abs=2)


def test_samples_of_a_long_axis_do_not_fall_into_step_with_a_modulus():
    residues = {x % 16 for x, _, _ in _sample((1536, 1, 1))}
    assert len(residues) >= 8
