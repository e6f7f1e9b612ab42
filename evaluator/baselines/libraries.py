"""Libraries' calls for ops: TileGym's and Liger's kernels, CuPy's expressions.

Each function here imports its library, which may be missing (ImportError), and gives finders for a
:class:`.torch_program.TorchProgram`, or a function of the task's inputs.
"""

from __future__ import annotations

import importlib
import logging
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from knowledge_base.snf.graph import Node
from knowledge_base.snf.op_table import is_scalar
from knowledge_base.snf.task import Task

from .torch_program import Finder, Idiom, Reading, attending, simple


def tilegym() -> Sequence[Finder]:
    """TileGym's operators, as its own callers have them: with its autotuner where it uses one.

    https://github.com/NVIDIA/TileGym
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of backends that are not asked for
        import tilegym as package
        from tilegym import ops
        from tilegym.ops import activation
    logging.getLogger("tilegym").setLevel(logging.ERROR)
    package.set_backend("cutile")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        return ops.fmha(q.contiguous(), k.contiguous(), v.contiguous(), scaling=scale, is_causal=causal)

    def layernorm(args: list[Any], attrs: Mapping[str, Any]) -> Any:
        x, weight, bias = args
        return ops.layer_norm(x, x.dim() - 1, x.dim(), weight, bias, attrs["eps"])

    def rmsnorm(args: list[Any], attrs: Mapping[str, Any]) -> Any:
        x, weight = args
        return ops.rms_norm(x, x.shape[-1:], weight, attrs["eps"])

    def tanh_form(reading: Reading, node: Node) -> bool:
        return node.attr("approximate") == "tanh"

    return (
        attending(attend),
        simple("layernorm", layernorm, _same_type),
        simple("rmsnorm", rmsnorm, _same_type),
        simple("softmax", lambda args, attrs: ops.softmax(args[0]), _of_rows),
        simple("linear", _linear(lambda x, w: ops.matmul(x, w, trans_b=True, static_persistent=True)), _without_bias),
        simple("gelu", lambda args, attrs: activation.gelu(args[0], approximate="tanh"), tanh_form),
        simple("relu", lambda args, attrs: activation.relu(args[0])),
    )


def liger() -> Sequence[Finder]:
    """Liger Kernel's operators in Triton.  https://github.com/linkedin/Liger-Kernel"""
    return _liger(
        *(
            importlib.import_module(f"liger_kernel.ops.{name}")
            for name in ("layer_norm", "rms_norm", "softmax", "swiglu")
        )
    )


def liger_cutile() -> Sequence[Finder]:
    """Liger Kernel's operators in cuTile."""
    return _liger(*(4 * (importlib.import_module("liger_kernel.ops.cutile.ops"),)))


def _liger(layer_norm: Any, rms_norm: Any, softmax: Any, swiglu: Any) -> Sequence[Finder]:
    def layernorm(args: list[Any], attrs: Mapping[str, Any]) -> Any:
        return layer_norm.LigerLayerNormFunction.apply(*args, attrs["eps"])

    def rmsnorm(args: list[Any], attrs: Mapping[str, Any]) -> Any:
        return rms_norm.LigerRMSNormFunction.apply(*args, attrs["eps"], 0.0, "llama", False)

    def silu_times(reading: Reading, node: Node) -> Idiom | None:
        if node.op != "mul":
            return None
        silu = next((found for a in node.args if (found := reading.node(a, "silu")) is not None), None)
        if silu is None or not reading.needs_only(node, frozenset({silu.name})):
            return None
        other = next(a for a in node.args if a != silu.name)
        if reading.shape(other) != reading.shape(node.name):
            return None
        given = (silu.args[0], other)
        return Idiom(given, frozenset({silu.name}), lambda args: swiglu.LigerSiLUMulFunction.apply(*args))

    return (
        simple("layernorm", layernorm, _same_type),
        simple("rmsnorm", rmsnorm, _same_type),
        simple("softmax", lambda args, attrs: softmax.LigerSoftmaxFunction.apply(args[0]), _of_rows),
        silu_times,
    )


def flashinfer() -> Sequence[Finder]:
    """FlashInfer's attention and RMSNorm, which it compiles when they are first called.

    https://github.com/flashinfer-ai/flashinfer
    """
    import flashinfer as package

    planned: dict[Any, Any] = {}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        batch, heads, length, width = q.shape
        of_keys, keys = k.shape[1:3]
        place = (q.shape, k.shape, q.dtype, scale, causal)
        if place not in planned:  # by the first call, which is never recorded
            starts = [torch.arange(batch + 1, dtype=torch.int32, device=q.device) * each for each in (length, keys)]
            memory = torch.empty(128 * 2**20, dtype=torch.uint8, device=q.device)
            planned[place] = package.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD")
            planned[place].plan(*starts, heads, of_keys, width, causal=causal, sm_scale=scale, q_data_type=q.dtype)
        tokens = [one.transpose(1, 2).reshape(-1, one.shape[1], one.shape[3]) for one in (q, k, v)]
        made: torch.Tensor = planned[place].run(*tokens)
        return made.view(batch, length, heads, width).transpose(1, 2)

    def rmsnorm(args: list[Any], attrs: Mapping[str, Any]) -> Any:
        x, weight = args
        return package.rmsnorm(x.reshape(-1, x.shape[-1]), weight, attrs["eps"]).reshape(x.shape)

    return (attending(attend), simple("rmsnorm", rmsnorm, _same_type))


def flashinfer_cutile() -> Sequence[Finder]:
    """FlashInfer's linear without bias in cuTile, which tunes itself by the first call."""
    import flashinfer as package

    def bf16_without_bias(reading: Reading, node: Node) -> bool:
        return _without_bias(reading, node) and reading.graph.value(node.name).dtype == "bf16"

    return (simple("linear", _linear(lambda x, w: package.mm_bf16(x, w.T, backend="cutile")), bf16_without_bias),)


def cupy(task: Task, place: torch.device) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    """An elementwise task as CuPy's expression: a kernel for each operation, in PyTorch's memory and on its stream.

    None where the task is none, or of a dtype that CuPy does not have.  https://docs.cupy.dev
    """
    nodes = [node for node in task.graph.nodes if not is_scalar(node)]
    if any(node.op not in CUPY for node in nodes) or any(t.dtype not in ("f16", "f32") for t in task.inputs):
        return None
    import cupy as cp

    allocator = cp.cuda.PythonFunctionAllocator(
        lambda size, device: torch.cuda.caching_allocator_alloc(size, device, torch.cuda.current_stream()),
        lambda address, device: torch.cuda.caching_allocator_delete(address),
    )
    reading = Reading(task)
    lines = [(node, CUPY[node.op]) for node in nodes]

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stream = cp.cuda.ExternalStream(torch.cuda.current_stream(place).cuda_stream)
        with stream, cp.cuda.using_allocator(allocator.malloc):
            values: dict[str, Any] = dict(reading.numbers)
            values.update((t.name, cp.from_dlpack(g)) for t, g in zip(task.inputs, given, strict=True))
            for node, compute in lines:
                values[node.name] = compute(cp, [values[a] for a in node.args], dict(node.attrs))
            return tuple(torch.from_dlpack(values[name]) for name in task.graph.outputs)

    return run


def _gelu(cp: Any, args: list[Any], attrs: Mapping[str, Any]) -> Any:
    (x,) = args
    if attrs["approximate"] == "tanh":
        return 0.5 * x * (1 + cp.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    from cupyx.scipy.special import erf

    return 0.5 * x * (1 + erf(x * 0.7071067811865476))


def _plain(function: Callable[..., Any]) -> Callable[[Any, list[Any], Mapping[str, Any]], Any]:
    return lambda cp, args, attrs: function(*args)


def _named(name: str) -> Callable[[Any, list[Any], Mapping[str, Any]], Any]:
    return lambda cp, args, attrs: getattr(cp, name)(*args)


CUPY: dict[str, Callable[[Any, list[Any], Mapping[str, Any]], Any]] = {
    "add": _plain(operator.add), "sub": _plain(operator.sub), "mul": _plain(operator.mul),
    "div": _plain(operator.truediv), "neg": _plain(operator.neg), "square": _plain(lambda x: x * x),
    "exp": _named("exp"), "log": _named("log"), "sqrt": _named("sqrt"), "tanh": _named("tanh"),
    "minimum": _named("minimum"), "maximum": _named("maximum"),
    "sigmoid": lambda cp, args, attrs: 1 / (1 + cp.exp(-args[0])),
    "silu": lambda cp, args, attrs: args[0] / (1 + cp.exp(-args[0])),
    "relu": lambda cp, args, attrs: cp.maximum(args[0], 0),
    "gelu": _gelu,
}  # fmt: skip


def _linear(product: Callable[[Any, Any], Any]) -> Callable[[list[Any], Mapping[str, Any]], Any]:
    """A linear without bias by ``product`` of x[M, K] and w[N, K]."""

    def linear(args: list[Any], attrs: Mapping[str, Any]) -> Any:
        x, w = args
        return product(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[0])

    return linear


def _without_bias(reading: Reading, node: Node) -> bool:
    return len(node.args) == 2 and _same_type(reading, node)


def _same_type(reading: Reading, node: Node) -> bool:
    return len({reading.graph.value(name).dtype for name in (*node.args, node.name)}) == 1


def _of_rows(reading: Reading, node: Node) -> bool:
    return len(reading.shape(node.name)) == 2
