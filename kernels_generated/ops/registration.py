"""Operators with PyTorch's dispatcher: shapes for torch.compile, gradients, automatic mixed precision.

They are registered by torch.library's lower interface, whose calls cost a third of ``custom_op``'s.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad

from kernels_generated.runtime import backend as backends
from kernels_generated.runtime.backend import Backend, NoKernel, Run
from kernels_generated.runtime.bound import BoundPlan, Unlaunchable, bind, bind_packing
from kernels_generated.runtime.expr import ExprError
from kernels_generated.runtime.manifest import REFERENCE, Manifest, ManifestError
from kernels_generated.runtime.plan import LaunchPlan
from kernels_generated.runtime.strided import contiguous, restrided

from .dispatch import applicable, packings
from .gpu import gpu
from .interface import FLOATS, Interface, Sizes, torch_dtype
from .packing import PackedWeights

NAMESPACE = "tilewright"
REMEMBERED = 4096  # signatures of an operator; a program with more of them chooses anew
ALIGNMENT = 16  # bytes: what kernels were compiled for, and what PyTorch's own allocations exceed

_INSIDE = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))  # whose lines nobody is warned at

_LIBRARY = torch.library.Library(NAMESPACE, "DEF")

Call = Callable[[Sequence[Any]], Any]


class ThroughPyTorch(UserWarning):
    """An operator that runs PyTorch's own kernels, and why; said once of each operator and reason."""


class Operator:
    """One operator.  ``manifests``: of its task, one for each combination of dtypes that has kernels."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self.interface = Interface(manifests)
        self.name = self.interface.name
        self.manifests = tuple(manifests)
        self._count = len(self.interface.tensors)
        self._packed: dict[tuple[int, ...], PackedWeights] = {}  # by the addresses of the weights
        self._calls: dict[tuple[Any, ...], Call] = {}
        self._changes = backends.changes()
        self._said: set[str] = set()
        self._reference: Callable[..., Any] | None = None
        _LIBRARY.define(self.interface.schema)
        qualified = f"{NAMESPACE}::{self.name}"
        _LIBRARY.impl(self.name, self.run, "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, self.fake, lib=_LIBRARY)
        self.packet = getattr(getattr(torch.ops, NAMESPACE), self.name)
        _LIBRARY.impl(self.name, self._differentiable(), "Autograd", with_keyset=True)
        for device_type, key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
            _LIBRARY.impl(self.name, self._autocast(device_type, key), key)

    @property
    def contracts(self) -> bool:
        """Whether it multiplies matrices."""
        return self.manifests[0].contraction

    # ------------------------------------------------------------------------------------------------ running

    def run(self, *arguments: Any) -> Any:
        """The result, by the kernel that was chosen when these shapes, strides and dtypes were seen first."""
        return self.chosen(arguments)(arguments)

    def at_once(self, arguments: Sequence[Any], form: tuple[Any, ...]) -> Any:
        """The same past PyTorch's dispatcher, a sixth of a call's cost; None where somebody waits for the call there.

        arguments: plain dense tensors, of which no gradient is recorded, under no autocast.  form: their ``signature``.
        """
        if not _unwatched():
            return None
        for one in arguments:
            if one.is_neg() or one._is_zerotensor():  # its memory is not what it says
                return None
        return self._known(arguments, form)(arguments)

    def chosen(self, arguments: Sequence[Any]) -> Call:
        """What computes the result: looked up by dtypes, shapes, strides, alignment and device."""
        try:
            form = signature(arguments)
        except RuntimeError:
            self.interface.refuse_layouts(arguments[: self._count])
            raise
        return self._known(arguments, form)

    def _known(self, arguments: Sequence[Any], form: tuple[Any, ...]) -> Call:
        """What was chosen for arguments of that signature, or is now."""
        packed = self._packing(arguments, form) if self._packed else None
        if packed is not None:
            form = (*form, packed)
        if self._changes != backends.changes():
            self._calls.clear()
            self._changes = backends.changes()
        call = self._calls.get(form)
        if call is None:
            if len(self._calls) >= REMEMBERED:
                self._calls.clear()
            call = self._calls[form] = self._choose(arguments, packed)
        return call

    # ------------------------------------------------------------------------------------------------ packing

    def pack(self, weights: Sequence[Any]) -> PackedWeights:
        """Prepares the weights in each way that a winner for their device wants; what was prepared already is kept.

        Raises RuntimeError for what are not the operator's weights.
        """
        given = [_tensor(one) for one in weights]
        dims = self.interface.weight_dims(given)
        for old in [one for one in self._packed.values() if one.gone]:
            old.release()
        key, forms = tuple(one.data_ptr() for one in given), signature(given)
        known = self._packed.get(key)
        if known is not None:
            if known.forms == forms and not known.gone and known.current(given):
                return known
            known.release()
        layouts: dict[BoundPlan, Sequence[torch.Tensor]] = {}
        try:
            backend = _backend(given[0].device)
            reason = f"none of its kernels for {backend.arch} wants them packed"
            if 0 in dims.values():
                raise NoKernel("they are empty")
            dims["num_sms"] = backend.num_sms
            for manifest in self.interface.of_weights([one.dtype for one in given]):
                for plan in packings(manifest, backend.arch, dims):
                    packing = bind_packing(plan, dims)
                    if packing not in layouts:
                        layouts[packing] = _prepared(packing, self.interface.weights, given, backend, manifest)
        except (NoKernel, Unlaunchable) as error:
            reason = str(error)
        packed = PackedWeights(self.name, given, forms, layouts, "" if layouts else reason, self._forget)
        if layouts:
            self._packed[key] = packed
        return packed

    def _packing(self, arguments: Sequence[Any], signature: tuple[Any, ...]) -> PackedWeights | None:
        """What was made of these weights, if they are what they were then."""
        places = self.interface.weight_places
        weights = [arguments[place] for place in places]
        packed = self._packed.get(tuple([one.data_ptr() for one in weights]))
        if packed is None or packed.forms != tuple([signature[place] for place in places]) or packed.gone:
            return None
        if not packed.current(weights):
            warn_caller(f"{self.name} takes its weights as they are: they changed since they were packed")
            packed.release()
            return None
        return packed

    def _layout(
        self, plan: LaunchPlan, dims: Mapping[str, int], packed: PackedWeights | None
    ) -> Sequence[torch.Tensor]:
        """What the plan reads in place of weights; nothing where it takes them as they are.  Raises NoKernel."""
        if not plan.packing:
            return ()
        made = packed.layout(bind_packing(plan, dims)) if packed is not None else None
        if made is None:
            raise NoKernel(f"it wants its weights packed: ops.pack(ops.{self.name}, …)")
        return made

    def _forget(self, packed: PackedWeights) -> None:
        """Takes the weights as they are from now on."""
        for key in [key for key, one in self._packed.items() if one is packed]:
            del self._packed[key]
        self._calls.clear()  # they hold what was packed

    def fake(self, *arguments: Any) -> Any:
        """Outputs without data, of the shapes and dtypes that :meth:`run` gives."""
        tensors, numbers = arguments[: self._count], arguments[self._count :]
        device, dtypes = self.interface.device(tensors), self.interface.dtypes(tensors)
        sizes = self.interface.sizes(tensors, numbers)
        return _returned([tensors[0].new_empty(s, dtype=d, device=device) for s, d in self._made(sizes, dtypes)])

    def reference(self, *arguments: Any) -> Any:
        """The task as PyTorch computes it."""
        if self._reference is None:
            path = self.manifests[0].folder / REFERENCE
            spec = importlib.util.spec_from_file_location(f"{__package__}.{self.name}_reference", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self._reference = getattr(module, self.name)
        return self._reference(*arguments)

    def _choose(self, arguments: Sequence[Any], packed: PackedWeights | None) -> Call:
        tensors, numbers = arguments[: self._count], arguments[self._count :]
        device, dtypes = self.interface.device(tensors), self.interface.dtypes(tensors)
        sizes = self.interface.sizes(tensors, numbers)
        if any(n == 0 for n in sizes.dims.values()):  # kernels are for sizes from 1 on
            return self._plainly(sizes, dtypes)
        try:
            return self._planned(tensors, device, sizes, dtypes, packed)
        except NoKernel as reason:
            self._say(str(reason))
            return self._plainly(sizes, dtypes)

    def _planned(
        self,
        tensors: Sequence[torch.Tensor],
        device: torch.device,
        sizes: Sizes,
        dtypes: Sequence[torch.dtype],
        packed: PackedWeights | None,
    ) -> Call:
        """The best kernel's call.  Raises NoKernel."""
        backend = _backend(device)
        manifest = self._manifest(tuple(tensor.dtype for tensor in tensors))
        reasons = []
        for winner, plan in applicable(manifest, backend.arch, backend.num_sms, sizes.dims):
            dims = {**sizes.dims, "num_sms": backend.num_sms}
            try:
                prepared = self._layout(plan, dims, packed)
                bound = self._in_order(bind(plan, dims))
                copied = []
                for argument, tensor in zip(self.interface.tensors, tensors, strict=True):
                    leading = len(sizes.leading) if self.interface.batched(argument) else None
                    read = _in_place(plan, bound, argument.name, tensor, leading)
                    copied.append(read is None)
                    bound = read or bound
                bound = bound.parts[1]
                run = backend.prepare(bound, manifest)
            except (NoKernel, Unlaunchable, ExprError) as error:
                reasons.append(f"{winner.kernel[:7]}: {error}")
                continue
            own = [(one.shape, torch_dtype(one.dtype)) for one in bound.buffers if one.role == "workspace"]
            return _kernel_call(run, copied, self._made(sizes, dtypes), prepared, own, device)
        if not reasons:
            _known(manifest, backend)
            shown = ", ".join(f"{dim}={n}" for dim, n in sizes.dims.items())
            reasons = [f"no kernel of its is for {shown}"]
        raise NoKernel("; ".join(reasons))

    def _in_order(self, bound: BoundPlan) -> BoundPlan:
        """The plan with its buffers as a call has them: the arguments, the results, what is packed, workspaces."""
        given = [one.name for one in (*self.interface.tensors, *self.interface.outputs)]
        own = [one.name for role in ("packed", "workspace") for one in bound.buffers if one.role == role]
        return replace(bound, buffers=tuple(bound.buffer(name) for name in (*given, *own)))

    def lacks(self, dtypes: tuple[torch.dtype, ...], device: torch.device) -> str:
        """Why no kernel of its runs there for arguments of these dtypes, whatever their sizes; empty where some do."""
        try:
            _known(self._manifest(dtypes), _backend(device))
        except NoKernel as reason:
            return str(reason)
        return ""

    def _manifest(self, dtypes: tuple[torch.dtype, ...]) -> Manifest:
        """Raises NoKernel."""
        manifest = self.interface.variants.get(dtypes)
        if manifest is None:
            *some, last = sorted({str(one) for found in self.interface.variants for one in found if one in FLOATS})
            here = f"{', '.join(some)} and {last}" if some else last
            dtype = next(dtype for dtype in dtypes if dtype in FLOATS)
            raise NoKernel(f"its kernels are for {here}, not {dtype}")
        return manifest

    def _made(self, sizes: Sizes, dtypes: Sequence[torch.dtype]) -> list[tuple[tuple[Any, ...], torch.dtype]]:
        """Shape and dtype of each output."""
        shapes = [self.interface.output_shape(output, sizes) for output in self.interface.outputs]
        return list(zip(shapes, dtypes, strict=True))

    def _plainly(self, sizes: Sizes, dtypes: Sequence[torch.dtype]) -> Call:
        """PyTorch's own computation, in new contiguous tensors as a kernel's are."""

        def call(arguments: Sequence[Any]) -> Any:
            outputs = self._made(sizes, dtypes)
            if not any(math.prod(shape) for shape, _ in outputs):  # the reference may divide by a size
                device = self.interface.device(arguments[: self._count])
                return _returned([torch.empty(shape, dtype=dtype, device=device) for shape, dtype in outputs])
            storages = {one.untyped_storage().data_ptr() for one in arguments if isinstance(one, torch.Tensor)}
            results = []
            for one, dtype in zip(self._evaluated(arguments, sizes), dtypes, strict=True):
                made = one.to(dtype)
                shared = made.untyped_storage().data_ptr() in storages
                results.append(made.clone(memory_format=torch.contiguous_format) if shared else made.contiguous())
            return _returned(results)

        return call

    def _evaluated(self, arguments: Sequence[Any], sizes: Sizes) -> list[torch.Tensor]:
        """The reference's results: it takes one batch axis, the operator any number of axes in its place."""
        given = [
            one.reshape(math.prod(sizes.leading), *one.shape[len(sizes.leading) :])
            if self.interface.batched(argument)
            else one
            for argument, one in zip(self.interface.tensors, arguments[: self._count], strict=True)
        ]
        made = self.reference(*given, *arguments[self._count :])
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        return [
            one.reshape(*sizes.leading, *one.shape[1:]) if self.interface.batched(output) else one
            for output, one in zip(self.interface.outputs, results, strict=True)
        ]

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            warn_caller(f"{self.name} runs through PyTorch: {reason}")

    # ------------------------------------------------------------------------------------------------ gradients

    def _differentiable(self) -> Callable[..., Any]:
        """What the dispatcher calls first: notes the call for the backward pass where a gradient may be asked for."""
        overload, count, backward = self.packet.default, self._count, self._backward
        at_once: dict[int, bool] = {}

        def below(keys: Any, arguments: Sequence[Any]) -> Any:
            known = keys.raw_repr()
            if known not in at_once:
                last = (keys & torch._C._after_ADInplaceOrView_keyset).highestPriorityTypeId()
                at_once[known] = last in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
            if at_once[known]:  # nobody else waits for the call: a third of what the dispatcher takes is saved
                return self.run(*arguments)
            with torch._C._AutoDispatchBelowAutograd():
                return overload.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, keys: Any, *arguments: Any) -> Any:
                ctx.save_for_backward(*arguments[:count])
                ctx.numbers = arguments[count:]
                return below(keys, arguments)

            @staticmethod
            def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
                return (None, *backward(ctx, ctx.needs_input_grad[1:], *gradients))

        def call(keys: Any, *arguments: Any) -> Any:
            if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
                return self._transformed(arguments)
            if torch.is_grad_enabled():
                for one in arguments[:count]:
                    if one.requires_grad:
                        return Function.apply(keys, *arguments)
            return below(keys, arguments)

        return call

    def _transformed(self, arguments: Sequence[Any]) -> Any:
        """The reference, in float32 as for the backward pass: each of its steps has whatever rule is asked for.

        A kernel has none of torch.func's, nor for forward-mode derivatives, which would be lost without a word.
        """
        tensors = arguments[: self._count]
        wide = _wide(tensors)
        dtypes, sizes = self.interface.dtypes(tensors), self.interface.sizes(tensors, arguments[self._count :])
        given = [one.to(wide) if one.dtype in FLOATS else one for one in tensors]
        with _differentiable_twice() if _derived_again() else nullcontext():
            made = self._evaluated([*given, *arguments[self._count :]], sizes)
        return _returned([one.to(dtype) for one, dtype in zip(made, dtypes, strict=True)])

    def _backward(self, ctx: Any, asked: Sequence[bool], *gradients: torch.Tensor) -> tuple[Any, ...]:
        """The reference's gradients, computed in float32 (of float64 arguments in float64) and rounded once."""
        again = torch.is_grad_enabled()  # the gradients' own gradients will be asked for
        saved = ctx.saved_tensors
        if not any(one is not None and one.numel() for one in gradients):
            zeros = (torch.zeros_like(one) if needed else None for one, needed in zip(saved, asked, strict=False))
            return (*zeros, *(None for _ in ctx.numbers))
        wide = _wide(saved)
        twice = _differentiable_twice() if again else nullcontext()
        as_they_are = torch.autocast(saved[0].device.type, enabled=False)  # backward() may be called under another
        with torch.enable_grad(), as_they_are, twice:
            given, wanted = [], []
            for one, needed in zip(saved, asked, strict=False):
                upcast = one.to(wide) if one.dtype in FLOATS else one
                if needed:
                    upcast = upcast if again else upcast.detach().requires_grad_()
                    wanted.append(upcast)
                given.append(upcast)
            sizes = self.interface.sizes(saved, ctx.numbers)
            results = self._evaluated([*given, *ctx.numbers], sizes)
            pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None and r.requires_grad]
            found = iter(
                torch.autograd.grad(
                    [r for r, _ in pairs], wanted, [g.to(r.dtype) for r, g in pairs], create_graph=again,
                    allow_unused=True,
                )
            )  # fmt: skip
        rounded = []
        for one, needed in zip(saved, asked, strict=False):
            gradient = next(found) if needed else None
            rounded.append(None if gradient is None else gradient.to(one.dtype))
        return (*rounded, *(None for _ in ctx.numbers))

    def _autocast(self, device_type: str, key: str) -> Callable[..., Any]:
        """Under automatic mixed precision: matrix products in its dtype, all else in the widest of the arguments'."""
        without = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def cast(*arguments: Any) -> Any:
            floats = [one.dtype for one in arguments if isinstance(one, torch.Tensor) and one.dtype in FLOATS]
            to = torch.get_autocast_dtype(device_type)
            if torch.float64 in floats or not self.contracts:
                to = floats[0] if floats else to
                for dtype in floats[1:]:
                    to = torch.promote_types(to, dtype)
            with torch._C._ExcludeDispatchKeyGuard(without):
                return self.packet(
                    *(one.to(to) if isinstance(one, torch.Tensor) and one.dtype in FLOATS else one for one in arguments)
                )

        return cast

    # ------------------------------------------------------------------------------------------------ for people

    def function(self) -> Callable[..., Any]:
        """What users call: tensors of PyTorch, and of whatever else speaks DLPack."""
        packet = self.packet

        def operator(*arguments: Any, **named: Any) -> Any:
            for one in (*arguments, *named.values()):
                if not isinstance(one, torch.Tensor):
                    if one is None:
                        self.interface.refuse_none(arguments, named)
                    if hasattr(one, "__dlpack__"):
                        arguments = tuple(map(_tensor, arguments))
                        named = {name: _tensor(value) for name, value in named.items()}
                        break
            return packet(*arguments, **named)

        operator.__name__ = operator.__qualname__ = self.name
        operator.__module__ = __package__ or ""
        operator.__doc__ = self._text()
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [*(tensor.name for tensor in self.interface.tensors), *self.interface.numbers]
        operator.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
        return operator

    def _text(self) -> str:
        lines = [self.interface.text(), "", "Its kernels, the fastest at these sizes:", ""]
        for manifest in self.manifests:
            dtypes = ", ".join(dict.fromkeys(map(str, map(torch_dtype, manifest.dtypes))))
            for winner in manifest.winners:
                shape = ", ".join(f"{dim}={n}" for dim, n in winner.shape.items())
                where = f"{winner.chip} ({winner.arch})"
                time = f"{winner.us:.1f} µs" if winner.kind == "measured" else f"~{winner.us:.1f} µs, modelled"
                lines.append(f"- {dtypes}, {where}, {shape}: {time}")
        lines += ["", f"In PyTorch: {self.manifests[0].folder / REFERENCE}"]
        return "\n".join(lines)


def signature(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """What a kernel is chosen by, and what a weight is known by beside its address.

    Raises RuntimeError for a tensor that has no strides or no address: a sparse or a nested one.
    """
    return tuple([
        (one.dtype, one.shape, one.stride(), one.get_device(), one.data_ptr() % ALIGNMENT)
        if isinstance(one, torch.Tensor)
        else one
        for one in arguments
    ])  # fmt: skip


def _kernel_call(
    run: Run,
    copied: Sequence[bool],
    outputs: Sequence[tuple[tuple[int, ...], torch.dtype]],
    packed: Sequence[torch.Tensor],
    workspaces: Sequence[tuple[tuple[int, ...], torch.dtype]],
    device: torch.device,
) -> Call:
    """A kernel's call at one signature: outputs and workspaces are made, what cannot be read in place is copied."""
    count, results = len(copied), slice(len(copied), len(copied) + len(outputs))
    places = tuple(place for place, copy in enumerate(copied) if copy)
    # With their strides: torch.empty, which finds them, takes twice as long.
    made = [(shape, torch.empty(shape, device="meta").stride(), dtype) for shape, dtype in (*outputs, *workspaces)]
    kept = tuple(packed)
    last = count + len(outputs)
    single = len(outputs) == 1

    def call(arguments: Sequence[Any]) -> Any:
        fresh = [torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in made]
        tensors = [*arguments[:count], *fresh]
        tensors[last:last] = kept
        for place in places:
            tensors[place] = tensors[place].clone(memory_format=torch.contiguous_format)
        run(tensors)
        return tensors[count] if single else tuple(tensors[results])

    return call


def _prepared(
    packing: BoundPlan, names: Sequence[str], weights: Sequence[torch.Tensor], backend: Backend, manifest: Manifest
) -> list[torch.Tensor]:
    """What packing makes of the weights, in the order of its packed buffers.  Raises NoKernel, Unlaunchable."""
    run = backend.prepare(packing, manifest)
    memory = {}
    for name, weight in zip(names, weights, strict=True):
        in_place = weight.is_contiguous() and weight.data_ptr() % ALIGNMENT == 0
        one = weight.detach()
        memory[name] = one if in_place else one.clone(memory_format=torch.contiguous_format)
    for buffer in packing.buffers:
        if buffer.internal:
            dtype = torch_dtype(buffer.dtype)
            memory[buffer.name] = torch.empty(buffer.shape, dtype=dtype, device=weights[0].device)
    run([memory[buffer.name] for buffer in packing.buffers])
    return [memory[buffer.name] for buffer in packing.buffers if buffer.role == "packed"]


def _backend(device: torch.device) -> Backend:
    """Who runs plans on the device.  Raises NoKernel."""
    backend = backends.installed(device.type)
    if backend is not None:
        return backend
    if device.type != "cuda":
        tip = " (evaluator.emulator.install() runs its kernels there)" if device.type == "cpu" else ""
        raise NoKernel(f"its arguments are on {device.type}{tip}")
    found = gpu(device.index or 0)
    if isinstance(found, str):
        raise NoKernel(found)
    return found


def _known(manifest: Manifest, backend: Backend) -> None:
    """Raises NoKernel where no winner is for the backend's architecture."""
    archs = sorted({winner.arch for winner in manifest.winners})
    if backend.arch not in archs:
        raise NoKernel(f"its kernels are for {' and '.join(archs)}, this is {backend.arch}")


def _in_place(
    plan: LaunchPlan, bound: BoundPlan, buffer: str, tensor: torch.Tensor, leading: int | None
) -> BoundPlan | None:
    """The plan with the tensor's own strides; None where it has to be copied first.

    leading: how many of its axes stand for the batch; None where it has none.
    """
    strides = tensor.stride() if leading is None else _flattened(tensor, leading)
    if strides is None or tensor.data_ptr() % ALIGNMENT:
        return None
    if contiguous(bound.buffer(buffer).shape, strides):
        return bound
    return restrided(plan, bound, buffer, strides)


def _flattened(tensor: torch.Tensor, leading: int) -> tuple[int, ...] | None:
    """The tensor's strides where its leading axes are one; None where they do not lie so."""
    shape, strides = tensor.shape, tensor.stride()
    one: int | None = None
    expected = 0
    for n, stride in zip(reversed(shape[:leading]), reversed(strides[:leading])):  # noqa: B905  # equally long
        if n == 1:
            continue
        if one is None:
            one = stride
        elif stride != expected:
            return None
        expected = stride * n
    return (one if one is not None else math.prod(shape[leading:]), *strides[leading:])


def _derived_again() -> bool:
    """Whether the derivative asked for is a second one, or a forward one: PyTorch's attention kernels have neither."""
    if forward_ad._current_level >= 0:
        return True
    kinds = [one.key() for one in get_interpreter_stack() or ()]
    return TransformType.Jvp in kinds or kinds.count(TransformType.Grad) > 1


def _differentiable_twice() -> AbstractContextManager[None]:
    """Makes PyTorch's attention of products and a softmax, each of which has all derivatives."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)  # type: ignore[no-any-return]


def _unwatched() -> bool:
    """Whether nothing in PyTorch follows the calls of operators: no mode, transform, trace or profiler."""
    return not (
        torch._C._is_torch_function_mode_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch.autograd._profiler_enabled()
        or torch._C._get_tracing_state() is not None
    )


def _wide(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """In which derivatives are computed."""
    return torch.float64 if any(one.dtype == torch.float64 for one in tensors) else torch.float32


def warn_caller(message: str) -> None:
    """Warns (``ThroughPyTorch``) at the line that called an operator or a model: outside PyTorch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else (__file__, 1)
    warnings.warn_explicit(message, ThroughPyTorch, *place)


def _tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor) or not hasattr(value, "__dlpack__"):
        return value
    if any(stride < 0 for stride in getattr(value, "strides", None) or ()):  # PyTorch would end the process
        raise RuntimeError(
            "an array with negative strides is no tensor of PyTorch's: copy it (numpy.ascontiguousarray)"
        )
    return torch.from_dlpack(value)


def _returned(results: Sequence[torch.Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def gathered(manifests: Mapping[str, Manifest]) -> dict[str, Operator]:
    """The operators of folders of winners, by name: folders of one name and interface are one operator's dtypes.

    Winners under tf32 are left out: an operator's float32 is float32.  Raises ManifestError where two folders of one
    name are of different tasks.
    """
    by_name: dict[str, list[Manifest]] = {}
    for manifest in (one for one in manifests.values() if one.precision == "ieee"):
        by_name.setdefault(manifest.name, []).append(manifest)
    for name, some in by_name.items():
        forms = {tuple((t.name, t.shape) for t in one.inputs) for one in some}
        if len(forms) > 1:
            raise ManifestError(f"{some[0].folder.parent}: folders of the task {name} take different arguments")
    return {name: Operator(some) for name, some in sorted(by_name.items())}
