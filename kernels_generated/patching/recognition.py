"""Which operator computes what a module does: its forward is traced, and the trace tried against the operators.

A module is recognised by what it does, not by its name: LayerNorm of PyTorch, of nanoGPT and LlamaRMSNorm of
transformers alike.  Two things together make that safe.  The trace (torch.fx) has no branches, is the same in training
and in evaluation, and is made of sums, products, powers, means and such functions of torch.nn.functional as operators
stand for; so what it computes is one formula for all inputs.  And it gives what the operator's reference gives, in
float64, on inputs of two to four axes whose rows are small, usual and large, with random parameters.
"""

from __future__ import annotations

import itertools
import operator as calls
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from kernels_generated.ops import FLOATS, Operator, operators

FUNCTIONS = {
    calls.add, calls.sub, calls.mul, calls.truediv, calls.pow, calls.neg, calls.getitem, calls.matmul, getattr,
    torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.square, torch.sqrt, torch.rsqrt, torch.exp, torch.tanh,
    torch.sigmoid, torch.erf, torch.mean, torch.sum, torch.var, torch.std, torch.addmm, torch.matmul, torch.mm,
    F.linear, F.layer_norm, F.rms_norm, F.gelu, F.silu, F.softmax, torch.softmax,
}  # fmt: skip
METHODS = {
    "to", "float", "type_as", "size", "view", "reshape", "dim", "t", "transpose", "contiguous",
    "add", "sub", "mul", "div", "pow", "square", "sqrt", "rsqrt", "exp", "tanh", "sigmoid",
    "mean", "sum", "var", "std", "matmul", "mm", "softmax",
}  # fmt: skip
PLAIN = (int, float, bool, str, type(None), torch.dtype)

LEADING = ((6,), (2, 3), (2, 3, 2))  # axes before the last
ROWS = (1.0, 3e-3, 100.0)  # how large they are: at 3e-3 the mean of the squares is as large as a norm's eps
SMALL = (5, 7)  # a matrix of parameters, where the forward does not say its size
LARGEST = 1 << 22  # else elements of it that are tried
RTOL, ATOL = 3e-6, 3e-7  # many modules compute in float32 whatever they are given; ATOL is of the largest element

_INTERNALS = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Equivalent:
    """An operator in place of a module's forward.

    parameters: the module's, in the operator's order.  settings: what else the module held when it was recognised.
    """

    operator: str
    parameters: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...]


class Unrecognised(Exception):
    """A module that no operator stands for; the message says why."""


def recognised(module: nn.Module, known: dict[Any, Equivalent | str]) -> Equivalent:
    """Its equivalent.  ``known`` remembers modules that are alike.  Raises Unrecognised."""
    settings = _settings(module)
    parameters = {name: one for name, one in module._parameters.items() if one is not None}
    for name, one in parameters.items():
        if type(one) is not nn.Parameter:
            raise Unrecognised(f"its {name} is a {type(one).__name__}")
    dtypes = list(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in parameters.values()))
    if len(dtypes) > 1 or any(one.dtype not in FLOATS for one in parameters.values()):
        raise Unrecognised(f"its parameters are {' and '.join(dtypes)}")
    absent = [(name, None) for name, one in module._parameters.items() if one is None]
    shapes = tuple((name, tuple(one.shape)) for name, one in parameters.items())
    key = (type(module), type(module).forward, settings, tuple(absent), shapes)
    if key not in known:
        try:
            known[key] = _equivalent(module, dict(shapes), (*settings, *absent))
        except Unrecognised as reason:
            known[key] = str(reason)
    found = known[key]
    if isinstance(found, str):
        raise Unrecognised(found)
    return found


def _settings(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """The attributes that are neither PyTorch's own nor parameters.  Raises Unrecognised for what may change inside."""
    if module._modules:
        raise Unrecognised("it is made of others")
    if module._buffers:
        raise Unrecognised("it has buffers")
    own = {name: value for name, value in vars(module).items() if name not in _INTERNALS}
    if "forward" in own:
        raise Unrecognised("its forward was replaced, on this module alone")
    for name, value in own.items():
        parts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(part, PLAIN) or any(part is one for one in FUNCTIONS) for part in parts):
            raise Unrecognised(f"its attribute {name} is a {type(value).__name__}")
    return tuple(own.items())


def _equivalent(
    module: nn.Module, shapes: Mapping[str, tuple[int, ...]], settings: tuple[tuple[str, Any], ...]
) -> Equivalent:
    candidates = list(_candidates(shapes))
    if not candidates:
        raise Unrecognised("no operator takes such parameters")
    graph = _traced(_bare(module, settings, {name: _parameter(shape, "meta") for name, shape in shapes.items()}))
    for tried in (*_small(shapes), shapes):
        parameters = {name: _parameter(shape, "cpu") for name, shape in tried.items() if _fits(shape)}
        if len(parameters) < len(tried):
            continue
        bare = _bare(module, settings, parameters)
        if tried != shapes and str(_traced(bare)) != str(graph):
            continue  # the sizes of its parameters stand in what it does
        for operator, order in candidates:
            if _alike(bare, graph, operator, order):
                return Equivalent(operator.name, order, settings)
    numbers = [f"{name}={value}" for name, value in settings if isinstance(value, float)]  # mostly this is why
    raise Unrecognised(f"no operator computes the same{' with ' if numbers else ''}{', '.join(numbers)}")


def _small(shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    """Shapes with a small matrix, to try instead; a vector is as long as one of its two axes."""
    if all(len(shape) != 2 for shape in shapes.values()):
        return []
    return [{name: SMALL if len(shape) == 2 else (n,) for name, shape in shapes.items()} for n in SMALL]


def _parameter(shape: tuple[int, ...], device: str) -> nn.Parameter:
    generator = torch.Generator().manual_seed(len(shape))
    made = torch.empty(shape, dtype=torch.float64, device=device)
    return nn.Parameter(made if device == "meta" else made.normal_(generator=generator), requires_grad=False)


def _candidates(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[Operator, tuple[str, ...]]]:
    """Operators on x[..., K] and parameters of these ranks, with each order in which they may be given."""
    for operator in operators().values():
        interface = operator.interface
        first, *others = interface.tensors
        if interface.numbers or len(interface.outputs) != 1 or len(others) != len(shapes):
            continue
        if not interface.batched(first) or len(first.shape) != 2 or any(map(interface.batched, others)):
            continue
        for order in itertools.permutations(shapes):
            if [len(shapes[name]) for name in order] == [len(other.shape) for other in others]:
                yield operator, order


def _alike(bare: nn.Module, graph: fx.Graph, operator: Operator, order: tuple[str, ...]) -> bool:
    """Whether the operator gives what the module gives, with the parameters of ``bare``."""
    first, *others = operator.interface.tensors
    parameters = [bare._parameters[name] for name in order]
    dims: dict[Any, int] = {}
    for argument, one in zip(others, parameters, strict=True):
        assert one is not None
        for axis, n in zip(argument.shape, one.shape, strict=True):
            if dims.setdefault(axis, n) != n:
                return False
    width = dims.get(first.shape[1], 37)  # without parameters any will do
    generator = torch.Generator().manual_seed(7)
    for leading in LEADING:
        x = torch.randn(*leading, width, generator=generator, dtype=torch.float64)
        rows = x.view(-1, width)
        rows.mul_(torch.tensor(ROWS * 4, dtype=torch.float64)[: len(rows), None])
        before = x.clone()
        try:
            with torch.no_grad():
                made = fx.Interpreter(bare, graph=graph).run(x)
                wanted = operator.reference(rows, *parameters).reshape(*leading, -1)
        except Exception:  # it does not take these shapes
            return False
        if not isinstance(made, torch.Tensor) or (made.shape, made.dtype) != (wanted.shape, torch.float64):
            return False
        if not torch.allclose(made, wanted, rtol=RTOL, atol=ATOL * float(wanted.abs().max())):
            return False
        if not torch.equal(x, before):
            return False
    return True


def _bare(
    module: nn.Module, settings: tuple[tuple[str, Any], ...], parameters: Mapping[str, nn.Parameter]
) -> nn.Module:
    """A module of its class and settings with other parameters and no hooks; the module itself is not touched."""
    bare: nn.Module = object.__new__(type(module))
    vars(bare).update(vars(nn.Module()))
    vars(bare).update((name, value) for name, value in settings if name not in module._parameters)
    bare._parameters.update({name: parameters.get(name) for name in module._parameters})
    return bare


def _traced(bare: nn.Module) -> fx.Graph:
    """What its forward does to one tensor.  Raises Unrecognised where that is no formula that could be tried."""
    graphs = []
    for training in (False, True):
        bare.training = training
        tracer = fx.Tracer(param_shapes_constant=True)
        try:
            graphs.append(tracer.trace(bare))
        except fx.proxy.TraceError:
            raise Unrecognised("what it does depends on its input's values or sizes") from None
        except Exception as error:  # the forward runs in it
            raise Unrecognised(
                f"its forward is not traced: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from None
    evaluated, trained = graphs
    if str(evaluated) != str(trained):
        raise Unrecognised("it computes something else in training")
    placeholders = 0
    for node in evaluated.nodes:
        placeholders += node.op == "placeholder"
        known = {
            "placeholder": True,
            "output": True,
            "get_attr": node.target in bare._parameters,
            "call_function": node.target in FUNCTIONS,
            "call_method": node.target in METHODS,
            "call_module": False,
        }[node.op]
        if not known:
            name = getattr(node.target, "__name__", node.target)
            raise Unrecognised(f"no operator computes its {name}")
    if placeholders != 1:
        raise Unrecognised("its forward takes more than one tensor")
    return evaluated


def _fits(shape: tuple[int, ...]) -> bool:
    return torch.Size(shape).numel() <= LARGEST
