"""What ``ct.launch`` lets a kernel assume of the arrays that it is given, by the rules of cuda-tile 1.7.

Stated once, for whoever launches: the tracer, whose sizes are symbols and whose answers become guards of a plan, and
the emulator's own launcher, whose sizes are numbers.  No torch here: the tracer's child imports this.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

INT32_MAX = 2**31 - 1
MAX_INFERRED_RANK = 5  # nothing is inferred of the sizes and strides of arrays with more axes
ALIGNMENT_BYTES = 16  # addresses and strides are looked at modulo this: it allows the widest accesses
SIZE_DIVISOR = 16  # sizes are, modulo so many elements


class Asks(Protocol):
    """How a fact about numbers is found out.  Numbers are ints, or what stands for one."""

    def known(self, comparison: str, left: Any, right: Any) -> bool | None:
        """Whether it holds, or fails, wherever the launch is made; None where neither is sure."""

    def assume(self, comparison: str, left: Any, right: Any) -> bool:
        """Whether it holds here; then the launch is made only where it does."""

    def divides(self, divisor: int, number: Any) -> bool:
        """Whether ``number`` may be taken for a multiple."""

    def pin(self, number: Any) -> int:
        """The number's value here; then the launch is made only where it has that."""

    def value(self, number: Any) -> int:
        """The number's value here."""


_COMPARISONS = {"==": operator.eq, ">": operator.gt, ">=": operator.ge, "<=": operator.le}


class Plain:
    """Of ints every fact is decided."""

    def known(self, comparison: str, left: int, right: int) -> bool:
        return bool(_COMPARISONS[comparison](left, right))

    assume = known

    def divides(self, divisor: int, number: int) -> bool:
        return number % divisor == 0

    def pin(self, number: int) -> int:
        return number

    value = pin


PLAIN = Plain()


@dataclass(frozen=True)
class ArrayFacts:
    """What a bytecode takes for granted about one array parameter: the fields of cuTile's ArrayConstraint, per axis."""

    shape_constant: tuple[int | None, ...]
    stride_constant: tuple[int | None, ...]
    shape_divisible_by: tuple[int, ...]
    stride_divisible_by: tuple[int, ...]
    base_addr_divisible_by: int
    may_alias_internally: bool

    @property
    def rank(self) -> int:
        return len(self.shape_constant)

    def broken(self, shape: Sequence[int], strides: Sequence[int], start: int) -> str:
        """What is not so of an array that starts at byte ``start`` of an aligned buffer; empty if all holds."""
        for what, numbers, constants, divisors in (
            ("shape", shape, self.shape_constant, self.shape_divisible_by),
            ("stride", strides, self.stride_constant, self.stride_divisible_by),
        ):
            for axis, (number, constant, divisor) in enumerate(zip(numbers, constants, divisors, strict=True)):
                if constant is not None and number != constant:
                    return f"{what}[{axis}] == {constant}, it is {number}"
                if number % divisor:
                    return f"{what}[{axis}] % {divisor} == 0, it is {number}"
        if start % self.base_addr_divisible_by:
            return f"an address divisible by {self.base_addr_divisible_by}, it starts at byte {start}"
        if not self.may_alias_internally and not disjoint(shape, strides):
            return "elements that do not overlap"
        return ""


def array_facts(
    shape: Sequence[Any],
    strides: Sequence[Any],
    bits: int,
    start: tuple[int, Any],
    static: tuple[Sequence[int], Sequence[int]] = ((), ()),
    asks: Asks = PLAIN,
) -> ArrayFacts:
    """The facts about an array of elements of ``bits``, its ``strides`` in elements.

    start: (divisor, number): the array is aligned if the number is a multiple.  static: the axes whose size, and those
    whose stride, the kernel's annotation makes constants; once it names a stride, no other one is inferred.  Raises
    TypeError for an axis that is not there.
    """
    rank = len(shape)
    infer = rank <= MAX_INFERRED_RANK
    for axis in (*static[0], *static[1]):
        if not -rank <= axis < rank:
            raise TypeError(f"its annotation fixes axis {axis}, the array has {rank}")
    static_shape, static_strides = ({axis % rank for axis in axes} for axes in static)

    def one(number: Any) -> int | None:
        return 1 if infer and asks.known("==", number, 1) else None

    def multiple(divisor: int, number: Any, constant: int | None) -> int:
        # A constant says all about its number.
        return divisor if constant is None and infer and asks.divides(divisor, number) else 1

    shape_constant = [asks.pin(n) if axis in static_shape else one(n) for axis, n in enumerate(shape)]
    stride_constant = [
        asks.pin(n) if axis in static_strides else None if static_strides else one(n) for axis, n in enumerate(strides)
    ]
    widest = max(1, 8 * ALIGNMENT_BYTES // bits)  # elements
    return ArrayFacts(
        shape_constant=tuple(shape_constant),
        stride_constant=tuple(stride_constant),
        shape_divisible_by=tuple(multiple(SIZE_DIVISOR, n, c) for n, c in zip(shape, shape_constant, strict=True)),
        stride_divisible_by=tuple(multiple(widest, n, c) for n, c in zip(strides, stride_constant, strict=True)),
        base_addr_divisible_by=ALIGNMENT_BYTES if asks.divides(*start) else 1,
        may_alias_internally=not disjoint(shape, strides, asks),
    )


def disjoint(shape: Sequence[Any], strides: Sequence[Any], asks: Asks = PLAIN) -> bool:
    """Whether no two elements surely share memory: each stride reaches past the axes with smaller ones."""
    axes = sorted(range(len(shape)), key=lambda axis: (asks.value(strides[axis]), asks.value(shape[axis]), -axis))
    reach: Any = 1
    for place, axis in enumerate(axes):
        if not asks.assume(">", strides[axis], 0) or (place and not asks.assume(">=", strides[axis], reach)):
            return False
        reach = strides[axis] * shape[axis]
    return True


def common(facts: Sequence[ArrayFacts]) -> ArrayFacts:
    """What is so of all arrays of a list."""

    def constants(rows: Iterable[tuple[int | None, ...]]) -> tuple[int | None, ...]:
        return tuple(column[0] if len(set(column)) == 1 else None for column in zip(*rows, strict=True))

    def divisors(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(math.gcd(*column) for column in zip(*rows, strict=True))

    return ArrayFacts(
        constants(f.shape_constant for f in facts),
        constants(f.stride_constant for f in facts),
        divisors(f.shape_divisible_by for f in facts),
        divisors(f.stride_divisible_by for f in facts),
        math.gcd(*(f.base_addr_divisible_by for f in facts)),
        any(f.may_alias_internally for f in facts),
    )
