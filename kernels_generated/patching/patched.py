"""Patching a model and taking that back: what is replaced, and that the model still computes the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_generated.ops import operators

from .attended import Attends, AttentionCall, AttentionMode
from .fitness import FLOAT32
from .patch_report import Patched, PatchedModule
from .recognition import Equivalent, Unrecognised, recognised
from .replaced import Computed, Substitute, declined, is_replaced, replace, restore, watched
from .twice import ONE, WHOLE, difference, limit, run


def patch(model: nn.Module, /, *example: Any, check: bool = True, **named: Any) -> Patched:
    """Replaces the modules of ``model`` that compute what an operator computes, in place.

    model: of any origin; its parameters stay as they are and where they are.
    example, named: what the model is called with, in copies, to compare its outputs with those that it had before.
    check: False leaves that out, and needs no example.

    A module that gives something else than its operator, by more than rounding, stays as it is.  Raises TypeError and
    ValueError for what cannot be patched or compared, and RuntimeError where the outputs differ by more than rounding;
    nothing of the model is patched then.
    """
    _patchable("patch", model)
    unpatch(model)
    if check and not example and not named:
        raise TypeError(
            "patch(model, *example): give what the model is called with, as its outputs are compared with those it had "
            "before; patch(model, check=False) does not compare"
        )
    kind = type(model).__name__
    before: dict[str, torch.Tensor] = {}
    attending: dict[int, AttentionCall | str] = {}
    if check:
        before, attending = _attentions(model, example, named)
    errors: dict[str, float] = {}
    most = 0.0
    try:
        modules = _replaced(model, _device(model, example, named), attending)
        if check:
            seen, after = _watched(model, modules, example, named)
            held = _held(model, modules, seen)
            if [one.operator for one in held] != [one.operator for one in modules]:
                after = run(model, example, named)
            modules = held
            computed = (call.dtype for calls in seen.values() for call in calls)
            most = limit(WHOLE, (*computed, *(one.dtype for one in (*model.parameters(), *before.values()))))
            errors = _compared(before, after, most)
    except BaseException:
        unpatch(model)
        raise
    return Patched(kind, tuple(modules), errors, most)


def unpatch(model: nn.Module) -> None:
    """Has each module of ``model`` compute by itself again.

    Raises TypeError, before anything is changed, where the class of a patched module was changed since.
    """
    _patchable("unpatch", model)
    for name, module in model.named_modules():
        if hasattr(type(module), "tilewright") and not is_replaced(module):
            what = f"{name or 'the model itself'} became a {type(module).__name__}"
            raise TypeError(
                f"unpatch(): {what} since it was patched: take that back first "
                "(torch.nn.utils.parametrize.remove_parametrizations, if it was parametrized)"
            )
    for module in model.modules():
        restore(module)


def _patchable(what: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{what}(): expected a torch.nn.Module, but got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"{what}(): a ScriptModule runs no Python, so nothing in it can be replaced: patch its source")
    if hasattr(model, "_orig_mod"):
        raise TypeError(f"{what}(): this model is compiled: patch the one that was, then compile that")


def _device(model: nn.Module, *arguments: Any) -> torch.device:
    """Where modules without parameters are taken to compute."""
    tensors = (*model.parameters(), *model.buffers(), *pytree.tree_leaves(arguments))
    return next((one.device for one in tensors if isinstance(one, torch.Tensor)), torch.device("cpu"))


def _attentions(
    model: nn.Module, example: Sequence[Any], named: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[int, AttentionCall | str]]:
    """The outputs of the model as it is, and of each module whose own forward attends, by its id, what would."""
    found: dict[int, AttentionCall | str] = {}
    running: list[int] = []

    def enter(module: nn.Module, _: Any) -> None:
        running.append(id(module))

    def leave(*_: Any) -> None:
        running.pop()

    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))

    def seen(what: AttentionCall | str, own: torch.Tensor, made: torch.Tensor) -> None:
        if running and not isinstance(found.get(running[-1]), AttentionCall):
            found[running[-1]] = what

    try:
        with AttentionMode(seen, only_look=True):
            return run(model, example, named), found
    finally:
        for hook in hooks:
            hook.remove()


def _replaced(
    model: nn.Module, device: torch.device, attending: Mapping[int, AttentionCall | str]
) -> list[PatchedModule]:
    """All modules that compute something; those that an operator stands for are replaced now."""
    modules = []
    known: dict[Any, Equivalent | str] = {}
    for name, module in list(model.named_modules()):
        attention = attending.get(id(module))
        if attention is not None:
            modules.append(_attends(name, module, attention))
            continue
        if module._modules and not module._parameters:
            continue  # what it does its parts do, or functions that nobody replaces
        kind = type(module).__name__
        try:
            equivalent = recognised(module, known)
        except Unrecognised as reason:
            modules.append(PatchedModule(name, kind, "", str(reason)))
            continue
        lacking = _lacking(module, equivalent, device) or _lets(module, equivalent)
        modules.append(PatchedModule(name, kind, "" if lacking else equivalent.operator, lacking))
    return modules


def _attends(name: str, module: nn.Module, attention: AttentionCall | str) -> PatchedModule:
    """A module that attends; where an operator can, it is replaced now."""
    kind = type(module).__name__
    if isinstance(attention, str):
        return PatchedModule(name, kind, "", attention)
    if "forward" in vars(module):
        return PatchedModule(name, kind, "", "its forward was replaced, on this module alone")
    lacking = operators()[attention.operator].lacks(attention.dtypes, attention.device) or _lets(module, Attends())
    return PatchedModule(name, kind, "" if lacking else attention.operator, lacking)


def _lets(module: nn.Module, substitute: Substitute) -> str:
    """Replaces it; why its class forbids that, where it does."""
    try:
        replace(module, substitute)
    except TypeError as error:
        return f"its class takes no other in its place: {error}"
    return ""


def _lacking(module: nn.Module, equivalent: Equivalent, device: torch.device) -> str:
    """Why there is no kernel for the module where it lies, though an operator computes the same."""
    operator = operators()[equivalent.operator]
    parameters = [one for one in module._parameters.values() if one is not None]
    if not parameters:  # an activation: its dtype is its input's
        return operator.lacks(next(iter(operator.interface.variants)), device)
    dtype = parameters[0].dtype
    if operator.contracts and dtype == torch.float32:
        return FLOAT32
    return operator.lacks((dtype,) * (1 + len(parameters)), parameters[0].device)


@dataclass(frozen=True)
class _Call:
    """A replaced module's, in the example.  error: how it differs from the module's own forward.  reason: why it was
    that.  dtype: of what it gave."""

    error: float | None
    reason: str
    dtype: torch.dtype


def _watched(
    model: nn.Module, modules: Sequence[PatchedModule], example: Sequence[Any], named: Mapping[str, Any]
) -> tuple[dict[str, list[_Call]], dict[str, torch.Tensor]]:
    """The model run once more: the calls of its replaced modules, and its outputs by their paths."""
    seen: dict[str, list[_Call]] = {}

    def watching(name: str, own: Callable[..., Any]) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
            reason = declined(module, given, kwargs)
            error = None if reason else difference(own(module, *given, **kwargs), made)
            seen.setdefault(name, []).append(_Call(error, reason, made.dtype))

        return hook

    def attended(name: str) -> Callable[[AttentionCall | str, torch.Tensor, torch.Tensor], None]:
        def tell(found: AttentionCall | str, own: torch.Tensor, made: torch.Tensor) -> None:
            reason = found if isinstance(found, str) else ""
            seen.setdefault(name, []).append(_Call(None if reason else difference(own, made), reason, made.dtype))

        return tell

    parts = dict(model.named_modules())
    hooks = []
    try:
        for one in modules:
            if one.operator:
                part = parts[one.name]
                replacement = type(part).tilewright  # type: ignore[attr-defined]
                if isinstance(replacement, Computed):
                    watch = watching(one.name, replacement.own)
                    hooks.append(part.register_forward_hook(watch, with_kwargs=True, prepend=True))
                else:
                    watched[id(part)] = attended(one.name)
        return seen, run(model, example, named)
    finally:
        for hook in hooks:
            hook.remove()
        for part in parts.values():
            watched.pop(id(part), None)


def _held(
    model: nn.Module, modules: Sequence[PatchedModule], seen: Mapping[str, Sequence[_Call]]
) -> list[PatchedModule]:
    """The modules with what was seen of each.  Those that differ by more than rounding compute by themselves again."""
    parts = dict(model.named_modules())
    found = []
    for one in modules:
        if one.operator:
            calls = seen.get(one.name, [])
            error = max((call.error for call in calls if call.error is not None), default=None)
            most = limit(ONE, (call.dtype for call in calls))
            reason = next((call.reason for call in calls if call.reason), "")
            if not calls:
                reason = "the example did not call it"
            if error is not None and error > most:
                restore(parts[one.name])
                off = f"{one.operator} differs from it by {error:.1e}, and rounding is at most {most:.0e}"
                one = PatchedModule(one.name, one.kind, "", off)
            else:
                one = changed(one, reason=reason, error=error)
        found.append(one)
    return found


def _compared(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], most: float) -> dict[str, float]:
    """How the outputs differ, by their paths.  Raises RuntimeError where that is more than rounding."""
    errors = {path: difference(before[path], after[path]) for path in before if path in after}
    if before.keys() != after.keys():
        raise RuntimeError(
            f"patch(): the outputs were {', '.join(before)}, and are {', '.join(after)}; nothing is patched"
        )
    worst = max(errors, key=lambda path: errors[path])
    if errors[worst] > most:
        raise RuntimeError(
            f"patch(): the model's output{worst and ' '}{worst} differs by {errors[worst]:.1e} from what it was, where "
            f"rounding is at most {most:.0e}; nothing is patched"
        )
    return errors
