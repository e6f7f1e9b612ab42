"""The kernels as PyTorch operators.

    import torch
    from kernels_generated import ops

    y = ops.linear_gelu(x, w, b)                 # x[..., K], w[N, K], b[N]; also torch.ops.tilewright.linear_gelu
    help(ops.linear_gelu)                        # what it takes, and how fast its kernels are

Each folder of winners beside this package is an operator.  It takes any leading axes, tensors that are not contiguous,
empty ones and what speaks DLPack; it has gradients, works under torch.compile and automatic mixed precision.  On a GPU
that it has kernels for these run; elsewhere PyTorch computes the same, which is said once (``ThroughPyTorch``).
docs/operators.md has the details.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels_generated.runtime.manifest import MANIFEST, read_task

from .interface import FLOATS
from .registration import NAMESPACE, Operator, ThroughPyTorch, gathered, warn_caller

__all__ = ["FLOATS", "NAMESPACE", "Operator", "ThroughPyTorch", "operators", "warn_caller"]

_HOME = Path(__file__).resolve().parents[1]
_OPERATORS = gathered({path.parent.name: read_task(path.parent) for path in sorted(_HOME.glob(f"*/{MANIFEST}"))})


def operators() -> dict[str, Operator]:
    """What there is, by name."""
    return dict(_OPERATORS)


def __getattr__(name: str) -> Callable[..., Any]:
    """The operator of that name, made when it is first asked for: its text tells what its winners take."""
    if name not in _OPERATORS:
        known = ", ".join(_OPERATORS)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: its operators are {known}")
    return globals().setdefault(name, _OPERATORS[name].function())  # type: ignore[no-any-return]


def __dir__() -> list[str]:
    return sorted([*__all__, *_OPERATORS])
