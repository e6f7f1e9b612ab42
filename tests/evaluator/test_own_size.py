"""The size that is timed: a kernel that is right at all small sizes and wrong there is not called correct."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from evaluator.judging.admission import POISON_A, admit, poisoned, workspaces
from evaluator.judging.conditions import conditions
from evaluator.judging.cover import dims
from evaluator.judging.emulation import fill, launched
from evaluator.judging.inputs import draw
from evaluator.judging.judgement import judge
from evaluator.judging.oracle import Oracle
from evaluator.judging.own_size import OwnSize, judge_own_size, stores_of
from evaluator.judging.rejection import Rejected
from evaluator.judging.restriction import separable
from evaluator.judging.sizes import judged_sizes
from evaluator.kernel import Kernel
from evaluator.tileir import Footprint, walk
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from kernels_generated.runtime.plan import Fill, Guard
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, Verdict
from knowledge_base.snf import parse
from knowledge_base.snf.canonical import canonical
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.graph import shape_at
from knowledge_base.snf.task import Task

KERNELS = Path(__file__).parent / "kernels"
CANDIDATES = sorted((Path(__file__).parents[1] / "candidates").glob("*.py"))
CHIP = chip("rtx5070")


def traced(text: str, task: Task) -> Traced:
    (answer,) = trace(text, task, [Request(task.sizes, {}, "sample")], CHIP)
    assert isinstance(answer, Traced), answer
    return answer


def looked_at(text: str, task: Task, oracle: Oracle, seed: int = 3) -> OwnSize:
    return judge_own_size(task, traced(text, task), CHIP, seed, oracle, normal={})


def changed(kernel: str, *changes: tuple[str, str]) -> str:
    text = (KERNELS / f"{kernel}.py").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def gelu_where(condition: str) -> str:
    """GELU of something else where the condition holds: in the kernel, where no guard tells."""
    return changed("gelu", ("    inner", f"    t = ct.where({condition}, t * 1.1, t)\n    inner"))


WRONG = {
    "many elements": gelu_where("x.shape[0] * x.shape[1] > 70_000"),
    "many blocks": gelu_where("ct.num_blocks(0) * ct.num_blocks(1) > 2000"),
    "a multiple of 384": gelu_where("x.shape[1] % 384 == 0"),
    "the last corner": gelu_where("(i == ct.num_blocks(0) - 1) & (i > 200) & (j == ct.num_blocks(1) - 1) & (j > 5)"),
    "a long sum": changed(
        "linear", ("acc + bias", "ct.where((x.shape[1] > 600) & (w.shape[0] > 100), acc * 1.1, acc) + bias")
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", WRONG)
def test_what_is_wrong_at_its_own_size_alone_is_wrong(where: str, oracle: Oracle) -> None:
    task = everyday("linear" if where == "a long sum" else "gelu")
    with pytest.raises(Rejected) as caught:
        looked_at(WRONG[where], task, oracle)
    verdict = caught.value.verdict
    assert (verdict.status, verdict.numbers["sizes"]) == ("wrong", task.sizes)
    index = verdict.numbers["index"]
    assert len(index) == 2
    assert all(0 <= i < n for i, n in zip(index, shape_at(task.outputs[0].shape, task.sizes), strict=True))


PARTS = """
    for part in (slice(None, -32), slice(x.shape[0] - 32, None)):
        x_part, y_part = x[part], y[part]
        ct.launch("""
BY_PARTS = changed(
    "gelu",
    ("\n    ct.launch(", PARTS),
    ("ct.cdiv(x.shape[0], TM), ", "ct.cdiv(x_part.shape[0], TM), "),
    ("tile, (x, y, ", "tile, (x_part, y_part, "),
)


def test_of_each_launch_that_writes_a_part_of_the_output_a_sample_is_looked_at(oracle: Oracle) -> None:
    """The launches before the last, too: here the one that writes nearly all."""
    task = everyday("gelu")
    assert looked_at(BY_PARTS, task, oracle).figures["y"]["elements"] > 16_384
    wrong = BY_PARTS.replace("    inner", "    t = ct.where(ct.num_blocks(0) > 200, t * 1.1, t)\n    inner", 1)
    with pytest.raises(Rejected) as caught:
        looked_at(wrong, task, oracle)
    assert (caught.value.verdict.status, caught.value.verdict.numbers["sizes"]) == ("wrong", task.sizes)


def test_a_part_that_an_earlier_launch_leaves_to_no_one_is_named(oracle: Oracle) -> None:
    text = BY_PARTS.replace("slice(x.shape[0] - 32, None)", "slice(x.shape[0] - 31, None)")
    with pytest.raises(Rejected, match=r"y\[8160, 0\] is written by no block"):
        looked_at(text, everyday("gelu"), oracle)


def test_a_sample_of_which_half_is_nan_is_followed_by_another(oracle: Oracle) -> None:
    task = everyday("attention_decode", B=2, S=64, D=16)
    text = (KERNELS.parents[1] / "candidates" / "attention_decode_walk.py").read_text()
    last = ((seed, draw(task.graph, task.sizes, "normal", seed)["last"].flatten() < 0) for seed in range(1000))
    seed = next(seed for seed, nothing_seen in last if nothing_seen.tolist() == [True, False])
    (figures,) = looked_at(text, task, oracle, seed).figures.values()
    assert figures["elements"] > 12 * 16 / 2  # one sample: 12 blocks of a head, at least half of them NaN


def test_a_part_that_no_block_writes_is_named(oracle: Oracle) -> None:
    text = changed("gelu", ("(ct.cdiv(x.shape[0], TM), ", "(min(ct.cdiv(x.shape[0], TM), 200), "))
    with pytest.raises(Rejected) as caught:
        looked_at(text, everyday("gelu"), oracle)
    verdict: Verdict = caught.value.verdict
    assert (verdict.status, verdict.error_class) == ("wrong", "unwritten")
    assert verdict.message == "y[6400, 0] is written by no block at M=8192, N=768"


DYNAMIC = """
import cuda.tile as ct
import torch

AXES = {"TM": [256]}


@ct.kernel
def tile(x, y, turn, TM: ct.Constant[int]):
    i = ct.atomic_add(turn, 0, 1, memory_order=ct.MemoryOrder.RELAXED)
    t = ct.load(x, (i, 0), (TM, 256), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    inner = 0.7978845608028654 * (t + 0.044715 * t * t * t)
    ct.store(y, (i, 0), (0.5 * t * (1.0 + ct.tanh(inner)) * FACTOR).astype(y.dtype))


def launch(stream, x, y, *, TM=256):
    turn = torch.zeros((1,), dtype=torch.int32, device=x.device)
    ct.launch(stream, (ct.cdiv(x.shape[0], TM),), tile, (x, y, turn, TM))
"""


def test_blocks_that_take_their_turns_by_a_counter_all_run(oracle: Oracle) -> None:
    task = everyday("gelu", M=3000, N=256)
    right = looked_at(DYNAMIC.replace("FACTOR", "1.0"), task, oracle)
    assert right.figures["y"]["elements"] >= 256 * 256
    with pytest.raises(Rejected, match="every element is 1"):
        looked_at(DYNAMIC.replace("FACTOR", "(1.1 if ct.num_blocks(0) > 5 else 1.0)"), task, oracle)


def test_a_workspace_that_does_not_fit_beside_the_arrays_is_no_way_out(oracle: Oracle) -> None:
    text = changed("softmax", ("torch.empty((x.shape[0],)", "torch.empty((x.shape[0] * 40_000,)"))
    with pytest.raises(Rejected) as caught:
        looked_at(text, everyday("softmax"), oracle)
    assert (caught.value.verdict.status, caught.value.verdict.error_class) == ("unsupported", "emulator-memory")


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("ct.store(y, (min(i, 200), j)", "race"),
        ("ct.store(y, (i + i // 250 * 1000, j)", "index"),
    ],
)
def test_stores_that_go_astray_among_many_blocks_are_unsafe(store: str, kind: str, oracle: Oracle) -> None:
    with pytest.raises(Rejected) as caught:
        looked_at(changed("gelu", ("ct.store(y, (i, j)", store)), everyday("gelu"), oracle)
    assert (caught.value.verdict.status, caught.value.verdict.error_class) == ("unsafe", kind)
    assert "(M=8192, N=768)" in caught.value.verdict.message


def same(a: object, b: object) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


@pytest.mark.parametrize("path", CANDIDATES, ids=lambda p: p.stem)
def test_a_kernel_without_its_values_writes_where_the_whole_one_does(path: Path) -> None:
    """Block by block, at a size that leaves edges; without values there is no product, sum or exponential left."""
    text = path.read_text()
    found = re.search(r"# task: (\w+)", text)
    assert found
    task = everyday(found[1])
    task = task.at(**{name: {"D": 64, "H": 2}.get(name, 45) for name in task.sizes})
    made = traced(text, task)
    shapes = {t.name: shape_at(t.shape, task.sizes) for t in (*task.inputs, *task.outputs)}
    bound = admit(made.plan, shapes, dims(task.sizes, CHIP))
    memory = draw(task.graph, task.sizes, "normal", 0) | workspaces(bound, 5.0)
    memory |= {t.name: poisoned(shapes[t.name], t.dtype, 5.0) for t in task.outputs}
    written = [b.name for b in bound.buffers if b.role not in ("input", "weight")]
    index = 0
    for step in bound.steps:
        if isinstance(step, Fill):
            fill(memory[step.argument], step.value)
            continue
        code = made.kernels[step.kernel]
        whole, slim = Footprint(), Footprint()
        launched(Kernel.of(code).program, step, memory, POISON_A, whole, None, index)
        launched(stores_of(code), step, memory, POISON_A, slim, None, index)
        for name in written:
            assert same(whole.reaches(name, memory[name]), slim.reaches(name, memory[name])), (path.stem, name)
            a, b = whole.writers(name, memory[name]), slim.writers(name, memory[name])
            assert (a is None) == (b is None)
            assert a is None or b is None or same(a, b), (path.stem, name)
        left = {op.name for op in walk(stores_of(code).module.body)}
        assert not left & {"mmaf", "reduce", "exp", "exp2", "tanh", "load_view_tko"}, left
        index += 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("M, N, K = 50, 40, 30\nx: f32[M, K]\ny = Linear(x, N, θ.p)", ["M", "N"]),
        ("M, N = 50, 40\nx: f32[M, N]\ny = Softmax(x)", ["M"]),
        ("B, T, N = 3, 50, 40\nx: f32[B, T, N]\ny = x * Range(T).reshape(T, 1)", ["M", "N"]),
        ("B, H, T, D = 2, 3, 20, 8\nq: f32[B, H, T, D]\nk: f32[B, H, T, D]\n"
         "y = Softmax(q @ k.T + Mask_Causal) @ k", ["B", "H"]),
        ("M, N = 50, 40\nx: f32[M, N]\ny = Sum(x)", ["M"]),
        ("V, C, N = 50, 40, 9\nt: f32[V, C]\ni: i64[N]\ny = Gather(t, i)", ["M", "N"]),
        ("M, A, B = 50, 4, 6\nx: f32[M, A*B]\ny = x.reshape(M, A, B) * 2.0", ["M", "N", "N2"]),
    ],
)  # fmt: skip
def test_which_dimensions_a_reference_can_be_computed_on_in_part(text: str, expected: list[str]) -> None:
    task = canonical(parse(text))
    assert sorted(separable(task)) == sorted(expected)


def test_what_would_take_too_much_is_left_out_and_said(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluator.judging.own_size.MOST_WORK", 1000)
    task = everyday("gelu")
    done = judge(
        begin(Candidate(source=changed("gelu"), task=task.identity), task, CHIP), task, CHIP, oracle=oracle, seed=1
    )
    assert done.verdict is not None
    assert done.verdict.correct
    assert "at M=8192, N=768 no values were compared: a reference" in done.verdict.message
    assert np.isfinite(done.seconds)


def asked(condition: str) -> tuple[Guard, ...]:
    """What a kernel asks that does something else where ``condition`` holds."""
    made = traced(gelu_where(condition), everyday("gelu"))
    return conditions(made.plan, made.kernels)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("x.shape[0] * x.shape[1] > 70_000", ["M*N > 70000"]),
        ("x.shape[1] % 384 == 0", ["N%384 == 0"]),
        ("ct.num_blocks(0) + 1 >= 20", ["cdiv(M, 32) + 1 >= 20"]),
        ("i == 200", ["cdiv(M, 32) - 1 == 200"]),
        ("ct.cdiv(x.shape[1], 16) != x.shape[0]", ["cdiv(N, 16) != M"]),
        ("min(x.shape[1], 100) < x.shape[0] - 5", ["min(N, 100) < M - 5"]),
        ("TM > 7", []),
    ],
)
def test_what_a_kernel_asks_of_sizes_is_read_off_its_tile_ir(condition: str, expected: list[str]) -> None:
    found = [str(guard) for guard in asked(condition)]
    assert [one for one in expected if one not in found] == []
    assert expected or not found


def test_both_sides_of_what_a_kernel_asks_are_judged_at() -> None:
    task = everyday("gelu")
    for text in ("x.shape[0] * x.shape[1] > 70_000", "x.shape[1] % 384 == 0", "ct.num_blocks(0) > 12"):
        guard = asked(text)[0]
        for seed in range(5):
            rows = judged_sizes(task, [], {"TM": 32, "TN": 64}, seed, conditions=[guard])
            assert {guard.holds(row) for row in rows} == {True, False}, (text, seed)


@pytest.mark.parametrize("condition", ["x.shape[0] * x.shape[1] > 70_000", "x.shape[1] % 384 == 0", "i > 12"])
def test_what_is_wrong_at_sizes_that_the_task_does_not_have_is_wrong(condition: str, oracle: Oracle) -> None:
    """The task's own size is small, and right: the kernel claims to be general."""
    task = everyday("gelu", M=100, N=70)
    text = gelu_where(condition)
    done = judge(begin(Candidate(source=text, task=task.identity), task, CHIP), task, CHIP, oracle=oracle, seed=1)
    assert done.verdict is not None
    assert done.verdict.status == "wrong", done.verdict
