"""The launcher on a card: what a plan leaves in memory is what cuTile's own launch of the same file leaves there."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evaluator.compile import Compiled, compile_kernels
from evaluator.judging.inputs import draw, torch_dtype
from evaluator.trace import Request, Traced, read_axes, trace
from kernels_generated.runtime import Driver, DriverError, Launcher, bind
from kernels_generated.runtime.bound import BoundPlan
from kernels_generated.runtime.launcher import element_bytes
from knowledge_base.chips import Chip, from_driver
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.graph import shape_at
from knowledge_base.snf.task import Task

pytestmark = pytest.mark.gpu

FOLDER = Path(__file__).parent.parent / "candidates"
SIZES = {"M": 1000, "N": 192, "K": 160, "B": 2, "T": 70, "S": 144, "H": 3, "D": 64, "V": 300, "P": 200, "C": 192}
# Where nothing is divisible, what cuTile assumes of the arrays at hand is what a general plan assumes of any.
PRIMES = {"M": 1009, "N": 193, "K": 163, "B": 3, "T": 71, "S": 149, "H": 5, "D": 64, "V": 307, "P": 199, "C": 193}


def named(file: Path, sizes: dict[str, int] = SIZES) -> Task:
    task = everyday(re.match(r"# task: (\w+)", file.read_text())[1])  # type: ignore[index]
    return task.at(**{d: sizes[d] for d in task.sizes})


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"candidate_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def asked_for(function: Callable[..., None], axes: Mapping[str, Any], chip: Chip) -> dict[str, Any]:
    """What ``launch`` or ``pack`` takes as keywords."""
    taken = inspect.signature(function).parameters
    return {name: value for name, value in {**axes, "num_sms": chip.sm_count}.items() if name in taken}


def memory(bound: BoundPlan, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The plan's buffers on the card: ``given`` ones, the others full of an odd value."""
    return {
        b.name: given[b.name] if b.name in given else torch.full(b.shape, 7, dtype=torch_dtype(b.dtype), device="cuda")
        for b in bound.buffers
    }


@pytest.mark.parametrize(("policy", "sizes"), [("general", PRIMES), ("sample", SIZES)], ids=["general", "sample"])
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_a_plan_leaves_what_cutiles_own_launch_leaves(file: Path, policy: str, sizes: dict[str, int]) -> None:
    """Bit for bit, where both are compiled under the same assumptions: others give sums another order."""
    chip, task = from_driver(), named(file, sizes)
    axes = {name: values[0] for name, values in read_axes(file.read_text()).items()}  # type: ignore[union-attr]
    (traced,) = trace(file.read_text(), task, [Request(task.sizes, axes, policy)], chip)
    assert isinstance(traced, Traced), traced
    cubins = {digest: answer.cubin for (digest, _), answer in compile_kernels(traced.kernels, [chip.arch]).items()
              if isinstance(answer, Compiled)}  # fmt: skip

    inputs = {name: value.cuda() for name, value in draw(task.graph, task.sizes, "normal", 1).items()}
    expected = [
        torch.full(shape_at(t.shape, task.sizes), 7, dtype=torch_dtype(t.dtype), device="cuda") for t in task.outputs
    ]
    bound = bind(traced.plan, {**task.sizes, "num_sms": chip.sm_count})
    held = memory(bound, inputs)
    module, stream, given = imported(file), torch.cuda.current_stream(), dict(inputs)
    packed = {b.name: held[b.name].clone() for b in bound.buffers if b.role == "packed"}
    if packed:
        weights = {name: value for name, value in inputs.items() if name in inspect.signature(module.pack).parameters}
        module.pack(stream, **weights, **packed, **asked_for(module.pack, axes, chip))
        given |= packed
    module.launch(stream, *given.values(), *expected, **asked_for(module.launch, axes, chip))
    Launcher(Driver(), cubins).prepare(bound).run(
        {name: tensor.data_ptr() for name, tensor in held.items()}, torch.cuda.current_stream().cuda_stream
    )
    torch.cuda.synchronize()
    for tensor, value in zip(task.outputs, expected, strict=True):
        made = held[tensor.name]
        assert torch.equal(made.view(torch.uint8), value.view(torch.uint8)), (made.float() - value.float()).abs().max()


def test_a_cubin_for_another_chip_is_refused() -> None:
    file = FOLDER / "gelu_tiles.py"
    task, chip = named(file), from_driver()
    (traced,) = trace(file.read_text(), task, [Request(task.sizes)], chip)
    assert isinstance(traced, Traced)
    other = "sm_120" if chip.arch != "sm_120" else "sm_90"
    ((_, answer),) = compile_kernels(traced.kernels, [other]).items()
    assert isinstance(answer, Compiled)
    bound = bind(traced.plan, {**task.sizes, "num_sms": chip.sm_count})
    with pytest.raises(DriverError, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        Launcher(Driver(), dict.fromkeys(traced.kernels, answer.cubin)).prepare(bound)


@pytest.mark.parametrize("dtype", ["bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "f8e4m3"])
def test_a_fill_leaves_what_torch_fills(dtype: str) -> None:
    made = torch.zeros(1001, dtype=torch_dtype(dtype), device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    Driver().fill(made.data_ptr() + made.itemsize, element_bytes(dtype, 3), 999, stream)
    torch.cuda.synchronize()
    expected = torch.zeros(1001, dtype=torch.float64)
    expected[1:1000] = 3
    assert torch.equal(made.cpu().view(torch.uint8), expected.to(torch_dtype(dtype)).view(torch.uint8))
