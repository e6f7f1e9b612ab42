"""The closed language of sizes: integers over a task's dimensions, written as JSON.

An expression is an ``int``, a dimension's name, or ``(op, a, b)`` with op one of ``+ - * cdiv fdiv mod min max``
(in JSON a list of three).  Dimensions are integers >= 1; arithmetic is exact.  Plans, guards, task shapes and SNF
dimensions all use it, and nothing else: a plan comes from untrusted code, so it is interpreted here, never ``eval``-ed.

Expressions built by this module's functions are in *normal form*: a polynomial over dimensions and opaque atoms
(``cdiv``, ``fdiv``, ``mod``, ``min``, ``max``) with sorted terms.  Equal polynomials are therefore equal values, and
:func:`decide` settles many comparisons for all dimensions at once.  Standard library only; anyone may import it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Expr = int | str | tuple[str, Any, Any]
Dims = Mapping[str, int]

OPERATORS = ("+", "-", "*", "cdiv", "fdiv", "mod", "min", "max")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")

# Limits on what untrusted plans may contain: far above any honest plan (a few dozen nodes, sizes below 2^40).
MAX_DEPTH = 64
MAX_NODES = 4096
MAX_BITS = 256

_Monomial = tuple[Expr, ...]
_Poly = dict[_Monomial, int]


class ExprError(ValueError):
    """An expression that is malformed, too large, or has no value (an unknown dimension, a division by zero)."""


# ---------------------------------------------------------------------------------------------------- evaluation


def evaluate(expr: Expr, dims: Dims) -> int:
    """The exact value of ``expr`` at ``dims``.

    Raises ExprError for an unknown dimension, a division by zero or a value beyond MAX_BITS bits.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        if expr not in dims:
            raise ExprError(f"unknown dimension {expr!r}: known are {', '.join(sorted(dims)) or 'none'}")
        return dims[expr]
    op, left, right = expr
    value = apply(op, evaluate(left, dims), evaluate(right, dims))
    if value.bit_length() > MAX_BITS:
        raise ExprError(f"value of more than {MAX_BITS} bits")
    return value


def apply(op: str, a: int, b: int) -> int:
    """One operator on two integers; division rounds to minus infinity (fdiv, mod) or plus infinity (cdiv)."""
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    if op == "min":
        return min(a, b)
    if op == "max":
        return max(a, b)
    if b == 0:
        raise ExprError(f"{op} by zero")
    if op == "fdiv":
        return a // b
    if op == "cdiv":
        return -(-a // b)
    if op == "mod":
        return a % b
    raise ExprError(f"unknown operator {op!r}: known are {' '.join(OPERATORS)}")


def holds(comparison: str, left: int, right: int) -> bool:
    """Whether ``left <comparison> right`` is true."""
    if comparison == "==":
        return left == right
    if comparison == "!=":
        return left != right
    if comparison == "<":
        return left < right
    if comparison == "<=":
        return left <= right
    if comparison == ">":
        return left > right
    if comparison == ">=":
        return left >= right
    raise ExprError(f"unknown comparison {comparison!r}: known are {' '.join(COMPARISONS)}")


# ---------------------------------------------------------------------------------------------------- JSON, text


def from_json(value: object) -> Expr:
    """Checks untrusted JSON and returns it as an expression (lists become tuples).  Raises ExprError."""
    budget = [MAX_NODES]

    def check(v: object, depth: int) -> Expr:
        budget[0] -= 1
        if depth > MAX_DEPTH or budget[0] < 0:
            raise ExprError(f"expression deeper than {MAX_DEPTH} or longer than {MAX_NODES} nodes")
        if isinstance(v, bool) or v is None:
            raise ExprError(f"not an expression: {v!r}")
        if isinstance(v, int):
            if v.bit_length() > MAX_BITS:
                raise ExprError(f"literal of more than {MAX_BITS} bits")
            return v
        if isinstance(v, str):
            if not v.isidentifier():
                raise ExprError(f"not a dimension's name: {v[:40]!r}")
            return v
        if isinstance(v, list | tuple) and len(v) == 3 and v[0] in OPERATORS:
            return (v[0], check(v[1], depth + 1), check(v[2], depth + 1))
        raise ExprError(f"not an expression: {str(v)[:80]!r}")

    return check(value, 0)


def to_json(expr: Expr) -> Any:
    """The expression as JSON-ready ints, strings and lists."""
    if isinstance(expr, tuple):
        return [expr[0], to_json(expr[1]), to_json(expr[2])]
    return expr


def show(expr: Expr) -> str:
    """A reader's form, valid Python with ``cdiv``, ``min`` and ``max`` as calls: ``3*C``, ``cdiv(M, 128)``."""

    def text(e: Expr, strength: int) -> str:
        if not isinstance(e, tuple):
            return f"({e})" if isinstance(e, int) and e < 0 and strength > 0 else str(e)
        op, a, b = e
        if op in ("cdiv", "min", "max"):
            return f"{op}({text(a, 0)}, {text(b, 0)})"
        sign, level = {"+": ("+", 1), "-": ("-", 1), "*": ("*", 2), "fdiv": ("//", 2), "mod": ("%", 2)}[op]
        joint = f" {sign} " if level == 1 else sign
        out = f"{text(a, level)}{joint}{text(b, level + 1)}"
        return f"({out})" if strength > level else out

    return text(expr, 0)


def symbols(expr: Expr) -> frozenset[str]:
    """The dimensions that occur in ``expr``."""
    if isinstance(expr, str):
        return frozenset([expr])
    if isinstance(expr, tuple):
        return symbols(expr[1]) | symbols(expr[2])
    return frozenset()


def substitute(expr: Expr, by: Mapping[str, Expr]) -> Expr:
    """``expr`` with dimensions replaced, in normal form."""
    if isinstance(expr, str):
        return by.get(expr, expr)
    if isinstance(expr, tuple):
        return build(expr[0], substitute(expr[1], by), substitute(expr[2], by))
    return expr


# ---------------------------------------------------------------------------------------------------- normal form


def build(op: str, a: Expr, b: Expr) -> Expr:
    """``(op, a, b)`` in normal form; ``a`` and ``b`` may be any expressions."""
    if isinstance(a, int) and isinstance(b, int):
        return apply(op, a, b)
    p, q = _poly(a), _poly(b)
    if op in ("+", "-"):
        return _expr(_add(p, q, 1 if op == "+" else -1))
    if op == "*":
        return _expr(_multiply(p, q))
    if op in ("min", "max"):
        return _extremum(op, _expr(p), _expr(q))
    if op in ("fdiv", "cdiv"):
        return _expr(_divide(op, p, q))
    if op == "mod":
        return _expr(_modulo(p, q))
    raise ExprError(f"unknown operator {op!r}: known are {' '.join(OPERATORS)}")


def normalise(expr: Expr) -> Expr:
    """The same function of the dimensions in normal form (idempotent)."""
    if isinstance(expr, tuple):
        return build(expr[0], normalise(expr[1]), normalise(expr[2]))
    return expr


def product(factors: tuple[Expr, ...] | list[Expr]) -> Expr:
    """The product of ``factors`` in normal form; 1 for none."""
    out: Expr = 1
    for factor in factors:
        out = build("*", out, factor)
    return out


def _key(e: Expr) -> tuple[int, str]:
    # Symbols before compound atoms, then by their text: any total order would do, this one reads well.
    return (0, e) if isinstance(e, str) else (1, repr(e))


def _poly(e: Expr) -> _Poly:
    if isinstance(e, int):
        return {(): e} if e else {}
    if isinstance(e, str):
        return {(e,): 1}
    op, a, b = e
    if op in ("+", "-"):
        return _add(_poly(a), _poly(b), 1 if op == "+" else -1)
    if op == "*":
        return _multiply(_poly(a), _poly(b))
    rebuilt = e if _is_atom(e) else build(op, a, b)
    return {(rebuilt,): 1} if rebuilt == e else _poly(rebuilt)


def _is_atom(e: Expr) -> bool:
    # An atom that this module built carries normal-form children already; rebuilding it would recurse for ever.
    return isinstance(e, tuple) and e in _ATOMS


_ATOMS: set[Expr] = set()


def _atom(op: str, a: Expr, b: Expr) -> Expr:
    made: Expr = (op, a, b)
    if len(_ATOMS) > 100_000:  # a long-lived process tracing many candidates: forgetting only costs a rebuild
        _ATOMS.clear()
    _ATOMS.add(made)
    return made


def _add(p: _Poly, q: _Poly, sign: int) -> _Poly:
    out = dict(p)
    for monomial, c in q.items():
        out[monomial] = out.get(monomial, 0) + sign * c
        if not out[monomial]:
            del out[monomial]
    return out


def _multiply(p: _Poly, q: _Poly) -> _Poly:
    out: _Poly = {}
    for m1, c1 in p.items():
        for m2, c2 in q.items():
            monomial = tuple(sorted(m1 + m2, key=_key))
            out[monomial] = out.get(monomial, 0) + c1 * c2
            if not out[monomial]:
                del out[monomial]
    return out


def _expr(p: _Poly) -> Expr:
    """The polynomial as a left-leaning expression: terms of high degree first, the constant last."""
    if not p:
        return 0
    terms = sorted(p.items(), key=lambda t: (-len(t[0]), [_key(a) for a in t[0]]))
    if terms[0][1] < 0:  # start with a positive term where there is one: ``N - M`` rather than ``-1*M + N``
        positive = next((i for i, t in enumerate(terms) if t[1] > 0), None)
        if positive is not None:
            terms.insert(0, terms.pop(positive))
    out: Expr | None = None
    for monomial, c in terms:
        body: Expr | None = None
        for atom in monomial:
            body = atom if body is None else ("*", body, atom)
        size = abs(c) if out is not None else c
        term: Expr = size if body is None else (body if size == 1 else ("*", size, body))
        out = term if out is None else (("+" if c > 0 else "-"), out, term)
    assert out is not None
    return out


def _quotient(p: _Poly, q: _Poly) -> tuple[_Poly, _Poly] | None:
    """(whole, rest) with p = whole * q + rest for a divisor of one term, taking every term of p that q divides."""
    if len(q) != 1:
        return ({(): 1}, {}) if p == q else None
    ((divisor, d),) = q.items()
    whole: _Poly = {}
    rest: _Poly = {}
    for monomial, c in p.items():
        left = list(monomial)
        for atom in divisor:
            if atom in left:
                left.remove(atom)
            else:
                break
        else:
            k, r = divmod(c, d)
            if k:
                whole[tuple(left)] = k
            if r:
                rest[monomial] = r
            continue
        rest[monomial] = c
    return whole, rest


def _divide(op: str, p: _Poly, q: _Poly) -> _Poly:
    if not q:
        raise ExprError(f"{op} by zero")
    if all(c < 0 for c in q.values()):  # a / -b = -a / b
        p, q = _negate(p), _negate(q)
    if all(c < 0 for c in p.values()):  # floor(-a / q) = -ceil(a / q): people write cdiv(a, q) as -(-a // q)
        return _negate(_divide("cdiv" if op == "fdiv" else "fdiv", _negate(p), q)) if p else {}
    split = _quotient(p, q)
    whole, rest = split if split is not None else ({}, p)
    if not rest:
        return whole
    low = bounds(_expr(rest))[0]
    room = bounds(_expr(_add(q, rest, -1)))[0]  # of q - rest
    if op == "fdiv":
        if low is not None and low >= 0 and room is not None and room > 0:
            return whole  # 0 <= rest < q
        # (a + q - 1) // q is how people write cdiv(a, q); true for q > 0 only
        shifted = _add(_add(rest, q, -1), {(): 1}, 1)
        positive = bounds(_expr(q))[0]
        if positive is not None and positive > 0 and rest.get(()) == -1:  # floor((a - 1) / q) = ceil(a / q) - 1
            return _add(_add(whole, _divide("cdiv", _add(rest, {(): 1}, 1), q), 1), {(): 1}, -1)
        if positive is not None and positive > 0 and _shorter(shifted, rest):
            return _add(whole, _divide("cdiv", shifted, q) if shifted else {}, 1)
    elif low is not None and low > 0 and room is not None and room >= 0:
        return _add(whole, {(): 1}, 1)  # 0 < rest <= q
    if all(c < 0 for c in rest.values()):  # floor(-a / q) = -ceil(a / q), and the other way round
        other = "cdiv" if op == "fdiv" else "fdiv"
        return _add(whole, _negate(_divide(other, _negate(rest), q)), 1)
    return _add(whole, {(_atom(op, _expr(rest), _expr(q)),): 1}, 1)


def _shorter(p: _Poly, than: _Poly) -> bool:
    return len(p) < len(than) and all(c > 0 for c in p.values())


def _negate(p: _Poly) -> _Poly:
    return {m: -c for m, c in p.items()}


def _modulo(p: _Poly, q: _Poly) -> _Poly:
    if not q:
        raise ExprError("mod by zero")
    split = _quotient(p, q)
    rest = split[1] if split is not None else p
    if not rest:
        return {}
    low = bounds(_expr(rest))[0]
    room = bounds(_expr(_add(q, rest, -1)))[0]
    if low is not None and low >= 0 and room is not None and room > 0:
        return rest
    return {(_atom("mod", _expr(rest), _expr(q)),): 1}


def _extremum(op: str, a: Expr, b: Expr) -> Expr:
    less = decide("<=", a, b)
    if less is None:
        other = decide("<=", b, a)
        less = None if other is None else not other
    if less is not None:
        return (a if less else b) if op == "min" else (b if less else a)
    first, second = sorted((a, b), key=lambda e: (isinstance(e, int), repr(e)))
    return _atom(op, first, second)


# ---------------------------------------------------------------------------------------------------- decisions


def bounds(expr: Expr) -> tuple[int | None, int | None]:
    """Least and greatest value over all dimensions >= 1; None where unbounded or unknown."""
    low: int | None = 0
    high: int | None = 0
    for monomial, c in _poly(expr).items():
        lo, hi = _monomial_bounds(monomial)
        if c < 0:
            lo, hi = hi, lo
        low = None if low is None or lo is None else low + c * lo
        high = None if high is None or hi is None else high + c * hi
    return low, high


def _monomial_bounds(monomial: _Monomial) -> tuple[int | None, int | None]:
    low, high = 1, 1  # type: int | None, int | None
    for atom in monomial:
        lo, hi = _atom_bounds(atom)
        if lo is None or lo < 0 or low is None:
            return None, None
        low *= lo
        high = None if high is None or hi is None else high * hi
    return low, high


def _atom_bounds(atom: Expr) -> tuple[int | None, int | None]:
    if not isinstance(atom, tuple):
        return (1, None) if isinstance(atom, str) else (atom, atom)
    op, a, b = atom
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    if op == "mod":
        return (0, None if bhi is None else bhi - 1) if blo is not None and blo > 0 else (None, None)
    if op in ("fdiv", "cdiv"):
        if blo is None or blo <= 0 or alo is None or alo < 0:
            return None, None
        low = apply(op, alo, bhi) if bhi is not None else (1 if op == "cdiv" and alo > 0 else 0)
        return low, None if ahi is None else apply(op, ahi, blo)
    if op == "min":
        highs = [h for h in (ahi, bhi) if h is not None]
        return (None if alo is None or blo is None else min(alo, blo)), min(highs, default=None)
    lows = [lo for lo in (alo, blo) if lo is not None]
    return max(lows, default=None), (None if ahi is None or bhi is None else max(ahi, bhi))


def decide(comparison: str, left: Expr, right: Expr) -> bool | None:
    """True or False if ``left <comparison> right`` is that for *all* dimensions >= 1; None if it depends or is unknown.

    Uses the difference's bounds and, for equality, the common divisor of its coefficients.
    """
    difference = _add(_poly(left), _poly(right), -1)
    low, high = bounds(_expr(difference))
    if comparison in ("<", ">="):
        verdict = True if high is not None and high < 0 else False if low is not None and low >= 0 else None
        return verdict if comparison == "<" or verdict is None else not verdict
    if comparison in ("<=", ">"):
        verdict = True if high is not None and high <= 0 else False if low is not None and low > 0 else None
        return verdict if comparison == "<=" or verdict is None else not verdict
    if comparison not in ("==", "!="):
        raise ExprError(f"unknown comparison {comparison!r}: known are {' '.join(COMPARISONS)}")
    equal: bool | None = None
    if not difference:
        equal = True
    elif (low is not None and low > 0) or (high is not None and high < 0):
        equal = False
    else:
        divisor = math.gcd(*(c for m, c in difference.items() if m), 0)
        if divisor and difference.get((), 0) % divisor:
            equal = False
    return equal if comparison == "==" or equal is None else not equal
