"""Plans of honest candidates: wherever a plan applies, a fresh trace with plain integers launches the same."""

from __future__ import annotations

import functools
import random
import re
import zlib
from pathlib import Path

import pytest

from evaluator.trace import Request, Traced, read_axes, same_launches, trace
from kernels_generated.runtime.plan import ArrayParameter, Guard
from knowledge_base.chips import chip
from knowledge_base.records import Status
from knowledge_base.snf import decompose, parse
from knowledge_base.snf.everyday import NAMES, everyday
from knowledge_base.snf.signatures import signature
from knowledge_base.snf.task import Task

FOLDER = Path(__file__).parent.parent / "candidates"
CANDIDATES = sorted(path.name for path in FOLDER.glob("*.py"))
SAMPLE = {"M": 100, "N": 192, "K": 160, "B": 2, "T": 70, "H": 3, "D": 64, "V": 300, "P": 200, "C": 192, "S": 90}
# Sizes around tiles, primes, one; D keeps to widths that attention kernels are made for.
OTHERS = {
    "M": (1, 15, 16, 31, 32, 33, 97, 100, 128, 500),
    "N": (1, 2, 63, 64, 65, 129, 192, 250, 256, 257, 448, 640),
    "K": (1, 31, 32, 97, 160, 256, 257),
    "B": (1, 2, 3),
    "T": (1, 16, 63, 64, 65, 70, 113),
    "H": (1, 3, 5),
    "D": (16, 64, 80),
    "V": (1, 300, 1009),
    "P": (128, 200),
    "C": (1, 192, 257, 512),
    "S": (1, 16, 63, 64, 65, 90, 200),
}
GPU = chip("rtx5070")


def load(name: str) -> tuple[str, Task]:
    source = (FOLDER / name).read_text()
    task = everyday(re.match(r"# task: (\w+)", source)[1])
    return source, task.at(**{d: SAMPLE[d] for d in task.sizes})


def random_sizes(task: Task, seed: str, count: int) -> list[dict[str, int]]:
    rng = random.Random(zlib.crc32(seed.encode()))
    return [{d: rng.choice([SAMPLE[d], rng.choice(OTHERS[d])]) for d in task.sizes} for _ in range(count)]


def plans(source: str, task: Task, requests: list[Request]) -> list[Traced]:
    answers = trace(source, task, requests, GPU)
    for answer in answers:
        assert isinstance(answer, Traced), answer
    return answers


def guards(traced: Traced) -> set[str]:
    """Without those that only keep sizes within 32 bits and grids within their limits."""
    return {str(g) for g in traced.plan.guards if not str(g).endswith(("<= 2147483647", "<= 16777215", "<= 65535"))}


@functools.cache
def both(name: str) -> list[Traced]:
    """The candidate's plan for any sizes, and its plan for the task's."""
    source, task = load(name)
    return plans(source, task, [Request(task.sizes), Request(task.sizes, policy="sample")])


def test_every_everyday_task_has_an_honest_candidate() -> None:
    assert {load(name)[1].name for name in CANDIDATES} == set(NAMES)


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_plan_equals_a_fresh_concrete_trace_wherever_it_applies(name: str) -> None:
    source, task = load(name)
    sizes = [task.sizes, *random_sizes(task, name, 14)]
    general, sample = both(name)
    # Sizes that the first plan does not cover get plans of their own, as a winner's do.
    dims = [{**s, "num_sms": GPU.sm_count} for s in sizes]
    missing = [s for s, d in zip(sizes, dims, strict=True) if not general.plan.applies(d)]
    more = plans(source, task, [Request(s) for s in missing]) if missing else []
    fresh = plans(source, task, [Request(s, policy="concrete") for s in sizes])
    checked = 0
    for plan in (general, sample, *more):
        for at, dim, concrete in zip(sizes, dims, fresh, strict=True):
            if plan.plan.applies(dim):
                assert same_launches(plan, at, concrete) is None, (at, guards(plan))
                checked += 1
    assert checked >= len(sizes)
    assert general.plan.applies(dims[0])
    assert sample.plan.applies(dims[0])


@pytest.mark.parametrize("name", CANDIDATES)
def test_the_first_values_of_the_axes_are_the_defaults_and_all_others_trace_too(name: str) -> None:
    source, task = load(name)
    axes = read_axes(source)
    assert isinstance(axes, dict)
    requests = [Request(task.sizes, {axis: value}) for axis, values in axes.items() for value in values[1:]]
    for traced in plans(source, task, [Request(task.sizes), *requests]):
        assert set(traced.kernels) == set(traced.plan.kernels) == set(traced.names)


EXPECTED_GUARDS = {
    "gelu_flat.py": set(),
    "gelu_tiles.py": set(),
    "softmax_chunked.py": set(),
    "layernorm_rows.py": set(),
    "linear_split_k.py": set(),
    "linear_gelu_persistent.py": set(),
    "linear_residual_atomic.py": set(),
    "embedding_rows.py": set(),
    "linear_nobias_whole_rows.py": set(),
    "dense_transposed.py": set(),
    "dense_packed.py": set(),
    "dense_gelu_apart.py": set(),
    "dense_residual_first.py": set(),
    "linear_tiles.py": {"M >= 32"},
    "add_body_tail.py": {"N%64 == 0"},
    "softmax_padded.py": {"N >= 129", "N <= 256"},
    "layernorm_one_tile.py": {"N == 192"},
    "attention_online.py": {"D == 64"},
    "attention_qkv_folded.py": {"D == 64"},
    "attention_decode_walk.py": {"D == 64"},
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_general_plan_guards_what_the_file_asks_and_nothing_else(name: str) -> None:
    general, _ = both(name)
    assert guards(general) == EXPECTED_GUARDS[name]


def test_a_sample_plan_also_assumes_and_guards_the_divisibilities_of_its_sizes() -> None:
    general, sample = both("linear_tiles.py")
    assert guards(sample) - guards(general) == {"K%16 == 0", "N%16 == 0"}
    (facts,) = sample.names.values()
    assert [a.stride_divisible_by for a in facts.arrays] == [(8, 1), (8, 1), (1,), (8, 1)]
    (facts,) = general.names.values()
    assert [a.stride_divisible_by for a in facts.arrays] == [(1, 1), (1, 1), (1,), (1, 1)]
    assert not set(sample.kernels) & set(general.kernels)


def test_the_same_file_gives_the_same_plan_and_bytecode_and_no_path_is_in_it() -> None:
    source, task = load("attention_online.py")
    (first,), (second,) = (plans(source, task, [Request(task.sizes)]) for _ in range(2))
    assert first.plan.dumps() == second.plan.dumps()
    assert first.kernels == second.kernels
    for bytecode in first.kernels.values():
        text = bytecode.decode("latin-1")
        assert "candidate.py" in text
        assert "site-packages" not in text
        assert "/tmp" not in text


def test_workspaces_are_arguments_and_zeros_are_fills() -> None:
    traced, _ = both("linear_residual_atomic.py")
    data = traced.plan.to_json()
    assert data["arguments"][-1] == {"name": "ws0", "role": "workspace", "dtype": "f32", "shape": ["M", "N"]}
    assert data["steps"][0] == {"fill": "ws0", "value": 0}


def test_a_size_that_no_array_tells_comes_after_the_outputs_and_stays_symbolic() -> None:
    task = next(
        iter(decompose(parse("M, N, D = 33, 40, 64\nx: f32[M, N]\nw: f32[D]\noutputs = x / sqrt(D), -w")).tasks)
    )
    assert signature(task).endswith("(x[M,N]) -> y[M,N], given N2")
    source = """
import cuda.tile as ct
@ct.kernel
def kernel(x, y, D):
    i, j = ct.bid(0), ct.bid(1)
    tile = ct.load(x, index=(i, j), shape=(1, 64), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, index=(i, j), tile=tile / ct.sqrt(ct.astype(D, ct.float32)))
def launch(stream, x, y, D):
    ct.launch(stream, (x.shape[0], ct.cdiv(x.shape[1], 64)), kernel, (x, y, D if D < 100 else 2 * D))
"""
    (traced,) = plans(source, task, [Request(task.sizes)])
    scalar = traced.plan.launches[0].parameters[-1]
    assert (scalar.dtype, scalar.value) == ("i32", "N2")
    assert Guard("<=", "N2", 99) in traced.plan.guards
    (refused,) = trace(
        source.replace("x, y, D):\n    ct.launch", "x, y):\n    ct.launch"), task, [Request(task.sizes)], GPU
    )
    assert "this task has 3: x[M,N], y[M,N], N2" in refused.message


def test_num_sms_stays_symbolic() -> None:
    traced, _ = both("linear_gelu_persistent.py")
    (launch,) = traced.plan.launches
    assert launch.grid[0] == ("min", "num_sms", ("*", ("cdiv", "M", 64), ("cdiv", "N", 64)))
    assert traced.num_sms == GPU.sm_count


def test_views_of_one_buffer_carry_their_offsets() -> None:
    traced, _ = both("attention_online.py")
    assert [v.offset for v in traced.plan.views] == [0, ("*", "D", "H"), ("*", 2, ("*", "D", "H")), 0]
    assert traced.plan.views[0].strides == (("*", 3, ("*", ("*", "D", "H"), "T")), "D", ("*", 3, ("*", "D", "H")), 1)


def test_a_difference_between_plan_and_concrete_trace_is_named() -> None:
    """launch can tell tracing from running (a symbolic size is no int for ``type``): the fresh trace shows it."""
    source, task = load("gelu_flat.py")
    lying = source.replace("flat, out =", "TILE = TILE if type(x.shape[0]) is type(1) else 512\n    flat, out =")
    (general,) = plans(lying, task, [Request(task.sizes)])
    (fresh,) = plans(lying, task, [Request(task.sizes, policy="concrete")])
    assert "kernel[TILE=512]" in (same_launches(general, task.sizes, fresh) or "")
    lying = source.replace("(ct.cdiv(x.numel(), TILE),)", "(1 if type(x.shape[0]) is type(1) else 19,)")
    (general,) = plans(lying, task, [Request(task.sizes)])
    (fresh,) = plans(lying, task, [Request(task.sizes, policy="concrete")])
    assert same_launches(general, task.sizes, fresh) == "step 0: grid [19, 1, 1] in the plan, [1, 1, 1] afresh"


def test_a_value_error_is_infeasible_and_the_other_requests_go_on() -> None:
    source, task = load("softmax_padded.py")
    wide = {**task.sizes, "N": 40000}
    bad, good = trace(source, task, [Request(wide), Request(task.sizes)], GPU)
    assert bad.status is Status.INFEASIBLE
    assert bad.message == "the row does not fit a tile"
    assert bad.source.startswith("raise ValueError")
    assert isinstance(good, Traced)


def test_kernels_of_one_file_keep_apart_what_a_changed_global_means() -> None:
    source = """
import cuda.tile as ct
AXES = {"T": [128, 256]}
WIDTH = 0

@ct.kernel
def kernel(x, y):
    ct.store(y, index=(ct.bid(0),), tile=ct.load(x, index=(ct.bid(0),), shape=(WIDTH,)))

def launch(stream, x, y, *, T):
    global WIDTH
    WIDTH = T
    ct.launch(stream, (ct.cdiv(x.numel(), WIDTH),), kernel, (x.view(-1), y.view(-1)))
"""
    task = everyday("gelu", M=100, N=192)
    one, two = plans(source, task, [Request(task.sizes, {"T": t}) for t in (128, 256)])
    (alone,) = plans(source, task, [Request(task.sizes, {"T": 256})])
    assert set(one.kernels) != set(two.kernels)
    assert two.kernels == alone.kernels
    assert {i.key for i in one.names.values()} != {i.key for i in two.names.values()}


def test_strides_that_an_annotation_makes_constants_are_said() -> None:
    source = """
from typing import Annotated
import cuda.tile as ct
AXES = {}
Fixed = Annotated[ct.Array, ct.ArrayAnnotation(static_stride_dims=(-2, -1))]

@ct.kernel
def kernel(x: Fixed, y):
    ct.store(y, index=(ct.bid(0), 0), tile=ct.load(x, index=(ct.bid(0), 0), shape=(1, 256)))

def launch(stream, x, y):
    ct.launch(stream, (x.shape[0],), kernel, (x, y))
"""
    task = everyday("gelu", M=100, N=192)
    (made,) = plans(source, task, [Request(task.sizes)])
    (launch,) = made.plan.launches
    assert [one.constant_strides for one in launch.parameters if isinstance(one, ArrayParameter)] == [(0, 1), ()]
    assert "N == 192" in guards(made)


def test_a_grids_axes_have_the_blocks_that_cuda_has() -> None:
    source = """
import cuda.tile as ct
AXES = {"TM": [32], "TN": [64]}

@ct.kernel
def kernel(x, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    place = (ct.bid(1), ct.bid(0))
    ct.store(y, index=place, tile=ct.load(x, index=place, shape=(TM, TN)))

def launch(stream, x, y, *, TM, TN):
    ct.launch(stream, (ct.cdiv(x.shape[1], TN), ct.cdiv(x.shape[0], TM)), kernel, (x, y, TM, TN))
"""
    task = everyday("gelu", M=100, N=192)
    most = {"M": 65535 * 32, "N": 1}
    (traced,) = plans(source, task, [Request(task.sizes)])
    assert {"cdiv(N, 64) <= 16777215", "cdiv(M, 32) <= 65535"} <= {str(g) for g in traced.plan.guards}
    assert traced.plan.applies({**most, "num_sms": 1})
    assert not traced.plan.applies({**most, "M": most["M"] + 1, "num_sms": 1})
    (refused,) = trace(source, task, [Request({**most, "M": most["M"] + 1})], GPU)
    assert (refused.status, refused.error_class) == (Status.INVALID, "grid-range")
    assert refused.message == "grid axis 1 is 65536, outside 1 … 65535"
