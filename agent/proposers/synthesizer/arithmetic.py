"""How each elementwise op is written in cuTile, with PyTorch's answers for NaN, infinities and integers.

Operands are names or literals, so that templates need no brackets.  Functions that cuTile lacks, or that would lose
digits written in one line, are helpers printed above the kernel that uses them.
"""

from __future__ import annotations

import ctypes
import math

CT_DTYPES = {
    "bf16": "ct.bfloat16", "f16": "ct.float16", "f32": "ct.float32", "f64": "ct.float64",
    "i32": "ct.int32", "i64": "ct.int64", "bool": "ct.bool_",
}  # fmt: skip
TORCH_DTYPES = {
    "bf16": "torch.bfloat16", "f16": "torch.float16", "f32": "torch.float32", "f64": "torch.float64",
    "i32": "torch.int32", "i64": "torch.int64", "bool": "torch.bool",
}  # fmt: skip

COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

# op -> template; {0}, {1} are operands.  relu and maximum hand NaN on, as PyTorch does.
FLOAT = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "pow": "ct.pow({0}, {1})",
    "minimum": "ct.minimum({0}, {1}, propagate_nan=True)",
    "maximum": "ct.maximum({0}, {1}, propagate_nan=True)",
    "neg": "-{0}",
    "abs": "ct.abs({0})",
    "exp": "ct.exp({0})",
    "log": "ct.log({0})",
    "sqrt": "ct.sqrt({0})",
    "rsqrt": "ct.rsqrt({0})",
    "tanh": "ct.tanh({0})",
    "relu": "ct.maximum({0}, 0.0, propagate_nan=True)",
    "square": "{0} * {0}",
    "sigmoid": "1.0 / (1.0 + ct.exp(-{0}))",
    "silu": "{0} / (1.0 + ct.exp(-{0}))",
}
INTEGER = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "pow": "ct.pow({0}, {1})",
    "minimum": "ct.minimum({0}, {1})",
    "maximum": "ct.maximum({0}, {1})",
    "neg": "-{0}",
    "abs": "ct.abs({0})",
    "relu": "ct.maximum({0}, 0)",
    "square": "{0} * {0}",
}


def literal(value: float, dtype: str) -> str:
    """``value`` as source text, of the kind (float or int) that ``dtype`` wants; infinities and NaN by name."""
    if dtype == "bool":
        return str(bool(value))
    if dtype in ("i32", "i64") and float(value).is_integer():
        return f"({int(value)})" if value < 0 else str(int(value))
    value = float(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INF" if value > 0 else "(-INF)"
    if dtype == "f64" and ctypes.c_float(value).value != value:
        # cuTile takes a number in Python for a float32; whole numbers keep all of their bits
        fraction, exponent = math.frexp(value)
        return f"(ct.astype({int(fraction * 2**53)}, {CT_DTYPES[dtype]}) * {2.0 ** (exponent - 53)!r})"
    return f"({value!r})" if value < 0 or math.copysign(1, value) < 0 else repr(value)


def _gelu_tanh(name: str, dtype: str) -> str:
    return f'''
def {name}(x):
    """x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), as x sigmoid(2u): nothing cancels where tanh is near -1."""
    u = {literal(0.7978845608028654, dtype)} * (x + {literal(0.044715, dtype)} * x * x * x)
    return x / (1.0 + ct.exp(-2.0 * u))
'''


# Our own fit: weighted least squares at Chebyshev nodes, reweighted towards minimax (Lawson, 1961), in float32:
# erf(x)/x - 1 in x^2 on [0, 1] (error 1.2e-9) and log(erfc(x)) on [1, 4] (2.1e-11 of erf).  Run in float32 it has an
# RMS error of 1.5e-8 and a largest of 8.3e-8 or 1.4 ulp; torch.erf on a CPU 1.3e-8 and 3.2e-8.
_ERF = '''
def erf(x):
    """The error function in float32: x + x P(x^2) up to 1, beyond it 1 - exp(Q(|x|)), which is 1 from 4 on."""
    s = x * x
    p = 7.853857823647559e-05 * s - 0.0008010192541405559
    p = p * s + 0.005188327748328447
    p = p * s - 0.026853810995817184
    p = p * s + 0.1128358542919159
    p = p * s - 0.3761262595653534
    p = p * s + 0.12837916612625122
    t = ct.abs(x)
    u = ct.minimum(t, 4.0, propagate_nan=True)
    q = -2.168651008105371e-05 * u + 0.00044133237679488957
    q = q * u - 0.004204542376101017
    q = q * u + 0.025208204984664917
    q = q * u - 0.10841849446296692
    q = q * u - 0.6332199573516846
    q = q * u - 1.1295783519744873
    q = q * u + 0.00018803184502758086
    tail = 1.0 - ct.exp(q)
    return ct.where(t <= 1.0, x + x * p, ct.where(x < 0.0, -tail, tail))
'''

_GELU_ERF = '''
def gelu_erf(x):
    """x/2 (1 + erf(x / sqrt 2))."""
    return 0.5 * x * (1.0 + erf(x * 0.7071067811865476))
'''

# What is written where results are stored in 16 bits: the hardware's approximations, whose errors are far below that
# rounding.  They take half the time: on an H200 a multiprocessor computes 1,000 tanh in 63 clocks instead of 142, and
# 1,000 divisions in 68 instead of 136.
_APPROX = "rounding_mode=ct.RoundingMode.APPROX"
_GELU_APPROX = f'''
def gelu_approx(x):
    """x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    u = x * (0.7978845608028654 + 0.035677408136300125 * (x * x))
    h = 0.5 * x
    return h * ct.tanh(u, {_APPROX}) + h
'''

_SILU_APPROX = f'''
def silu_approx(x):
    """x / (1 + exp(-x)) as x/2 (1 + tanh(x/2))."""
    h = 0.5 * x
    return h * ct.tanh(h, {_APPROX}) + h
'''

_SIGMOID_APPROX = f'''
def sigmoid_approx(x):
    """1 / (1 + exp(-x)): small results keep their digits."""
    return ct.truediv(1.0, 1.0 + ct.exp2(-1.4426950408889634 * x, flush_to_zero=True), {_APPROX})
'''

HELPERS = {
    "gelu": (_gelu_tanh("gelu", "f32"), ()),
    "gelu_f64": (_gelu_tanh("gelu_f64", "f64"), ()),
    "erf": (_ERF, ()),
    "gelu_erf": (_GELU_ERF, ("erf",)),
    "gelu_approx": (_GELU_APPROX, ()),
    "silu_approx": (_SILU_APPROX, ()),
    "sigmoid_approx": (_SIGMOID_APPROX, ()),
}

# As FLOAT, approximately; what is not here is as there.  Division has its full range: its approximate form has not.
APPROXIMATE = {
    "div": "ct.truediv({0}, {1}, rounding_mode=ct.RoundingMode.FULL)",
    "exp": f"ct.exp({{0}}, {_APPROX})",
    "sqrt": f"ct.sqrt({{0}}, {_APPROX})",
    "tanh": f"ct.tanh({{0}}, {_APPROX})",
    "silu": "silu_approx({0})",
    "sigmoid": "sigmoid_approx({0})",
}


def powers(exponent: float) -> str | None:
    """x ** exponent for the exponents with a shorter spelling than pow; None for others."""
    table = {
        1.0: "{0} * 1.0",
        2.0: "{0} * {0}",
        3.0: "{0} * {0} * {0}",
        4.0: "({0} * {0}) * ({0} * {0})",
        -1.0: "1.0 / {0}",
        -2.0: "1.0 / ({0} * {0})",
    }
    return table.get(float(exponent))
