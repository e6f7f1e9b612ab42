"""Weights prepared once for an operator: cached while they stay what they were, and never used when they do not."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import shutil
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device_double import source
from operator_arguments import near, wide

from agent.loop import winners
from evaluator import emulator
from evaluator.judging import JudgeProcess
from evaluator.plans import Plans
from evaluator.timing import timed
from evaluator.trial import begin
from kernels_generated import ops
from kernels_generated.ops.registration import Operator
from kernels_generated.runtime import backend
from kernels_generated.runtime.backend import Run
from kernels_generated.runtime.bound import BoundPlan
from kernels_generated.runtime.manifest import Manifest, read_manifest
from knowledge_base.chips import chip
from knowledge_base.records import Candidate

NAME = "dense_packed"
H200 = chip("h200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Winners: a linear that packs its weights, said to be the faster one, and one that takes them as they are."""
    made = tmp_path_factory.mktemp("winners")
    for name in (NAME, "linear_tiles"):
        text, task = source(name)
        plans = Plans()
        with JudgeProcess() as judges:
            trial = judges.judge(begin(Candidate(source=text, task=task.identity), task, H200), task, H200, plans=plans)
        trial = timed(trial, task, plans)
        assert trial.correct, trial.verdict
        winners.write(made, task, trial, plans.of(trial), {})
    path = made / "linear" / "manifest.json"
    document = json.loads(path.read_text())
    for winner in document["winners"]:
        winner["us"] = 1.0 if winner["packing_us"] is not None else 2.0
    path.write_text(json.dumps(document))
    with (made / "linear" / "reference.py").open("a") as file:
        file.write("\n\npacked_linear = linear\n")
    return made / "linear"


@pytest.fixture(scope="module")
def operator(folder: Path) -> Operator:
    """The operator of that folder, under a name of its own: what ships is called linear."""
    return Operator([dataclasses.replace(read_manifest(folder), name="packed_linear")])


@pytest.fixture
def linear(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    monkeypatch.setitem(ops._OPERATORS, "packed_linear", operator)
    yield operator
    for packed in list(operator._packed.values()):
        packed.release()
    operator._said.clear()


class Watched(emulator.Emulated):
    """The emulator, with the names of the kernels that ran."""

    def __init__(self) -> None:
        super().__init__("h200")
        self.ran: list[str] = []

    def prepare(self, bound: BoundPlan, manifest: Manifest) -> Run:
        run = super().prepare(bound, manifest)

        def watched(tensors: Sequence[Any]) -> None:
            self.ran += [launch.symbol for launch in bound.launches]
            run(tensors)

        return watched


@pytest.fixture
def emulated() -> Iterator[Watched]:
    watched = Watched()
    backend.install("cpu", watched)
    yield watched
    backend.install("cpu", None)


def given(rows: int = 5, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, 72), (40, 72), (40,))]


def test_the_folder_holds_a_winner_of_each_kind(folder: Path) -> None:
    found = json.loads((folder / "manifest.json").read_text())["winners"]
    assert [winner["packing_us"] is not None for winner in found] == [False, True]
    assert all(winner["general"] for winner in found)


def test_packed_kernels_run_for_weights_that_were_packed_and_for_no_others(linear: Operator, emulated: Watched) -> None:
    x, w, b = given()
    expected = F.linear(*wide([x, w, b]))
    near(linear.packet(x, w, b), expected)
    assert emulated.ran == ["tiles"]
    packed = ops.pack("packed_linear", w, b)
    assert emulated.ran == ["tiles", "cut", "widen"]
    assert packed.nbytes == 64 * 96 * 2 + 40 * 4  # whole tiles of 64 by 32, and the bias
    assert repr(packed) == "<packed weights of packed_linear: 12,448 bytes in 1 layout>"
    for rows in (5, 1, 77):
        near(linear.packet(given(rows)[0], w, b), F.linear(*wide([given(rows)[0], w, b])))
    assert emulated.ran[3:] == ["dense"] * 3
    other = w.clone()
    near(linear.packet(x, other, b), expected)
    assert emulated.ran[6:] == ["tiles"]


def test_what_was_packed_is_not_packed_again(linear: Operator, emulated: Watched) -> None:
    _, w, b = given()
    packed = ops.pack(linear.function(), w, b)
    assert ops.pack("packed_linear", w.view_as(w), b.detach()) is packed
    assert emulated.ran == ["cut", "widen"]


def test_weights_that_changed_in_place_are_taken_as_they_are_and_that_is_said(
    linear: Operator, emulated: Watched
) -> None:
    x, w, b = given()
    packed = ops.pack("packed_linear", w, b)
    b += 1
    with pytest.warns(ops.ThroughPyTorch, match="takes its weights as they are: they changed since they were packed"):
        near(linear.packet(x, w, b), F.linear(*wide([x, w, b])))
    assert emulated.ran[2:] == ["tiles"]
    assert (packed.nbytes, repr(packed)) == (0, "<packed weights of packed_linear: released>")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linear.packet(x, w, b)  # once
        ops.pack("packed_linear", w, b)
        near(linear.packet(x, w, b), F.linear(*wide([x, w, b])))
    assert emulated.ran[-1] == "dense"


def test_an_optimizers_step_is_a_change(linear: Operator, emulated: Watched) -> None:
    x, w, b = given()
    weights = [torch.nn.Parameter(one) for one in (w, b)]
    ops.pack("packed_linear", *weights)
    optimizer = torch.optim.SGD(weights, lr=0.5)
    near(linear.packet(x, *weights), F.linear(*wide([x, w, b])))
    assert emulated.ran[-1] == "dense"
    linear.packet(x, *weights).float().square().sum().backward()
    optimizer.step()
    with pytest.warns(ops.ThroughPyTorch, match="they changed"):
        near(linear.packet(x, *weights), F.linear(*wide([x, *weights])))


def test_what_others_keep_where_the_weights_lay_is_not_taken_for_them(linear: Operator, emulated: Watched) -> None:
    x, w, b = given()
    packed = ops.pack("packed_linear", w, b)
    assert not packed.gone
    del w
    gc.collect()
    assert packed.gone
    _, other, _ = given(9)
    ops.pack("packed_linear", other, b)
    assert packed.nbytes == 0  # what nobody can use any more is freed by the next
    near(linear.packet(x, other, b), F.linear(*wide([x, other, b])))


def test_new_memory_of_a_parameter_is_not_the_packed_one(linear: Operator, emulated: Watched) -> None:
    x, w, b = given()
    weight = torch.nn.Parameter(w)
    ops.pack("packed_linear", weight, b)
    weight.data = w + 1
    near(linear.packet(x, weight, b), F.linear(*wide([x, weight.detach(), b])))
    assert emulated.ran[-1] == "tiles"


@pytest.mark.parametrize("kind", ["rows with gaps", "turned", "odd"])
def test_weights_may_lie_anyhow(kind: str, linear: Operator, emulated: Watched) -> None:
    x, w, b = given()
    if kind == "rows with gaps":
        w = torch.cat([w, w], 1)[:, :72]
    elif kind == "turned":
        w = w.T.contiguous().T
    else:
        w = torch.cat([b[:1], w.reshape(-1)])[1:].view(40, 72)
    ops.pack("packed_linear", w, b)
    near(linear.packet(x, w, b), F.linear(*wide([x, w, b])))
    assert emulated.ran == ["cut", "widen", "dense"]
    # The same memory in another form is another weight.
    near(linear.packet(x, w[:16], b[:16]), F.linear(*wide([x, w[:16], b[:16]])))
    assert emulated.ran[-1] == "tiles"


def test_packed_weights_under_torch_compile_and_with_gradients(linear: Operator, emulated: Watched) -> None:
    x, w, b = given()
    weight = torch.nn.Parameter(w)
    ops.pack("packed_linear", weight, b)
    compiled = torch.compile(
        lambda x: torch.ops.tilewright.packed_linear(x, weight, b) * 2, fullgraph=True, backend="aot_eager"
    )
    found = compiled(x)
    near(found, 2 * F.linear(*wide([x, w, b])))
    assert emulated.ran[-1] == "dense"
    found.float().sum().backward()
    assert weight.grad is not None


def test_release_frees_and_goes_back(linear: Operator, emulated: Watched) -> None:
    x, w, b = given()
    packed = ops.pack("packed_linear", w, b)
    linear.packet(x, w, b)
    (made,) = packed._layouts.values()
    freed = weakref.ref(made[0])
    del made
    packed.release()
    packed.release()
    assert freed() is None
    near(linear.packet(x, w, b), F.linear(*wide([x, w, b])))
    assert emulated.ran[-1] == "tiles"


def test_where_no_kernel_wants_packed_weights_nothing_is_made(linear: Operator, emulated: Watched) -> None:
    _, w, b = given()
    for packed, reason in (
        (ops.pack(ops.linear, w, b), "none of its kernels for sm_90 wants them packed"),
        (ops.pack("packed_linear", w.float(), b.float()), "none of its kernels for sm_90 wants them packed"),
        (ops.pack("packed_linear", w[:, :0], b), "they are empty"),
    ):
        assert (packed.nbytes, packed.reason) == (0, reason)
    assert emulated.ran == []
    backend.install("cpu", None)
    assert "its arguments are on cpu" in ops.pack("packed_linear", w, b).reason


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda w, b: [w], "pack(packed_linear): expected its weights w, b, but got 1 arguments"),
        (lambda w, b: [w, "b"], "pack(packed_linear): expected b to be a tensor, but got a str"),
        (lambda w, b: [b, w], "packed_linear(): expected w with 2 axes, but got shape [40]"),
        (lambda w, b: [w, b[:3]], "packed_linear(): expected b with shape [40], but got shape [3]"),
        (lambda w, b: [w, b.to("meta")], "expected all tensors on the same device, but got w on cpu, b on meta"),
    ],
)
def test_what_are_not_its_weights_is_named(weights: Callable[..., Any], message: str, linear: Operator) -> None:
    _, w, b = given()
    with pytest.raises(RuntimeError, match=re.escape(message)):
        ops.pack("packed_linear", *weights(w, b))


def test_weights_that_do_not_tell_of_changes_are_refused(linear: Operator) -> None:
    with torch.inference_mode():
        _, w, b = given()
    with pytest.raises(RuntimeError, match=r"w was made under torch\.inference_mode\(\)"):
        ops.pack("packed_linear", w, b)


def test_what_is_no_operator_or_has_no_weights() -> None:
    with pytest.raises(ValueError, match="'linear_glu' is no operator: there are add, attention"):
        ops.pack("linear_glu", torch.zeros(3))
    with pytest.raises(RuntimeError, match=r"softmax\(\) has no weights to pack"):
        ops.pack(ops.softmax, torch.zeros(3))


def test_where_every_kernel_wants_packed_weights_it_is_said_how(
    folder: Path, tmp_path: Path, emulated: Watched
) -> None:
    shutil.copytree(folder, tmp_path / "linear")
    path = tmp_path / "linear" / "manifest.json"
    document = json.loads(path.read_text())
    document["winners"] = [winner for winner in document["winners"] if winner["packing_us"] is not None]
    path.write_text(json.dumps(document))
    made = Operator([dataclasses.replace(read_manifest(path.parent), name="alone_linear")])
    with (path.parent / "reference.py").open("a") as file:
        file.write("\n\nalone_linear = linear\n")
    x, w, b = given()
    with pytest.warns(ops.ThroughPyTorch, match=r"it wants its weights packed: ops\.pack\(ops\.alone_linear, …\)"):
        near(made.packet(x, w, b), F.linear(*wide([x, w, b])))


@pytest.mark.gpu
def test_on_a_gpu_packed_kernels_run_and_are_recorded_in_graphs(linear: Operator) -> None:
    x, w, b = (one.cuda() for one in given(77))
    expected = F.linear(*wide([x, w, b]))
    packed = ops.pack("packed_linear", w, b)
    assert packed.nbytes, packed.reason
    near(linear.packet(x, w, b), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = linear.packet(x, w, b)
    x += 1
    graph.replay()
    near(recorded, F.linear(*wide([x, w, b])))
    w *= 2
    with pytest.warns(ops.ThroughPyTorch, match="they changed"):
        near(linear.packet(x, w, b), F.linear(*wide([x, w, b])))
