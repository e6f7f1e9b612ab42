"""Modules whose forward is an operator: of a class made for it, which holds each call to what was recognised.

The class of a module is changed, as PyTorch's own parametrizations do it, and nothing of the module itself: parameters,
hooks and names stay, and a copy, a pickle or a replica of the module has the class too.  What a call has that
recognition did not see (another dtype, a gradient, another setting) takes it to the module's own forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from kernels_generated.ops import operators, signature, warn_caller

from .attended import Attends, AttentionCall, AttentionMode, only_attention_is_followed
from .fitness import APART, EXACT, GRADIENTS, NOT_PLAIN, unfit, unfit_now
from .reads import members
from .recognition import Equivalent

REMEMBERED = 1024  # signatures of a class of modules

Substitute = Equivalent | Attends  # for a module's forward


def replace(module: nn.Module, substitute: Substitute) -> None:
    """Gives the module a class of its class's whose forward is the substitute."""
    own: Any = type(module)
    module.__class__ = _replacing(own, substitute)


def restore(module: nn.Module) -> None:
    """Gives the module its own class again, where that was replaced."""
    if is_replaced(module):
        module.__class__ = type(module).tilewright.base  # type: ignore[attr-defined]


def is_replaced(module: nn.Module) -> bool:
    return "tilewright" in vars(type(module))


def declined(module: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> str:
    """Why a module with an equivalent computes such a call itself; empty where its operator does."""
    operands = type(module).tilewright.operands(module, given, named)  # type: ignore[attr-defined]
    return operands if isinstance(operands, str) else ""


_NOTHING = nullcontext()

# Who is told of the attention of a module while it is compared, by the module's id.
watched: dict[int, Callable[[AttentionCall | str, torch.Tensor, torch.Tensor], None]] = {}


@functools.cache
def _replacing(base: Any, substitute: Substitute) -> type[nn.Module]:
    """The class of modules of the class ``base`` with this substitute; one for all of them, as pickles name it."""
    replacement = _Attending(base) if isinstance(substitute, Attends) else Computed(base, substitute)
    forward = replacement.run

    @functools.wraps(base.forward)
    def run(self: nn.Module, *given: Any, **named: Any) -> Any:
        return forward(self, given, named)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        reduced: Any = base.__reduce_ex__(self, protocol)
        make, arguments, *rest = reduced
        make, *own_class = (base if one is replacement.made else one for one in (make, *arguments))
        return (_revived, (substitute, make, tuple(own_class)), *rest)

    members = {
        "forward": run, "__reduce_ex__": reduce, "__module__": __name__, "__doc__": base.__doc__,
        "tilewright": replacement,
    }  # fmt: skip
    replacement.made = type(f"Patched{base.__name__}", (base,), members)
    return replacement.made


def _revived(substitute: Substitute, make: Callable[..., nn.Module], arguments: tuple[Any, ...]) -> nn.Module:
    """What a pickle or a copy of a replaced module begins with; its state is set after."""
    module = make(*arguments)
    replace(module, substitute)
    return module


class _Replacement:
    """What the class of replaced modules knows.  made: that class.  base: the modules' own, own: its forward."""

    made: type[nn.Module]

    def __init__(self, base: type[nn.Module]) -> None:
        self.base, self.own = base, base.forward

    def is_whole(self, module: nn.Module) -> bool:
        """Whether the module still has the class that it was given, and that the forward it had then."""
        return type(module) is self.made and self.base.forward is self.own


class _Attending(_Replacement):
    """The forward stays, its attention is an operator's."""

    def run(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or not self.is_whole(module):
            return self.base.forward(module, *given, **named)
        with AttentionMode(watched.get(id(module)) if watched else None):
            return self.base.forward(module, *given, **named)


class Computed(_Replacement):
    """The forward is an operator."""

    def __init__(self, base: type[nn.Module], equivalent: Equivalent) -> None:
        super().__init__(base)
        self.equivalent = equivalent
        self.operator = operators()[equivalent.operator]
        self.call, self.contracts = self.operator.packet.default, self.operator.contracts
        first, *others = self.operator.interface.tensors
        self.width = first.shape[1]
        self.shapes = tuple(tuple(one.shape) for one in others)
        self.fitting: set[tuple[Any, ...]] = set()  # signatures that were seen to fit
        self.members = tuple(members(base).items())
        self.attributes = len(vars(nn.Module())) + equivalent.own
        known = {name for name, _ in equivalent.settings}
        kinds = [kind for kind in base.__mro__ if kind not in (nn.Module, object)]
        self.others = tuple(dict.fromkeys(
            name for kind in kinds for name in vars(kind) if name not in known and not name.startswith("__")
        ))  # fmt: skip

    def run(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            # What multiplies no matrices is fused with what is around it.
            operands = self.operands(module, given, named) if self.contracts else ""
            return self.base.forward(module, *given, **named) if isinstance(operands, str) else self.call(*operands)
        # The mode that looks for attention would be told of every attribute that is looked at.
        untold = torch._C._is_torch_function_mode_enabled() and only_attention_is_followed()
        with torch._C.DisableTorchFunction() if untold else _NOTHING:
            found = self._known(module, given, named)
            made = None if isinstance(found, str) else self.operator.at_once(*found)
        if made is not None:
            return made
        if not isinstance(found, str):
            return self.call(*found[0])
        if found == GRADIENTS:
            _warn_of_gradients()
        return self.base.forward(module, *given, **named)

    def _known(
        self, module: nn.Module, given: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor], tuple[Any, ...]] | str:
        """The operands and their signature, by which they are known if there were such before."""
        tensors = self._tensors(module, given, named)
        if isinstance(tensors, str):
            return tensors
        for one in tensors:
            if type(one) not in EXACT:
                return NOT_PLAIN
        try:
            form = signature(tensors)
        except RuntimeError:
            return self._unfit(tensors) or APART
        if form in self.fitting:
            return unfit_now(tensors) or (tensors, form)
        reason = self._unfit(tensors)
        if reason:
            return reason
        if len(self.fitting) >= REMEMBERED:
            self.fitting.clear()
        self.fitting.add(form)
        return tensors, form

    def is_whole(self, module: nn.Module) -> bool:
        return super().is_whole(module) and all(getattr(self.base, name) == one for name, one in self.members)

    def operands(self, module: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> list[torch.Tensor] | str:
        """The operator's arguments; where it does not compute what the module would, why not."""
        tensors = self._tensors(module, given, named)
        return tensors if isinstance(tensors, str) else self._unfit(tensors) or tensors

    def _tensors(self, module: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> list[torch.Tensor] | str:
        """What the module computes with, if it still is what was recognised."""
        if not self.is_whole(module):
            return "its class was changed"
        if len(given) != 1 or named:
            return "it was called with other arguments than one tensor"
        if module._modules or module._buffers or self._shadowed(module):
            return "it was given other attributes"
        for name, value in self.equivalent.settings:
            now = getattr(module, name)
            if now is not value and not _same(now, value):
                return f"its {name} is not {value} any more"
        x = given[0]
        tensors, held = [x], module._parameters
        for name in self.equivalent.parameters:
            one = held.get(name)
            tensors.append(getattr(module, name) if one is None else one)
        return tensors

    def _unfit(self, tensors: Sequence[torch.Tensor]) -> str:
        """Why the operator does not compute with these what the module would."""
        reason = unfit(tensors, self.operator)
        if not reason and self.equivalent.keeps_strides and not tensors[0].is_contiguous():
            reason = "its input is not contiguous, nor would its output be"
        if not reason and not self._fits(tensors):
            reason = f"its input has the shape {list(tensors[0].shape)}"
        return reason

    def _shadowed(self, module: nn.Module) -> bool:
        """Whether the module has attributes that its forward might read in place of its class's.

        torch.compile of PyTorch 2.11 does not count attributes, but it looks for each.
        """
        if not torch.compiler.is_compiling():
            return len(vars(module)) != self.attributes
        held = vars(module)
        return any(name in held for name in self.others)

    def _fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the shapes are the operator's; else the module itself says what is wrong, or broadcasts."""
        x, *parameters = tensors
        if x.dim() == 0:
            return False
        dims: dict[Any, Any] = {self.width: x.shape[-1]}
        for shape, one in zip(self.shapes, parameters, strict=True):
            if one.dim() != len(shape):
                return False
            for axis, n in zip(shape, one.shape, strict=True):
                if dims.setdefault(axis, n) != n:
                    return False
        return True


def _same(now: Any, then: Any) -> bool:
    if isinstance(then, functools.partial) and isinstance(now, functools.partial):
        return (now.func, now.args, now.keywords) == (then.func, then.args, then.keywords)
    return bool(now is then or now == then) or (now != now and then != then)  # NaN


@functools.cache
def _warn_of_gradients() -> None:
    """Once."""
    warn_caller(f"patched modules run through PyTorch where {GRADIENTS}: call the model in torch.inference_mode()")
