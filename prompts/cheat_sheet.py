"""cuTile's functions on half a page, from the cuda.tile that is installed: signatures, and meanings where needed.

What a kernel for these tasks can use is chosen here; how it is called is read from the package, so that it cannot go
stale.  A test holds that every public function is either shown or left out on purpose.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

# Heading → names.  Order is that of the sheet.
SHOWN: dict[str, tuple[str, ...]] = {
    "Blocks": ("bid", "num_blocks", "num_tiles", "cdiv"),
    "Memory": ("load", "store", "gather", "scatter", "atomic_add"),
    "New tiles": ("full", "zeros", "ones", "arange"),
    "Shapes": ("reshape", "permute", "transpose", "expand_dims", "broadcast_to", "extract", "cat", "astype", "bitcast"),
    "Products": ("mma", "matmul"),
    "Reductions and scans": ("sum", "max", "min", "prod", "argmax", "argmin", "cumsum", "cumprod"),
    "Elementwise": (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh",
        "sin", "cos", "abs", "floor", "ceil", "maximum", "minimum", "where", "isnan",
    ),
}  # fmt: skip
# Left out: what the operators spell, what these tasks do not need, and what has no place in a kernel that is judged.
LEFT_OUT = frozenset(
    (
        "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "bitwise_and",
        "bitwise_lshift", "bitwise_not", "bitwise_or", "bitwise_rshift", "bitwise_xor", "divmod", "equal", "greater",
        "greater_equal", "less", "less_equal", "not_equal", "negative", "atan2", "cosh", "sinh", "tan",
        "load_advanced_indexing", "store_advanced_indexing", "mma_scaled", "pack_to_bytes", "unpack_from_bytes",
        "insert", "reduce", "scan", "astile", "assume_divisible_by", "ensure_constant", "function", "launch",
        "static_assert", "static_eval", "static_exception", "static_iter", "assert_", "print", "printf",
        "compiler_timeout", "foreign_pointer_dtype", "grid_dependency_control_launch_dependents",
        "grid_dependency_control_wait",
    )
)  # fmt: skip
# What models ask for and cuTile does not have; a test holds that it has not.
MISSING = {
    "sigmoid": "1 / (1 + ct.exp(-x))",
    "erf": "a polynomial, for example Abramowitz and Stegun 7.1.26 (1.5e-7)",
    "silu": "x / (1 + ct.exp(-x))",
    "var": "the mean of (x - mean)²",
}
# What a signature does not say.
NOTES = {
    "load": "latency: 1 to 10, higher prefetches more; allow_tma=False for plain loads",
    "num_tiles": "of an array along an axis, for tiles of that shape",
    "extract": "the part of that shape at a tile index",
    "atomic_add": "indices: a tuple of index tiles, one for each dimension",
    "arange": "one-dimensional",
    "mma": "x @ y + acc",
    "exp2": "flush_to_zero=True is faster",
    "tanh": "rounding_mode=ct.RoundingMode.APPROX is faster, 1e-5 off",
    "truediv": "rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True is faster",
}


@functools.cache
def functions() -> str:
    """The sheet, one line a function; elementwise functions of one argument without options share lines."""
    import cuda.tile as ct

    lines = []
    for heading, names in SHOWN.items():
        lines.append(f"{heading}:")
        bare: dict[str, list[str]] = {}
        for name in names:
            signature = _signature(getattr(ct, name))
            if heading == "Elementwise" and name not in NOTES:
                bare.setdefault(signature, []).append(name)
            else:
                lines.append(f"    ct.{name}{signature}" + (f"  # {NOTES[name]}" if name in NOTES else ""))
        lines += [f"    ct.{', ct.'.join(same)}: {signature}" for signature, same in bare.items()]
    lines.append("Not there: " + "; ".join(f"ct.{name} (write {instead})" for name, instead in MISSING.items()))
    for enum in (ct.PaddingMode, ct.RoundingMode):
        lines.append(f"ct.{enum.__name__}: {', '.join(member.name for member in enum)}")
    return "\n".join(lines)


@functools.cache
def version() -> str:
    """The version of the cuda-tile that is installed."""
    from importlib import metadata

    return metadata.version("cuda-tile")


def _signature(function: Any) -> str:
    """``(x, /, axis=None, *, keepdims=False)``: names and defaults, without annotations."""
    plain = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if hasattr(default, "name") and hasattr(type(default), "__members__"):  # an enum's member, as it is written
            default = _Written(f"ct.{type(default).__name__}.{default.name}")
        plain.append(parameter.replace(annotation=inspect.Parameter.empty, default=default))
    return str(inspect.Signature(plain))


class _Written:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text
