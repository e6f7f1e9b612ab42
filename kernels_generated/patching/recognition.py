"""Which operator computes what a module does: its forward is traced, and the trace tried against the operators.

A module is recognised by what it does, not by its name: LayerNorm of PyTorch, of nanoGPT and LlamaRMSNorm of
transformers alike.  Two things together make that safe.  The trace (torch.fx) has no branches, is the same in training
and in evaluation, and is made of sums, products, powers, means and such functions of torch.nn.functional as operators
stand for; so what it computes is one formula for all inputs.  And it gives what the operator's reference gives, in
float64, on inputs of two to four axes whose rows are small, usual and large, with random parameters.
"""

from __future__ import annotations

import functools
import itertools
import operator as calls
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from kernels_generated.ops import FLOATS, Operator, operators

from .reads import ReadsVariable, members

# What gives each element of its result from the same element of its arguments, and from numbers.
ELEMENTWISE = {
    calls.add, calls.sub, calls.mul, calls.truediv, calls.pow, calls.neg,
    torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.square, torch.sqrt, torch.rsqrt, torch.exp, torch.tanh,
    torch.sigmoid, torch.erf, F.gelu, F.silu,
}  # fmt: skip
ELEMENTWISE_METHODS = {
    "to", "float", "type_as", "add", "sub", "mul", "div", "pow", "square", "sqrt", "rsqrt", "exp", "tanh", "sigmoid",
}  # fmt: skip
FUNCTIONS = ELEMENTWISE | {
    calls.getitem, calls.matmul, getattr,
    torch.mean, torch.sum, torch.var, torch.std, torch.addmm, torch.matmul, torch.mm,
    F.linear, F.layer_norm, F.rms_norm, F.softmax, torch.softmax,
}  # fmt: skip
METHODS = ELEMENTWISE_METHODS | {
    "size", "view", "reshape", "dim", "t", "transpose", "contiguous",
    "mean", "sum", "var", "std", "matmul", "mm", "softmax",
}  # fmt: skip
ATTRIBUTES = {"dtype", "shape"}
PLAIN = (int, float, bool, str, type(None), torch.dtype)

LEADING = ((6,), (2, 3), (2, 3, 2))  # axes before the last
ROWS = (1.0, 3e-3, 100.0)  # how large they are: at 3e-3 the mean of the squares is as large as a norm's eps
SMALL = (5, 7)  # a matrix of parameters, where the forward does not say its size
LARGEST = 1 << 22  # else elements of it that are tried
# The formula in float64: some write the factor of GELU with eight digits.  ATOL is of a row's largest element.
RTOL, ATOL = 1e-8, 2e-13
ROUGH = 0.05  # the module itself, in the operator's dtypes

_INTERNALS = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Equivalent:
    """An operator in place of a module's forward.

    parameters: the module's, in the operator's order.  settings: what else the module held when it was recognised, and
    spelled: the same as text, as 1 equals True.  own: how many of the settings were the module's, not its class's.
    keeps_strides: whether the module's output lies in memory as its input does, rather than contiguously.
    """

    operator: str
    parameters: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...]
    spelled: str
    own: int
    keeps_strides: bool


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
    shapes = tuple((name, None if one is None else tuple(one.shape)) for name, one in module._parameters.items())
    key = (type(module), type(module).forward, repr(settings), shapes)
    if key not in known:
        try:
            known[key] = _equivalent(module, {name: shape for name, shape in shapes if shape is not None}, settings)
        except Unrecognised as reason:
            known[key] = str(reason)
    found = known[key]
    if isinstance(found, str):
        raise Unrecognised(found)
    return found


def _settings(module: nn.Module) -> dict[str, Any]:
    """What its forward may read beside parameters: attributes of its own, and then of its class.

    Raises Unrecognised for what may change inside.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise Unrecognised("it is a ScriptModule")
    if module._modules:
        raise Unrecognised("it is made of others")
    if module._buffers:
        raise Unrecognised("it has buffers")
    own = {name: value for name, value in vars(module).items() if name not in _INTERNALS}
    if "forward" in own:
        raise Unrecognised("its forward was replaced, on this module alone")
    for name, value in own.items():
        if not _is_plain(value):
            raise Unrecognised(f"its attribute {name} is a {type(value).__name__}")
    try:
        members(type(module))
    except ReadsVariable as reason:
        raise Unrecognised(str(reason)) from None
    shared: dict[str, Any] = {name: None for name, one in module._parameters.items() if one is None}
    for kind in type(module).__mro__:
        if kind in (nn.Module, object):
            continue
        for name, value in vars(kind).items():
            if not name.startswith("__") and name not in own and _is_plain(value):
                shared.setdefault(name, value)
    return own | shared


def _is_plain(value: Any) -> bool:
    if isinstance(value, functools.partial):
        return _is_plain(value.func) and all(map(_is_plain, (*value.args, *value.keywords.values())))
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN) or any(value is one for one in FUNCTIONS)


def _equivalent(module: nn.Module, shapes: Mapping[str, tuple[int, ...]], settings: dict[str, Any]) -> Equivalent:
    candidates = list(_candidates(shapes))
    if not candidates:
        raise Unrecognised("no operator takes such parameters")
    graph = _traced(_bare(module, {name: _parameter(shape, "meta") for name, shape in shapes.items()}))
    for tried in (*_small(shapes), shapes):
        parameters = {name: _parameter(shape, "cpu") for name, shape in tried.items() if _fits(shape)}
        if len(parameters) < len(tried):
            continue
        bare = _bare(module, parameters)
        if tried != shapes and str(_traced(bare)) != str(graph):
            continue  # the sizes of its parameters stand in what it does
        for operator, order in candidates:
            width = _width(operator, bare, order)
            if width and _alike(bare, graph, operator, order, width) and _behaves(bare, operator, order, width):
                own = len(vars(module).keys() - _INTERNALS)
                keeps = _keeps_strides(bare, width)
                return Equivalent(operator.name, order, tuple(settings.items()), repr(settings), own, keeps)
    numbers = [f"{name}={value}" for name, value in settings.items() if isinstance(value, float)]  # mostly this is why
    raise Unrecognised(f"no operator computes the same{' with ' if numbers else ''}{', '.join(numbers)}")


def _small(shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    """Shapes with a small matrix, to try instead; a vector is as long as one of its two axes."""
    if all(len(shape) != 2 for shape in shapes.values()):
        return []
    return [{name: SMALL if len(shape) == 2 else (n,) for name, shape in shapes.items()} for n in SMALL]


def _parameter(shape: tuple[int, ...], device: str) -> nn.Parameter:
    generator = torch.Generator("cpu").manual_seed(len(shape))
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


def _width(operator: Operator, bare: nn.Module, order: tuple[str, ...]) -> int:
    """How many columns an input has for the operator to take the parameters; 0 where it does not take them."""
    first, *others = operator.interface.tensors
    dims: dict[Any, int] = {}
    for argument, name in zip(others, order, strict=True):
        for axis, n in zip(argument.shape, bare.get_parameter(name).shape, strict=True):
            if dims.setdefault(axis, n) != n:
                return 0
    return dims.get(first.shape[1], 37)  # without parameters any will do


def _inputs(width: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(7)
    for leading in LEADING:
        yield scaled_rows(torch.randn(*leading, width, generator=generator, dtype=torch.float64, device="cpu"))


def scaled_rows(x: torch.Tensor) -> torch.Tensor:
    """The float64 tensor itself, at most twelve rows, with small, usual and large ones."""
    rows = x.view(-1, x.shape[-1])
    rows.mul_(torch.tensor(ROWS * 4, dtype=torch.float64, device="cpu")[: len(rows), None])
    return x


def _alike(bare: nn.Module, graph: fx.Graph, operator: Operator, order: tuple[str, ...], width: int) -> bool:
    """Whether the module's formula is the operator's, in float64 throughout."""
    wide = widened(graph, torch.float32)  # as norms say, which would be too coarse in less
    for x in _inputs(width):
        before = x.clone()
        with torch.no_grad():
            try:
                made = fx.Interpreter(bare, graph=wide).run(x)
            except Exception:  # it does not take these shapes
                return False
            wanted = _reference(operator, bare, order, x)
        if not isinstance(made, torch.Tensor) or not agree(made, wanted) or not torch.equal(x, before):
            return False
    return True


def agree(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two formulas that gave this in float64 are one."""
    if made.shape != wanted.shape or made.dtype != wanted.dtype:
        return False
    most = RTOL * wanted.abs() + ATOL * wanted.abs().amax(-1, keepdim=True)
    return bool(((made - wanted).abs() <= most).all())


def _behaves(bare: nn.Module, operator: Operator, order: tuple[str, ...], width: int) -> bool:
    """Whether the module itself, which may look at more than its trace shows, gives such values and dtypes."""
    for dtypes in operator.interface.variants:
        other = _bare(bare, {name: _cast(one, dtypes[0]) for name, one in bare.named_parameters()})
        for x in _inputs(width):
            with torch.no_grad():
                wanted = _reference(operator, other, order, x.to(dtypes[0]).double())
                try:
                    made = other(x.to(dtypes[0]))
                except Exception:
                    return False
            if not isinstance(made, torch.Tensor) or made.dtype != dtypes[0] or made.shape != wanted.shape:
                return False
            if not (made.double() - wanted).norm() <= ROUGH * wanted.norm():
                return False
    return True


def _keeps_strides(bare: nn.Module, width: int) -> bool:
    x = torch.ones(width, 3, dtype=torch.float64, device="cpu").t()
    with torch.no_grad():
        return not bool(bare(x).is_contiguous())


def _reference(operator: Operator, bare: nn.Module, order: tuple[str, ...], x: torch.Tensor) -> torch.Tensor:
    """What the operator computes, in float64, on an input of any number of axes."""
    parameters = [bare.get_parameter(name).double() for name in order]
    made: torch.Tensor = operator.reference(x.reshape(-1, x.shape[-1]), *parameters)
    return made.reshape(*x.shape[:-1], made.shape[-1])


def _cast(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(parameter.to(dtype), requires_grad=False)


def _bare(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> nn.Module:
    """A module of its class and settings with other parameters and no hooks; the module itself is not touched."""
    bare: nn.Module = object.__new__(type(module))
    vars(bare).update(vars(nn.Module()))
    vars(bare).update((name, value) for name, value in vars(module).items() if name not in _INTERNALS)
    bare._parameters.update({name: parameters.get(name) for name in module._parameters})
    return bare


def _traced(bare: nn.Module) -> fx.Graph:
    """What its forward does to one tensor.  Raises Unrecognised where that is no formula that could be tried."""
    graphs = []
    for training, mode in ((False, nullcontext()), (True, nullcontext()), (False, torch.inference_mode())):
        bare.training = training
        before = dict(vars(bare))
        tracer = fx.Tracer(param_shapes_constant=True)
        try:
            with mode:
                graphs.append(tracer.trace(bare))
        except fx.proxy.TraceError:
            raise Unrecognised("what it does depends on its input's values or sizes") from None
        except Exception as error:  # the forward runs in it
            said = str(error).partition("\n")[0] or type(error).__name__
            raise Unrecognised(f"its forward is not traced: {said}") from None
        if vars(bare).keys() != before.keys() or any(vars(bare)[name] is not value for name, value in before.items()):
            raise Unrecognised("it keeps something from one call to the next")
    evaluated, trained, without_gradients = graphs
    if str(evaluated) != str(trained):
        raise Unrecognised("it computes something else in training")
    if str(evaluated) != str(without_gradients):
        raise Unrecognised("it computes something else in inference mode")
    for node in evaluated.nodes:
        if not _is_known(node, bare):
            name = getattr(node.target, "__name__", node.target)
            raise Unrecognised(f"no operator computes its {name}")
    if sum(node.op == "placeholder" for node in evaluated.nodes) != 1:
        raise Unrecognised("its forward takes more than one tensor")
    return evaluated


def _is_known(node: fx.Node, bare: nn.Module) -> bool:
    """Whether it is part of a formula: no values are cut off, and nothing is moved elsewhere or narrowed."""
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "get_attr":
        return node.target in bare._parameters
    if node.target is getattr:
        return node.args[1] in ATTRIBUTES
    if any(isinstance(one, torch.dtype) and one != torch.float32 for one in (*node.args, *node.kwargs.values())):
        return False
    if node.target == "to":
        return len(node.args) == 2 and not node.kwargs and not isinstance(node.args[1], str | torch.device)
    return node.target in (METHODS if node.op == "call_method" else FUNCTIONS)


def widened(graph: fx.Graph, *dtypes: torch.dtype) -> fx.Graph:
    """The graph with float64 wherever it says one of these dtypes, or ``float()``."""
    wide = fx.Graph()
    wide.output(wide.graph_copy(graph, {}))
    for node in list(wide.nodes):
        node.args = tuple(torch.float64 if one in dtypes else one for one in node.args)
        node.kwargs = {name: torch.float64 if one in dtypes else one for name, one in node.kwargs.items()}
        if node.op == "call_method" and node.target == "float":
            node.target = "double"
    return wide


def _fits(shape: tuple[int, ...]) -> bool:
    return torch.Size(shape).numel() <= LARGEST
