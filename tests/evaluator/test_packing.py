"""Weights that are prepared once: traced, judged and timed apart from what is done with them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from device_double import CHIP, DOUBLE, DeviceDouble, source, traced

from evaluator.compile import compile_kernels
from evaluator.judging import Rejected
from evaluator.judging.judgement import judge
from evaluator.judging.oracle import Oracle
from evaluator.replay import Composition, Runner, bench
from evaluator.timing import Measured, measured, modelled
from evaluator.trace import Request, Traced, same_launches, trace
from evaluator.trial import begin
from kernels_generated.runtime import bind
from kernels_generated.runtime.plan import LaunchPlan, PlanError, from_data
from knowledge_base.chips import chip
from knowledge_base.records import Candidate, Trial, Verdict

NAME = "dense_packed"
TEXT, TASK = source(NAME)
LYING = """
import typing
Recorder = typing.sys.modules["evaluator.trace.recorder"].Recorder
honest = Recorder.plan


def lying(self):
    plan = honest(self)
    {lie}
    return plan


Recorder.plan = lying
"""


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))


def changed(*changes: tuple[str, str]) -> str:
    text = TEXT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def judged(text: str, oracle: Oracle) -> Trial:
    return judge(begin(Candidate(source=text, task=TASK.identity), TASK, CHIP), TASK, CHIP, seed=5, oracle=oracle)


def verdict(text: str, oracle: Oracle) -> Verdict:
    found = judged(text, oracle).verdict
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------------------- the plan


def test_the_first_steps_of_a_plan_prepare_weights_and_nothing_else() -> None:
    _, one = traced(NAME)
    plan = one.plan
    assert plan.packing == 2
    assert [(a.name, a.role, a.dtype) for a in plan.arguments if a.role == "packed"] == [
        ("w_tiles", "packed", "bf16"),
        ("wide", "packed", "f32"),
    ]
    assert from_data(json.loads(plan.dumps())) == plan
    first, rest = bind(plan, {**TASK.sizes, "num_sms": 1}).parts
    assert [launch.symbol for launch in first.launches] == ["cut", "widen"]
    assert [launch.symbol for launch in rest.launches] == ["dense"]
    assert {b.name for b in first.buffers} == {"w", "b", "w_tiles", "wide"}
    assert {b.name for b in rest.buffers} == {"x", "w", "b", "w_tiles", "wide", "y"}


def test_what_is_packed_is_the_same_whatever_the_rows_of_x_are() -> None:
    _, one = traced(NAME)
    parts = {bind(one.plan, {**TASK.sizes, "M": rows, "num_sms": 1}).parts[0] for rows in (1, 77, 4096)}
    assert len(parts) == 1


def test_a_plan_without_packing_is_written_as_it_always_was() -> None:
    _, one = traced("linear_tiles")
    assert one.plan.packing == 0
    assert "packing" not in one.plan.to_json()
    first, rest = bind(one.plan, {**one.sizes, "num_sms": 1}).parts
    assert (first.steps, first.buffers) == ((), ())
    assert rest == bind(one.plan, {**one.sizes, "num_sms": 1})


def test_a_fresh_trace_that_packs_otherwise_is_another_plan() -> None:
    sizes = TASK.sizes
    (one,), (fresh,) = (trace(TEXT, TASK, [Request(sizes, {}, policy)], CHIP) for policy in ("general", "concrete"))
    assert isinstance(one, Traced)
    assert isinstance(fresh, Traced)
    assert same_launches(one, sizes, fresh) is None
    other = dataclasses.replace(fresh, plan=dataclasses.replace(fresh.plan, packing=1))
    assert same_launches(one, sizes, other) == "2 steps prepare weights in the plan, 1 afresh"


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (3, "input x is used"),
        (0, "packed arguments are made by launches"),
        (True, "not a number of the plan's steps"),
        (9, "not a number of the plan's steps"),
        (-1, "not a number of the plan's steps"),
    ],
)
def test_a_plan_whose_packing_is_not_apart_is_refused(packing: object, message: str) -> None:
    _, one = traced(NAME)
    with pytest.raises(PlanError, match=re.escape(message)):
        from_data(one.plan.to_json() | {"packing": packing})


def test_packing_depends_on_no_size_that_weights_do_not_have() -> None:
    _, one = traced(NAME)
    data = one.plan.to_json()
    for argument in data["arguments"]:
        if argument["name"] == "wide":
            argument["shape"] = ["M"]
    with pytest.raises(PlanError, match=r"plan\.packing: depends on M, which is no axis of a weight"):
        from_data(data)
    data = one.plan.to_json()
    data["steps"][0]["grid"][0] = "M"
    with pytest.raises(PlanError, match="depends on M"):
        from_data(data)


def test_a_workspace_is_no_way_around_what_is_packed() -> None:
    _, one = traced(NAME)
    data = one.plan.to_json()
    for argument in data["arguments"]:
        if argument["name"] == "wide":
            argument["role"] = "workspace"
    with pytest.raises(PlanError, match="workspace wide is used after it, too"):
        from_data(data)


@pytest.mark.parametrize("lie", ['plan["packing"] = 3', 'del plan["packing"]'])
def test_what_a_candidate_says_of_its_packing_is_not_believed(lie: str) -> None:
    text = changed(("\n\ndef pack(", f"\n{LYING.format(lie=lie)}\n\ndef pack("))
    (answer,) = trace(text, TASK, [Request(TASK.sizes)], CHIP)
    assert isinstance(answer, Verdict)
    assert answer.error_class == "bad-answer", answer
    assert "plan.packing" in answer.message


# ---------------------------------------------------------------------------------------------------- the file

LAUNCH = "def launch(stream, x, w, b, w_tiles, wide, y,"
PACK = "def pack(stream, w, b, w_tiles, wide, *, TN=64, TK=32):"
SHAPES = 'PACKED = {"w_tiles": ("cdiv(N, TN)", "cdiv(K, TK)", "TN", "TK"), "wide": ("N", "float32")}'
KEEPS = "KEPT.append(torch.empty(wide.shape, dtype=torch.float32, device=w.device))"
REFUSED: dict[str, tuple[tuple[tuple[str, str], ...], str, str]] = {
    "pack takes an input": (
        ((PACK, PACK.replace("w, b", "x, w, b")),),
        "bad-packing",
        "pack takes x, which is no weight of this task (w, b)",
    ),
    "pack takes no weight": (((PACK, PACK.replace("w, b, ", "")),), "bad-packing", "pack takes no weight"),
    "pack leaves one out": (
        ((PACK, PACK.replace(" wide,", "")),),
        "bad-packing",
        "pack does not take wide, which PACKED names",
    ),
    "pack's stream": (((PACK, PACK.replace("stream, ", "")),), "bad-packing", "pack's first parameter is stream"),
    "pack's keyword": (
        ((PACK, PACK.replace("TN=64", "TN=64, other")),),
        "bad-packing",
        "pack's parameter other is no axis and has no default",
    ),
    "no pack": ((("def pack(", "def prepare("),), "bad-packing", "PACKED needs a function pack(stream, …)"),
    "no shapes": (((SHAPES, ""),), "bad-packing", "pack needs PACKED, the shapes of what it fills"),
    "computed": ((('("N", "float32")', 'tuple("N")'),), "bad-packing", "PACKED is a literal dictionary"),
    "no shape": ((('("N", "float32")', '("float32",)'),), "bad-packing", "PACKED['wide'] is a tuple of 1 to 8 sizes"),
    "half a size": ((('("N", "float32")', '("N", 1.5)'),), "bad-packing", "PACKED['wide'] is a tuple of 1 to 8 sizes"),
    "a taken name": (((SHAPES, SHAPES.replace('"wide"', '"y"')),), "bad-packing", "pack does not take y"),
    "rows of x": (
        (('("N", "float32")', '("M", "float32")'),),
        "bad-packing",
        "PACKED['wide']: 'M' is none of N, K, TM, TN, TK",
    ),
    "no expression": (
        (('("N", "float32")', '("N if N else 1",)'),),
        "bad-packing",
        "sizes are made of names, whole numbers, + - * // % and cdiv(…, …)",
    ),
    "nothing in it": ((('("N", "float32")', '("N - N", "float32")'),), "bad-workspace", "wide of 0 elements along"),
    "by zero": ((('("N", "float32")', '("N // (TN - TN)", "float32")'),), "bad-packing", "PACKED['wide']: integer"),
    "no end of it": (
        (('("N", "float32")', '("N * 4096", "65536", "float32")'),),
        "workspace-too-large",
        "a packed array wide of",
    ),
    "launch takes none": (
        ((LAUNCH, LAUNCH.replace(" w_tiles, wide,", "")),),
        "bad-launch",
        "this task with what is packed has 6: x[M,K], w[N,K], b[N], w_tiles, wide, y[M,N]",
    ),
    "pack launches nothing": (
        (("    ct.launch(stream, (tiles_n, tiles_k)", "    return\n    ct.launch(stream, (tiles_n, tiles_k)"),),
        "launches-nothing",
        "pack returned without launching a kernel",
    ),
    "pack forgets one": (
        (("    ct.launch(stream, (tiles_n,), widen, (b, wide, TN))", ""),),
        "output-unused",
        "no kernel of pack receives wide",
    ),
    "pack goes away": ((("\n\ndef launch(", "\n\ndel pack\n\n\ndef launch("),), "bad-packing", "there is no function"),
    "a workspace is kept": (
        (
            ("    tiles_n, tiles_k = w_tiles.shape[:2]\n", f"    tiles_n, tiles_k = w_tiles.shape[:2]\n    {KEEPS}\n"),
            ("import cuda.tile as ct\n", "import cuda.tile as ct\nimport torch\n\nKEPT = []\n"),
            ("dense, (x, w_tiles, wide,", "dense, (x, w_tiles, KEPT[-1],"),
        ),
        "stale-array",
        "a workspace of pack is used in launch: PACKED names what launch is given",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_with_a_packing_is_said(what: str) -> None:
    changes, error_class, message = REFUSED[what]
    (answer,) = trace(changed(*changes), TASK, [Request(TASK.sizes)], CHIP)
    assert isinstance(answer, Verdict)
    assert (answer.status, answer.error_class) == ("invalid", error_class), answer
    assert message in answer.message
    assert answer.hint


def test_pack_takes_weights_and_axes_by_their_names_in_any_order() -> None:
    text = changed((PACK, "def pack(stream, wide, b, w_tiles, w, TK=32, *, num_sms=None, TN=64):"))
    (answer,) = trace(text, TASK, [Request(TASK.sizes, {"TK": 64})], CHIP)
    assert isinstance(answer, Traced), answer
    packed = bind(answer.plan, {**TASK.sizes, "num_sms": 1}).buffer("w_tiles")
    assert packed.shape == (-(-TASK.sizes["N"] // 64), -(-TASK.sizes["K"] // 64), 64, 64)


# ---------------------------------------------------------------------------------------------------- judging


def test_a_packed_kernel_is_judged_as_any_other(oracle: Oracle) -> None:
    trial = judged(TEXT, oracle)
    assert trial.verdict is not None
    assert trial.verdict.correct, trial.verdict
    assert trial.general
    assert "own size" in trial.verdict.numbers


def test_packing_that_is_said_to_be_no_part_of_it_is_a_launch_that_writes_what_is_packed(oracle: Oracle) -> None:
    lying = LYING.format(lie='plan["packing"] = 1')
    found = verdict(changed(("\n\ndef pack(", f"\n{lying}\n\ndef pack(")), oracle)
    assert (found.status, found.error_class) == ("unsafe", "input-modified"), found


def test_where_the_number_of_tiles_is_a_multiple_the_plan_is_judged_all_the_same(oracle: Oracle) -> None:
    task = TASK.at(M=256, N=192, K=512)  # 16 tiles of 32: its kernels are compiled for a multiple of 16
    trial = judge(begin(Candidate(source=TEXT, task=task.identity), task, CHIP), task, CHIP, seed=5, oracle=oracle)
    assert trial.verdict is not None
    assert trial.verdict.correct, trial.verdict


STORE = "    ct.store(y, index=(i, j), tile=(acc"
WRONG = {
    "launch adds to what is packed": (
        ((STORE, f"    ct.store(wide, index=(j,), tile=bias)\n{STORE}"),),
        ("unsafe", "input-modified", "packed wide is written"),
    ),
    "pack writes a weight": (
        (("    ct.store(wide, index=(j,)", "    ct.store(b, index=(j,), tile=bias)\n    ct.store(wide, index=(j,)"),),
        ("unsafe", "input-modified", "weight b is written"),
    ),
    "pack leaves elements out": (
        (("    ct.launch(stream, (tiles_n,), widen", "    ct.launch(stream, (max(1, tiles_n - 1),), widen"),),
        ("unsafe", "uninitialised", ""),
    ),
    "pack rounds too much": (
        (("tile=ct.reshape(tile, ", "tile=ct.reshape(tile.astype(ct.float8_e4m3fn).astype(w.dtype), "),),
        ("wrong", "", ""),
    ),
    "pack takes another tile": (
        (("ct.store(w_tiles, index=(j, k, 0, 0)", "ct.store(w_tiles, index=(j, ct.num_blocks(1) - 1 - k, 0, 0)"),),
        ("wrong", "", ""),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_packing_does_wrong_is_found(what: str, oracle: Oracle) -> None:
    changes, (status, error_class, message) = WRONG[what]
    found = verdict(changed(*changes), oracle)
    assert found.status == status, found
    assert error_class in ("", found.error_class), found
    assert message in found.message


# ---------------------------------------------------------------------------------------------------- time


def test_the_modelled_time_has_packing_beside_it() -> None:
    on = chip("h200")
    task = TASK.at(M=4096, N=1024, K=1024)
    (one,) = trace(TEXT, task, [Request(task.sizes, {}, "sample")], on)
    assert isinstance(one, Traced)
    cubins = compile_kernels(one.kernels, [on.arch])
    evidence = {digest: answer.evidence for (digest, _), answer in cubins.items()}  # type: ignore[union-attr]
    time = modelled(task, task.sizes, one.plan, one.kernels, evidence, on)
    assert time.packing_us is not None
    assert 2 < time.packing_us < 20
    assert time.us > time.packing_us
    unpacked = modelled(task, task.sizes, _later(one.plan), one.kernels, evidence, on)
    assert unpacked.us == time.us
    assert unpacked.packing_us is None


def _later(plan: LaunchPlan) -> LaunchPlan:
    """The steps after packing as a plan of their own."""
    arguments = tuple(dataclasses.replace(a, role="weight") if a.role == "packed" else a for a in plan.arguments)
    return dataclasses.replace(plan, steps=plan.steps[plan.packing :], packing=0, arguments=arguments)


def composition(text: str = TEXT) -> Composition:
    (one,) = trace(text, TASK, [Request(TASK.sizes)], CHIP)
    assert isinstance(one, Traced), one
    return Composition.of_task(TASK, one, dict(one.kernels))


def test_on_a_device_packing_runs_once_and_is_timed_alone() -> None:
    device = DeviceDouble({}, {})
    emulated = bench.Bench(device)
    (times,) = bench.raced([composition()], CHIP, 1, 1, emulated)
    packing = bench.packed(composition(), CHIP, 1, 1, emulated)
    assert len(times) == len(packing) > 0
    assert all(us > 0 for us in (*times, *packing))


def test_on_a_device_a_launch_that_changes_what_is_packed_is_found() -> None:
    # Every call makes the bias larger; one call alone is right.
    text = changed((STORE, f"    if i == 0:\n        ct.store(wide, index=(j,), tile=bias + 1.0)\n{STORE}"))
    one = composition(text)
    emulated = bench.Bench(DeviceDouble({}, {}))
    with pytest.raises(Rejected) as caught:
        bench.examined(TASK, one.plans, one.cubins, CHIP, [TASK.sizes], 1, ("normal",), 60.0, emulated)
    assert caught.value.verdict.error_class == "input-modified"
    assert "packed wide was modified after the weights were prepared" in caught.value.verdict.message
    with pytest.raises(Rejected):
        bench.raced([one], CHIP, 1, 1, emulated)


def test_a_timer_with_a_card_has_packing_beside_its_time() -> None:
    _, one = traced(NAME)
    answers = compile_kernels(one.kernels, [CHIP.arch])
    bytecodes = {answer.digest: one.kernels[digest] for (digest, _), answer in answers.items()}  # type: ignore[union-attr]
    trial = begin(Candidate(source=TEXT, task=TASK.identity), TASK, CHIP)
    with Runner(DOUBLE, bytecodes, {"clock": (40.0, 0.01)}) as runner:
        time = Measured(runner, seed=3).time(trial, TASK, one)
    assert time is not None
    assert time.us == pytest.approx(40.0, rel=0.02)
    assert time.packing_us is not None


def test_samples_of_packing_are_no_part_of_the_time() -> None:
    time = measured([[10.0] * 8, [11.0] * 8], TASK, TASK.sizes, CHIP, [[3.0] * 8, [4.0] * 8])
    assert time.packing_us == pytest.approx(3.46, abs=0.1)
    assert 10 <= time.us <= 11
    assert measured([[10.0] * 8], TASK, TASK.sizes, CHIP, [[]]).packing_us is None
