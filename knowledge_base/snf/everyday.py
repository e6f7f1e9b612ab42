"""The everyday tasks: the named pieces that every transformer is made of, with their argument names and orders.

They are ordinary tasks: a piece of any target whose canonical sub-graph equals one of these *is* it.  Sample sizes are
those of the GPT-2 block (B=8, T=1024, C=768, H=12) in bf16; ``task.at(M=…)`` or ``everyday(name, M=…)`` gives others.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

from knowledge_base.errors import UserError, nearest

from .builder import Builder, Value
from .task import Task

# Head widths that attention kernels are made for: powers of two that tiles take directly, and 80 (GPT-2's cousins).
HEAD_WIDTHS = (16, 32, 64, 80, 128)

_SAMPLES = {"M": 8192, "N": 768, "K": 768, "B": 8, "T": 1024, "H": 12, "D": 64, "V": 50257, "P": 1024, "C": 768}


def _rows(op: str) -> Callable[[Builder], Value]:
    return lambda b: b.node(op, [b.input("x", "bf16", ("M", "N"))])


def _add(b: Builder) -> Value:
    return b.node("add", [b.input("a", "bf16", ("M", "N")), b.input("b", "bf16", ("M", "N"))])


def _layernorm(b: Builder) -> Value:
    x = b.input("x", "bf16", ("M", "N"))
    return b.node(
        "layernorm", [x, b.input("weight", "bf16", ("N",), "weight"), b.input("bias", "bf16", ("N",), "weight")]
    )


def _linear(b: Builder) -> Value:
    x = b.input("x", "bf16", ("M", "K"))
    return b.node("linear", [x, b.input("w", "bf16", ("N", "K"), "weight"), b.input("b", "bf16", ("N",), "weight")])


def _linear_gelu(b: Builder) -> Value:
    return b.node("gelu", [_linear(b)])


def _linear_residual(b: Builder) -> Value:
    return b.node("add", [_linear(b), b.input("r", "bf16", ("M", "N"))])


def _core(b: Builder, q: Value, k: Value, v: Value) -> Value:
    """softmax(q kᵀ / √D + causal mask) v on [B, H, T, D]."""
    scores = b.node("matmul", [q, b.node("permute", [k], perm=(0, 1, 3, 2))], "scores")
    scaled = b.node("div", [scores, b.node("sqrt", [b.dim("D")], "root")], "scaled")
    masked = b.node("add", [scaled, b.node("causal_mask", [scaled], "mask")], "masked")
    return b.node("matmul", [b.node("softmax", [masked], "weights"), v], "values")


def _attention(b: Builder) -> Value:
    qkv = b.input("qkv", "bf16", ("B", "T", 3, "H", "D"))
    q, k, v = (
        b.node("permute", [b.node("select", [qkv], axis=2, index=i)], name, perm=(0, 2, 1, 3))
        for i, name in enumerate("qkv")
    )
    return b.node("permute", [_core(b, q, k, v)], perm=(0, 2, 1, 3))


def _attention_qkv(b: Builder) -> Value:
    q, k, v = (b.input(name, "bf16", ("B", "H", "T", "D")) for name in "qkv")
    return _core(b, q, k, v)


def _embedding(b: Builder) -> Value:
    tokens = b.input("tokens", "i64", ("B", "T"))
    wte = b.input("wte", "bf16", ("V", "C"), "weight")
    wpe = b.input("wpe", "bf16", ("P", "C"), "weight")
    positions = b.node("iota", [], "positions", n="T")
    return b.node("add", [b.node("gather", [wte, tokens]), b.node("gather", [wpe, positions])])


_BUILDERS: dict[str, tuple[str, Callable[[Builder], Value]]] = {
    "gelu": ("GELU, tanh form", _rows("gelu")),
    "add": ("sum of two tensors", _add),
    "layernorm": ("layer normalisation over the last axis", _layernorm),
    "softmax": ("softmax over the last axis", _rows("softmax")),
    "linear": ("x wᵀ + b", _linear),
    "linear_gelu": ("GELU(x wᵀ + b)", _linear_gelu),
    "linear_residual": ("x wᵀ + b + r", _linear_residual),
    "attention": ("causal attention read from a QKV buffer", _attention),
    "attention_qkv": ("causal attention on separate q, k, v", _attention_qkv),
    "embedding": ("token plus position embedding", _embedding),
}

NAMES = tuple(_BUILDERS)


def description(name: str) -> str:
    return _BUILDERS[name][0]


def everyday(name: str, **sizes: int) -> Task:
    """The everyday task ``name`` (``linear-gelu`` is ``linear_gelu``) at the sample sizes, changed by ``sizes``.

    Raises UserError for an unknown name or dimension.
    """
    known = name.replace("-", "_")
    if known not in _BUILDERS:
        near = nearest(name, NAMES)
        raise UserError(
            f"there is no everyday task {name!r}",
            f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(NAMES)}",
        )
    task = _made(known)
    wrong = sorted(set(sizes) - set(task.sizes))
    if wrong:
        raise UserError(f"{known} has no dimension {wrong[0]!r}", f"it has {', '.join(task.sizes)}")
    return task.at(**sizes) if sizes else task


@functools.cache
def _made(name: str) -> Task:
    builder = Builder()
    result = _BUILDERS[name][1](builder)
    samples = dict(_SAMPLES)
    if name in ("linear_gelu",):
        samples["N"] = 3072
    if name == "linear":
        samples["N"] = 2304
    graph = builder.graph(samples, [result.name])
    names = graph.sizes
    identity = hashlib.sha256(repr(graph).encode()).hexdigest()
    constants = (("D", HEAD_WIDTHS),) if "D" in names else ()
    constraints = (("<=", "T", "P"),) if name == "embedding" else ()
    return Task(name, identity, graph, "ieee", constants, constraints)
