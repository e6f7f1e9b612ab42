"""The kernels as PyTorch operators.

    import torch
    from kernels_generated import ops

    y = ops.linear_gelu(x, w, b)                 # x[..., K], w[N, K], b[N]; also torch.ops.tilewright.linear_gelu
    help(ops.linear_gelu)                        # what it takes, and how fast its kernels are

Each folder of winners beside this package is an operator.  It takes any leading axes, tensors that are not contiguous,
empty ones and what speaks DLPack; it has gradients, works under torch.compile and automatic mixed precision.  On a GPU
that it has kernels for these run; elsewhere PyTorch computes the same, which is said once (``ThroughPyTorch``).
Kernels that want their weights prepared once run for weights that ``ops.pack(ops.NAME, *weights)`` was given.
docs/operators.md has the details.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels_generated.runtime.manifest import MANIFEST, read_task

from .interface import FLOATS
from .packing import PackedWeights
from .registration import NAMESPACE, Operator, ThroughPyTorch, gathered, signature, warn_caller

__all__ = [
    "FLOATS",
    "NAMESPACE",
    "Operator",
    "PackedWeights",
    "ThroughPyTorch",
    "operators",
    "pack",
    "signature",
    "warn_caller",
]

_HOME = Path(__file__).resolve().parents[1]
_OPERATORS = gathered({path.parent.name: read_task(path.parent) for path in sorted(_HOME.glob(f"*/{MANIFEST}"))})


def operators() -> dict[str, Operator]:
    """What there is, by name."""
    return dict(_OPERATORS)


def pack(operator: str | Callable[..., Any], *weights: Any) -> PackedWeights:
    """Prepares an operator's weights once, for kernels of its that want them so: ``ops.pack(ops.linear, w, b)``.

    operator: one of these, or its name.  weights: its arguments that are weights, in their order.  Calls with the same
    weights, the same memory, then take those kernels where they are the fastest; given again they are not prepared
    again.  A weight that is changed in place is taken as it is from then on, which is said; a change through
    ``weight.data`` is not seen: :meth:`PackedWeights.release` first.  Raises RuntimeError for what are not its weights,
    ValueError for what is no operator.
    """
    name = operator if isinstance(operator, str) else getattr(operator, "__name__", "")
    if name not in _OPERATORS:
        raise ValueError(f"{operator!r} is no operator: there are {', '.join(_OPERATORS)}")
    return _OPERATORS[name].pack(weights)


def __getattr__(name: str) -> Callable[..., Any]:
    """The operator of that name, made when it is first asked for: its text tells what its winners take."""
    if name not in _OPERATORS:
        known = ", ".join(_OPERATORS)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: its operators are {known}")
    return globals().setdefault(name, _OPERATORS[name].function())  # type: ignore[no-any-return]


def __dir__() -> list[str]:
    return sorted([*__all__, *_OPERATORS])
