"""A model on generated kernels beside itself: how far its outputs are off, and on a card how long each form takes."""

from __future__ import annotations

import copy
import itertools
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from evaluator import emulator
from evaluator.timing import median, ratio
from kernels_generated.ops import operators
from kernels_generated.patching import NothingToCompare, difference, outputs, patch, tilewright
from knowledge_base.errors import UserError

from .sources import Given, said

ROUNDS = 15  # in which all forms take turns, there and back
SAMPLE_MS = 20.0  # a sample is as many calls
WARM = 3  # calls before: a compiled form records its graph in them
EAGER, PATCHED, COMPILED, TILEWRIGHT = "eager", "patched", "torch.compile", "tilewright"


def versus(given: Given, device: str, chip: str, mode: str, say: Callable[[str], None]) -> dict[str, Any]:
    """The comparison as a document.

    device: cuda, or cpu, where kernels of ``chip`` are emulated.  mode: of torch.compile; none leaves it out.

    Raises UserError for a model that fails by itself or cannot be patched.
    """
    if device == "cpu":
        emulator.install(chip)
    model = given.model
    say("running the model …")
    try:
        before = outputs(model, given.example, given.named)
    except NothingToCompare as error:
        raise UserError(str(error), "Name another example.") from None
    except Exception as error:
        raise UserError(f"the model does not take its example: it raised {said(error)}") from None
    twin = _twin(model)
    say("patching …")
    refused, report = "", None
    try:
        report = patch(twin, *given.example, **given.named)
    except RuntimeError as error:
        refused = str(error)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None
    document: dict[str, Any] = {
        "model": type(model).__name__,
        "of": given.about,
        "parameters": sum(one.numel() for one in model.parameters()),
        "dtypes": sorted({_short(one.dtype) for one in model.parameters()}),
        "device": device,
        "card": torch.cuda.get_device_name() if device == "cuda" else None,
        "emulated": chip if device == "cpu" else None,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "example": [_described(one) for one in given.example],
        "named": {name: _described(one) for name, one in given.named.items()},
        "refused": refused,
        "report": str(report) if report is not None else "",
        "modules": [asdict(one) for one in report.modules] if report is not None else [],
        "errors": dict(report.errors) if report is not None else {},
        "limit": report.limit if report is not None else None,
        "float32": None,
        "times": [],
        "lacking": {},
    }
    if report is None:
        return document
    if device == "cpu":
        document["lacking"]["times"] = "nothing is timed without a GPU"
    say("running it in float32 …")
    document["float32"], lacking = _against_float32(given, before, outputs(twin, given.example, given.named))
    if lacking:
        document["lacking"]["float32"] = lacking
    if device == "cuda":
        document["times"], lacking_forms = _timed(given, twin, before, mode, say)
        document["lacking"].update(lacking_forms)
    return document


def _twin(model: nn.Module) -> nn.Module:
    """A second model with the first one's parameters and buffers themselves."""
    shared: dict[int, Any] = {id(one): one for one in itertools.chain(model.parameters(), model.buffers())}
    try:
        return copy.deepcopy(model, shared)
    except Exception as error:
        raise UserError(f"the model is not copied, to be patched beside itself: {said(error)}") from None


# ---------------------------------------------------------------------------------------------------- errors


def _against_float32(
    given: Given, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
) -> tuple[dict[str, float] | None, str]:
    """How far the model's and the patched model's outputs are from those of the model in float32: the largest of the
    relative root mean squares.  Else why that is not known."""
    if all(one.dtype in (torch.float32, torch.float64) for one in given.model.parameters()):
        return None, "the model is float32 itself"

    def widened(one: Any) -> Any:
        return one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    try:
        exact = copy.deepcopy(given.model).float()
        example, named = pytree.tree_map(widened, (given.example, dict(given.named)))
        wanted = outputs(exact, example, named)
    except torch.OutOfMemoryError:
        return None, "there is no memory for a copy in float32"
    except Exception as error:
        return None, f"in float32 it raises {said(error)}"
    if not wanted.keys() == before.keys() == after.keys():
        return None, "its outputs in float32 are others"
    largest = {
        name: max(difference(wanted[path].float(), made[path].float()) for path in wanted)
        for name, made in ((EAGER, before), (PATCHED, after))
    }
    finite = all(map(math.isfinite, largest.values()))
    return (largest, "") if finite else (None, "its outputs in float32 are finite elsewhere")


# ---------------------------------------------------------------------------------------------------- times


def _timed(
    given: Given, twin: nn.Module, before: Mapping[str, torch.Tensor], mode: str, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Each form's time, how its outputs differ from those before, and why some forms have none."""
    models: dict[str, Any] = {EAGER: given.model, PATCHED: twin}
    if mode != "none":
        models[COMPILED] = torch.compile(given.model, mode=mode)
        models[TILEWRIGHT] = torch.compile(given.model, mode=mode, backend=tilewright)
    calls: dict[str, Callable[[], object]] = {}
    errors: dict[str, float] = {}
    lacking: dict[str, str] = {}
    kernels: dict[str, dict[str, Any]] = {}
    with torch.inference_mode():
        for name, one in models.items():
            say(f"preparing {name} …")

            def call(one: Any = one) -> object:
                return one(*given.example, **given.named)

            try:
                for _ in range(WARM):
                    call()
                torch.cuda.synchronize()
            except torch.OutOfMemoryError:
                lacking[name] = "there is no memory for it"
                continue
            except Exception as error:  # a compiler's, mostly
                lacking[name] = f"it raised {said(error)}"
                continue
            calls[name] = call
            kernels[name] = _kernels(call)
            made = outputs(one, given.example, given.named)
            errors[name] = max(difference(before[path], made.get(path)) for path in before)
        say("timing …")
        samples = _samples(calls)
    rows = []
    for name, own in samples.items():
        time, faster = median([own]), ratio([own], [samples[PATCHED]])
        rows.append({
            "name": name,
            "ms": time.value, "low": time.low, "high": time.high,
            "ratio": faster.value, "ratio_low": faster.low, "ratio_high": faster.high,
            "error": errors[name],
            **kernels[name],
        })  # fmt: skip
    return rows, lacking


def _samples(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """ms a call, of rounds in which the forms take turns, there and back."""
    counts = {name: max(1, math.ceil(SAMPLE_MS / max(_ms(call, 1), 1e-3))) for name, call in calls.items()}
    names = list(calls)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(ROUNDS):
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(_ms(calls[name], counts[name]))
    return found


def _ms(call: Callable[[], object], count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / count


def _kernels(call: Callable[[], object]) -> dict[str, Any]:
    """How many kernels a call launches, how many of them are generated, and how long the card is busy with each, ms."""
    symbols = {
        launch.symbol for one in operators().values() for manifest in one.manifests for winner in manifest.winners
        for plan in winner.plans for launch in manifest.plan(plan).launches
    }  # fmt: skip
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    on_card = [one for one in profile.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [one for one in on_card if not one.name.startswith(("Memcpy", "Memset"))]
    own = [one for one in kernels if any(symbol in one.name for symbol in symbols)]
    return {
        "kernels": len(kernels),
        "generated": len(own),
        "busy_ms": sum(one.device_time for one in kernels) / 1e3,
        "generated_ms": sum(one.device_time for one in own) / 1e3,
    }


# ---------------------------------------------------------------------------------------------------- words


def _described(one: Any) -> str:
    """``int64[8, 1024]`` of a tensor; what is no tensor by its class, or as it is written where that is short."""
    if isinstance(one, torch.Tensor):
        return f"{_short(one.dtype)}{list(one.shape)}"
    text = repr(one)
    return text if len(text) <= 20 else type(one).__name__


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
