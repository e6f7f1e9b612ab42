"""Integers that remember how they were computed, and the guards under which their answers hold.

A :class:`SymbolicSize` carries an expression over the task's dimensions and its value at the sample sizes.  Arithmetic
stays an expression; whatever must be answered at once (a comparison, a truth test, a conversion) is answered with the
sample's value, and the :class:`Context` records the guard that makes the answer right.  Nothing is recorded that the
normal form or an earlier guard decides already.

``Size`` is no subclass of int: C code would then read its value silently.  It answers ``int`` when asked for its class,
so ``isinstance(M, int)`` holds, while every C conversion goes through ``__index__``, ``__int__`` or ``__float__`` and
therefore guards.  Runs in the confined child: standard library and the size language only.
"""

from __future__ import annotations

import math
from typing import Any

from kernels_generated.runtime.expr import MAX_BITS, Expr, ExprError, apply, build, decide, holds, substitute
from kernels_generated.runtime.plan import Guard

from .refusal import Refusal

# Far above any honest size (tens of nodes); small enough that the product of two is cheap and is valid JSON of a plan.
MAX_EXPR_NODES = 200
MAX_EXPR_DEPTH = 48

NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRRORED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}

STALE = "a size kept from an earlier call of launch is used in this one"

Number = Any  # int | SymbolicSize: a type checker cannot see that a SymbolicSize passes for an int


class Context:
    """The guards of one trace.  ``dims`` are the sample values of the dimensions that expressions may name."""

    def __init__(self, dims: dict[str, int]) -> None:
        self.dims = dims
        self.closed = False  # after launch: a size that the candidate kept must not be used again
        self.guards: list[Guard] = []
        self._seen: dict[tuple[str, Expr, Expr], bool] = {}
        self._decided: dict[tuple[str, Expr, Expr], tuple[bool | None, int]] = {}
        self._pins: dict[str, Expr] = {}
        self._multiples: dict[str, int] = {}
        self._low: dict[str, int] = {}
        self._high: dict[str, int] = {}
        self._most: dict[Expr, int] = {}
        self._values: dict[Expr, int] = {}

    def symbol(self, name: str) -> SymbolicSize:
        """The dimension ``name`` as a SymbolicSize."""
        return SymbolicSize(self, name, self.dims[name])

    def known(self, comparison: str, left: Number, right: Number) -> bool | None:
        """What follows for every size inside the guards so far, or None; records nothing."""
        return self._known(comparison, expr_of(left), expr_of(right))

    def test(self, comparison: str, left: Number, right: Number) -> bool:
        """Whether it holds at the sample; guarded unless it follows already."""
        if self.closed:
            raise Refusal("stale-size", STALE)
        a, b = expr_of(left), expr_of(right)
        verdict = self._known(comparison, a, b)
        if verdict is None:
            verdict = holds(comparison, value_of(left), value_of(right))
            self._record(comparison if verdict else NEGATED[comparison], a, b)
        return verdict

    def pin(self, size: Number) -> int:
        """The plain value of ``size``; the guard says that it is this one."""
        if isinstance(size, SymbolicSize):
            self.test("==", size, size.value)
            return size.value
        return int(size)

    def divided(self, size: Number, divisor: Number) -> bool:
        """Whether ``size % divisor == 0`` follows from the guards; records nothing.  The divisor is not 0."""
        return self._known("==", build("mod", expr_of(size), expr_of(divisor)), 0) is True

    def divides(self, divisor: int, size: Number) -> bool:
        """The same for a plain divisor."""
        return divisor == 1 or self.divided(size, divisor)

    def assume_multiple(self, divisor: int, size: Number) -> bool:
        """Whether the sample's ``size`` is a multiple of ``divisor``; if so, that is guarded."""
        if self.divides(divisor, size):
            return True
        if value_of(size) % divisor:
            return False
        self._record("==", build("mod", expr_of(size), divisor), 0)
        return True

    def assume(self, comparison: str, left: Number, right: Number) -> bool:
        """Whether it holds at the sample; guarded only if it does."""
        if self.known(comparison, left, right) is True:
            return True
        return holds(comparison, value_of(left), value_of(right)) and self.test(comparison, left, right)

    # ------------------------------------------------------------------------------------------ what is known

    def _known(self, comparison: str, left: Expr, right: Expr) -> bool | None:
        if isinstance(left, int) and isinstance(right, int):
            return holds(comparison, left, right)
        # A launch asks the same of every array.  What is decided stays so; what is not may be by a later guard.
        key = (comparison, left, right)
        verdict, asked = self._decided.get(key, (None, -1))
        if verdict is None and asked != len(self.guards):
            verdict = self._decide(comparison, left, right)
            self._decided[key] = verdict, len(self.guards)
        return verdict

    def _decide(self, comparison: str, left: Expr, right: Expr) -> bool | None:
        verdict = decide(comparison, left, right)
        if verdict is not None:
            return verdict
        if (comparison, left, right) in self._seen:
            return self._seen[comparison, left, right]
        if left in self._values and isinstance(right, int):
            return holds(comparison, self._values[left], right)
        if isinstance(right, int) and comparison in ("<=", ">"):
            high = self._upper(left)
            if high is not None and high <= right:
                return comparison == "<="
        for facts in self._substitutions():
            try:
                verdict = decide(comparison, substitute(left, facts), substitute(right, facts))
            except ExprError:  # a division that these facts make one by zero: no answer from here
                continue
            if verdict is not None:
                return verdict
        return None

    def _upper(self, expr: Expr) -> int | None:
        """A bound that follows from the guards ``… <= constant``, or None."""
        if isinstance(expr, int):
            return expr
        bounds = [n for e, n in self._most.items() if e == expr or decide("<=", expr, e)]
        if isinstance(expr, tuple):
            op, a, b = expr
            if op in ("cdiv", "fdiv") and decide(">=", b, 1):
                high = self._upper(a)
                bounds += [] if high is None else [apply(op, high, b) if isinstance(b, int) else max(high, 0)]
            elif op == "mod" and isinstance(b, int) and b > 0:
                bounds.append(b - 1)
            elif op in ("+", "*", "max"):
                high, other = self._upper(a), self._upper(b)
                if (
                    high is not None
                    and other is not None
                    and (op != "*" or (decide(">=", a, 0) and decide(">=", b, 0)))
                ):
                    bounds.append(apply(op, high, other))
            elif op == "min":
                bounds += [n for n in (self._upper(a), self._upper(b)) if n is not None]
        return min(bounds, default=None)

    def needed_guards(self) -> list[Guard]:
        """The guards in order, without those that follow from the others."""
        kept = list(self.guards)
        for guard in self.guards:
            others = Context(self.dims)
            for other in kept:
                if other is not guard:
                    others._record(other.comparison, other.left, other.right)
            if others._known(guard.comparison, guard.left, guard.right) is True:
                kept.remove(guard)
        return kept

    def _substitutions(self) -> list[dict[str, Expr]]:
        """Changes of variable that carry the guards: each maps dimensions >= 1 onto what the guards allow."""
        if not (self._pins or self._multiples or self._low or self._high):
            return []
        low: dict[str, Expr] = {d: build("+", d, n - 1) for d, n in self._low.items() if n > 1}
        out = [{**low, **self._pins}]
        if self._multiples:
            out.append({**{d: build("*", k, d) for d, k in self._multiples.items()}, **self._pins})
        for d, n in self._high.items():
            out.append({**low, **self._pins, d: build("-", n + 1, d)})
        return out

    def _record(self, comparison: str, left: Expr, right: Expr) -> None:
        if isinstance(left, int):
            comparison, left, right = MIRRORED[comparison], right, left
        if isinstance(right, int) and comparison in ("<", ">"):
            comparison, right = ("<=", right - 1) if comparison == "<" else (">=", right + 1)
        if len(self.guards) >= 512:
            raise Refusal("too-many-guards", "launch asks more than 512 questions about its sizes")
        self.guards.append(Guard(comparison, left, right))
        for known, verdict in ((comparison, True), (NEGATED[comparison], False)):
            self._seen[known, left, right] = verdict
            self._seen[MIRRORED[known], right, left] = verdict
        if isinstance(right, int):
            self._learn(comparison, left, right)

    def _learn(self, comparison: str, left: Expr, right: int) -> None:
        if comparison == "==":
            self._values[left] = right
        if comparison in ("<=", "=="):
            self._most[left] = min(self._most.get(left, right), right)
            if isinstance(left, tuple) and left[0] in ("cdiv", "fdiv") and isinstance(left[2], int) and left[2] > 0:
                # ceil(a / b) <= c is a <= b * c; floor(a / b) <= c is a < b * (c + 1)
                self._learn("<=", left[1], left[2] * right if left[0] == "cdiv" else left[2] * (right + 1) - 1)
        if isinstance(left, str):
            if comparison == "==":
                self._pins[left] = right
            elif comparison == ">=" or (comparison == "!=" and right == 1):
                self._low[left] = max(self._low.get(left, 1), right if comparison == ">=" else 2)
            elif comparison == "<=":
                self._high[left] = min(self._high.get(left, right), right)
        elif isinstance(left, tuple) and left[0] == "mod" and comparison == "==" and right == 0:
            dim, divisor = left[1], left[2]
            if isinstance(dim, str) and isinstance(divisor, int):
                self._multiples[dim] = math.lcm(self._multiples.get(dim, 1), divisor)


def expr_of(size: Number) -> Expr:
    """The expression of an int or a SymbolicSize."""
    return size.expr if isinstance(size, SymbolicSize) else int(size)


def value_of(size: Number) -> int:
    """The value at the sample, without a guard."""
    return size.value if isinstance(size, SymbolicSize) else int(size)


def int_like(value: object) -> bool:
    """A SymbolicSize or a plain int; not a bool."""
    return type(value) is int or type(value) is SymbolicSize


def _measure(expr: Expr) -> tuple[int, int]:
    if not isinstance(expr, tuple):
        return 1, 1
    (n, d), (m, e) = _measure(expr[1]), _measure(expr[2])
    return n + m + 1, max(d, e) + 1


def _make(context: Context, op: str, a: Number, b: Number) -> Number:
    """``a op b`` as a SymbolicSize, or as an int where it is constant.  ZeroDivisionError as Python has it."""
    if context.closed:
        raise Refusal("stale-size", STALE)
    if op in ("fdiv", "cdiv", "mod") and not context.test("!=", b, 0):
        raise ZeroDivisionError("integer division or modulo by zero")
    value = apply(op, value_of(a), value_of(b))
    if value.bit_length() > MAX_BITS:
        raise Refusal("expression-too-large", f"a size of more than {MAX_BITS} bits")
    try:
        expr = build(op, expr_of(a), expr_of(b))
    except ExprError as error:
        raise ZeroDivisionError(str(error)) from None
    if isinstance(expr, int):
        return expr
    nodes, depth = _measure(expr)
    if nodes > MAX_EXPR_NODES or depth > MAX_EXPR_DEPTH:
        raise Refusal("expression-too-large", f"a size whose formula has {nodes} parts")
    return SymbolicSize(context, expr, value)


def _arithmetic(op: str, mirrored: bool = False) -> Any:
    plain = {"+": "__add__", "-": "__sub__", "*": "__mul__", "fdiv": "__floordiv__", "mod": "__mod__"}[op]
    name = plain.replace("__", "__r", 1) if mirrored else plain

    def method(self: SymbolicSize, other: Any) -> Any:
        if type(other) in (int, bool, SymbolicSize):
            if type(other) is SymbolicSize and other.context is not self.context:
                raise Refusal("stale-size", STALE)
            return _make(self.context, op, other, self) if mirrored else _make(self.context, op, self, other)
        if isinstance(other, float | complex):
            return getattr(type(other)(self.context.pin(self)), name)(other)
        return NotImplemented

    method.__name__ = name
    return method


def _comparison(op: str, name: str) -> Any:
    def method(self: SymbolicSize, other: Any) -> Any:
        if type(other) is float and other.is_integer():
            other = int(other)
        if type(other) in (int, bool, SymbolicSize):
            if type(other) is SymbolicSize and other.context is not self.context:
                # A helper's cache compares its keys: "another size" is the answer that never reuses a stale result.
                if op in ("==", "!="):
                    return op == "!="
                raise Refusal("stale-size", STALE)
            return self.context.test(op, self, other)
        if isinstance(other, float):
            return getattr(float(self.context.pin(self)), name)(other)
        return NotImplemented

    method.__name__ = name
    return method


def _pinning(name: str) -> Any:
    """A method of int that has no symbolic meaning: both sides take their sample's value, guarded."""

    def method(self: SymbolicSize, *others: Any) -> Any:
        plain = [self.context.pin(o) if type(o) is SymbolicSize else o for o in others]
        return getattr(self.context.pin(self), name)(*plain)

    method.__name__ = name
    return method


class SymbolicSize:
    """An integer of the candidate's ``launch``: see the module's text."""

    __slots__ = ("context", "expr", "value")

    def __init__(self, context: Context, expr: Expr, value: int) -> None:
        self.context = context
        self.expr = expr
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    __add__, __radd__ = _arithmetic("+"), _arithmetic("+", True)
    __sub__, __rsub__ = _arithmetic("-"), _arithmetic("-", True)
    __mul__, __rmul__ = _arithmetic("*"), _arithmetic("*", True)
    __floordiv__, __rfloordiv__ = _arithmetic("fdiv"), _arithmetic("fdiv", True)
    __mod__, __rmod__ = _arithmetic("mod"), _arithmetic("mod", True)
    __eq__, __ne__ = _comparison("==", "__eq__"), _comparison("!=", "__ne__")
    __lt__, __le__ = _comparison("<", "__lt__"), _comparison("<=", "__le__")
    __gt__, __ge__ = _comparison(">", "__gt__"), _comparison(">=", "__ge__")
    __rlshift__, __rrshift__, __rpow__ = _pinning("__rlshift__"), _pinning("__rrshift__"), _pinning("__rpow__")
    __or__, __ror__, __xor__, __rxor__ = (_pinning(n) for n in ("__or__", "__ror__", "__xor__", "__rxor__"))
    to_bytes, bit_count = _pinning("to_bytes"), _pinning("bit_count")
    __hash__, __repr__, __str__ = _pinning("__hash__"), _pinning("__repr__"), _pinning("__str__")
    __format__ = _pinning("__format__")

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        if int_like(other):
            return ratio(self.context, self, other)
        return self.context.pin(self) / other if isinstance(other, int | float | complex) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        if int_like(other):
            return ratio(self.context, other, self)
        return other / self.context.pin(self) if isinstance(other, int | float | complex) else NotImplemented

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is None and type(other) is int and 0 <= other <= 8:
            out: Any = 1
            for _ in range(other):
                out = out * self
            return out
        plain = [o.context.pin(o) if type(o) is SymbolicSize else o for o in (self, other, modulus)]
        return pow(plain[0], plain[1]) if modulus is None else pow(*plain)

    def __lshift__(self, other: Any) -> Any:
        if type(other) is int and 0 <= other <= MAX_BITS:
            return self * (1 << other)
        return self.context.pin(self) << (self.context.pin(other) if type(other) is SymbolicSize else other)

    def __rshift__(self, other: Any) -> Any:
        if type(other) is int and 0 <= other <= MAX_BITS:
            return self // (1 << other)
        return self.context.pin(self) >> (self.context.pin(other) if type(other) is SymbolicSize else other)

    def __and__(self, other: Any) -> Any:
        if type(other) is int and other >= 0 and other & (other + 1) == 0:  # a mask of low bits is a modulus
            return self % (other + 1)
        return self.context.pin(self) & (self.context.pin(other) if type(other) is SymbolicSize else other)

    __rand__ = __and__

    def __neg__(self) -> Any:
        return 0 - self

    def __invert__(self) -> Any:
        return -1 - self

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __bool__(self) -> bool:
        return self.context.test("!=", self, 0)

    def __index__(self) -> int:
        return self.context.pin(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.context.pin(self))

    def __complex__(self) -> complex:
        return complex(self.context.pin(self))

    def __round__(self, digits: Any = None) -> Any:
        return self if digits is None or digits >= 0 else round(self.context.pin(self), digits)

    def __trunc__(self) -> Any:
        return self

    __floor__ = __ceil__ = conjugate = __trunc__

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (self.context.pin(self),)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    @property
    def real(self) -> Any:
        return self

    numerator = real

    @property
    def imag(self) -> int:
        return 0

    @property
    def denominator(self) -> int:
        return 1

    def as_integer_ratio(self) -> Any:
        return self, 1

    def is_integer(self) -> bool:
        return True

    def bit_length(self) -> int:
        """The sample's; the guard is the bucket 2^(n-1) <= size < 2^n, so that rounding up to a power stays exact."""
        bits = self.value.bit_length()
        if self.value <= 0:
            return self.context.pin(self).bit_length()
        self.context.test(">=", self, 1 << (bits - 1))
        self.context.test("<", self, 1 << bits)
        return bits


def ratio(context: Context, a: Number, b: Number) -> Any:
    """``a / b`` that is still exact: a Ratio, or a float where both are plain."""
    if not context.test("!=", b, 0):
        raise ZeroDivisionError("division by zero")
    return Ratio(context, a, b) if context.test(">", b, 0) else Ratio(context, -a, -b)


class Ratio:
    """The quotient of two integers, b > 0: rounding and comparing are exact, any other use takes the sample's float."""

    __slots__ = ("a", "b", "context")

    def __init__(self, context: Context, a: Number, b: Number) -> None:
        self.context, self.a, self.b = context, a, b

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def __ceil__(self) -> Any:
        return _make(self.context, "cdiv", self.a, self.b)

    def __floor__(self) -> Any:
        return _make(self.context, "fdiv", self.a, self.b)

    def __trunc__(self) -> Any:
        return self.__floor__() if self.context.test(">=", self.a, 0) else self.__ceil__()

    def __round__(self, digits: Any = None) -> Any:
        return round(float(self), *([] if digits is None else [digits]))

    def __float__(self) -> float:
        return self.context.pin(self.a) / self.context.pin(self.b)

    def __int__(self) -> int:
        return self.context.pin(self.__trunc__())

    def __bool__(self) -> bool:
        return self.context.test("!=", self.a, 0)

    def is_integer(self) -> bool:
        return self.context.test("==", _make(self.context, "mod", self.a, self.b), 0)

    def _compare(self, comparison: str, other: Any) -> Any:
        if type(other) is float and other.is_integer():
            other = int(other)
        if type(other) is Ratio:
            return self.context.test(comparison, self.a * other.b, other.a * self.b)
        if int_like(other):
            return self.context.test(comparison, self.a, other * self.b)
        return holds(comparison, float(self), other) if isinstance(other, float) else NotImplemented  # type: ignore[arg-type]

    def __eq__(self, other: object) -> Any:
        return self._compare("==", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("!=", other)

    def __lt__(self, other: Any) -> Any:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(">=", other)


def _as_float(name: str) -> Any:
    def method(self: Ratio, *others: Any) -> Any:
        return getattr(float(self), name)(*(float(o) if type(o) in (Ratio, SymbolicSize) else o for o in others))

    method.__name__ = name
    return method


_OF_FLOAT = """add sub mul truediv floordiv mod pow radd rsub rmul rtruediv rfloordiv rmod rpow neg pos abs hash repr
str format divmod rdivmod"""
for _name in _OF_FLOAT.split():
    setattr(Ratio, f"__{_name}__", _as_float(f"__{_name}__"))


# ------------------------------------------------------------------------------------------------ shadowed built-ins


def extremum(op: str, plain: Any) -> Any:
    """``min`` or ``max`` that keeps sizes symbolic; everything else goes to the built-in ``plain``."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        items = list(args[0]) if len(args) == 1 and not int_like(args[0]) else list(args)
        sizes = [i for i in items if type(i) is SymbolicSize]
        if kwargs or not sizes or not all(int_like(i) for i in items):
            return plain(items, **kwargs) if len(args) == 1 else plain(*args, **kwargs)
        out = items[0]
        for item in items[1:]:
            out = _make(sizes[0].context, op, out, item)
        return out

    chosen.__name__ = op
    return chosen


class _Integer(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, int)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            if type(args[0]) is SymbolicSize:
                return args[0]
            if type(args[0]) is Ratio:
                return args[0].__trunc__()
        return int(*args, **kwargs)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is int

    def __hash__(cls) -> int:
        return hash(int)


class Integer(metaclass=_Integer):
    """Stands for ``int`` while launch runs: ``int(M)`` and ``int(M / 2)`` stay symbolic."""

    from_bytes = int.from_bytes


SHADOWS: dict[str, Any] = {
    "min": extremum("min", min),
    "max": extremum("max", max),
    "int": Integer,
    "print": lambda *args, **kwargs: None,  # printing a size would pin it
}
