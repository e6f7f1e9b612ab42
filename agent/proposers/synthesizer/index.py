"""Where an element lies: indices as linear forms over a kernel's axes, carried through views.

An :class:`Index` is ``sum(coefficient * atom) + constant``; an atom is an axis of the kernel's iteration space, a
quotient or a remainder, or a value loaded from memory (a token).  Views then need no copies: the index of each axis of
the result becomes an index for each axis of the argument, and the loader sees at the leaf whether a tile load serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels_generated.runtime.expr import Expr, build, product
from knowledge_base.snf import op_table

from .primitives import Prim


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a kernel's iteration space.

    index: the Python variable that counts its tiles, or its elements where ``tile`` is None; a literal if unrolled.
    tile: name of the constant (or a literal) that says how many elements a tile has; None for one element.
    exact: tiles never reach beyond the extent, so that nothing needs a mask.
    """

    index: str
    extent: Expr
    tile: str | None
    exact: bool = False
    label: str = ""  # of its elements' numbers, in the source: rows, cols


@dataclass(frozen=True)
class Quotient:
    """index // by (floor), or with ``remainder`` index % by."""

    index: Index
    by: Expr
    remainder: bool


@dataclass(frozen=True)
class Loaded:
    """The integer that ``value`` has at ``at``."""

    value: Prim
    at: tuple[Index, ...]


Atom = Axis | Quotient | Loaded


@dataclass(frozen=True)
class Index:
    terms: tuple[tuple[Atom, Expr], ...] = ()
    constant: Expr = 0

    def axes(self) -> frozenset[Axis]:
        """The axes of the iteration space it depends on."""
        found: set[Axis] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Axis):
                found.add(atom)
            elif isinstance(atom, Quotient):
                found |= atom.index.axes()
            else:
                for i in atom.at:
                    found |= i.axes()
        return frozenset(found)


ZERO = Index()
At = tuple[Index, ...]


def along(axis: Axis) -> Index:
    return Index(((axis, 1),))


def fixed(value: Expr) -> Index:
    return Index((), value)


def plus(a: Index, b: Index) -> Index:
    terms: dict[Any, Expr] = {}
    for atom, c in (*a.terms, *b.terms):
        terms[atom] = build("+", terms.get(atom, 0), c)
    return Index(tuple((atom, c) for atom, c in terms.items() if c != 0), build("+", a.constant, b.constant))


def times(a: Index, by: Expr) -> Index:
    return Index(tuple((atom, build("*", c, by)) for atom, c in a.terms), build("*", a.constant, by))


def divided(a: Index, by: Expr) -> tuple[Index, Index]:
    """(quotient, remainder) of a nonnegative index, simplified where the split is plain: (h*D + d) by D is (h, d)."""
    whole, rest = ZERO, ZERO
    for atom, c in a.terms:
        q = op_table.divide(c, by)
        part = Index(((atom, 1),))
        whole, rest = (plus(whole, times(part, q)), rest) if q is not None else (whole, plus(rest, times(part, c)))
    q = op_table.divide(a.constant, by)
    whole, rest = (plus(whole, fixed(q)), rest) if q is not None else (whole, plus(rest, fixed(a.constant)))
    if rest == ZERO:
        return whole, ZERO
    if rest.constant == 0 and len(rest.terms) == 1:
        atom, c = rest.terms[0]
        if isinstance(atom, Axis) and c == 1 and op_table.same(atom.extent, by):
            return whole, rest
    if not rest.terms and isinstance(rest.constant, int) and isinstance(by, int):
        return plus(whole, fixed(rest.constant // by)), fixed(rest.constant % by)
    return (
        plus(whole, Index(((Quotient(rest, by, False), 1),))),
        Index(((Quotient(rest, by, True), 1),)),
    )


def broadcast_at(at: At, shape: Sequence[Expr]) -> At:
    """The index into an argument of ``shape`` for the index ``at`` into the broadcast result."""
    aligned = at[len(at) - len(shape) :] if shape else ()
    return tuple(ZERO if s == 1 else i for i, s in zip(aligned, shape, strict=True))


def through_view(view: Prim, at: At) -> At:
    """The index into a view's argument for the index ``at`` into its result."""
    (x,) = view.args
    if view.op == "permute":
        perm = view.attr("perm")
        inner: list[Index] = [ZERO] * len(perm)
        for out, axis in enumerate(perm):
            inner[axis] = at[out]
        return tuple(inner)
    if view.op == "select":
        axis = view.attr("axis")
        return (*at[:axis], fixed(view.attr("index")), *at[axis:])
    if view.op == "slice":
        axis = view.attr("axis")
        return (*at[:axis], plus(at[axis], fixed(view.attr("start"))), *at[axis + 1 :])
    return through_reshape(x.shape, view.shape, at)


def through_reshape(inner: Sequence[Expr], outer: Sequence[Expr], at: At) -> At:
    """Axes are matched in groups of equal product; within a group the position is counted out and divided up again."""
    result: list[Index] = []
    o = i = 0
    while i < len(inner) or o < len(outer):
        if i < len(inner) and inner[i] == 1:
            result.append(ZERO)
            i += 1
            continue
        if o < len(outer) and outer[o] == 1:
            o += 1
            continue
        ni, no = _group(inner[i:], outer[o:])
        position = ZERO
        for k in range(o, o + no):
            position = plus(times(position, outer[k]), at[k])
        group: list[Index] = []
        for k in reversed(range(i + 1, i + ni)):
            position, rest = divided(position, inner[k])
            group.append(rest)
        result += [position, *reversed(group)]
        i, o = i + ni, o + no
    return tuple(result)


def _group(inner: Sequence[Expr], outer: Sequence[Expr]) -> tuple[int, int]:
    """The shortest prefixes of two shapes that have equally many elements."""
    for total in range(2, len(inner) + len(outer) + 1):
        for ni in range(1, min(total, len(inner) + 1)):
            no = total - ni
            if 1 <= no <= len(outer) and op_table.same(product(list(inner[:ni])), product(list(outer[:no]))):
                return ni, no
    return len(inner), len(outer)


def shifted_axis(index: Index) -> tuple[Axis, Index] | None:
    """(axis, start) if the index runs along one tiled axis with stride 1, from one start for a whole tile."""
    tiled = [(atom, c) for atom, c in index.terms if any(a.tile is not None for a in Index(((atom, c),)).axes())]
    if len(tiled) != 1 or not isinstance(tiled[0][0], Axis) or tiled[0][1] != 1:
        return None
    start = Index(tuple(t for t in index.terms if t[0] is not tiled[0][0]), index.constant)
    return tiled[0][0], start


def tiled_axes(index: Index) -> frozenset[Axis]:
    return frozenset(a for a in index.axes() if a.tile is not None)


def rebind(at: At, axes: dict[Axis, Axis]) -> At:
    """The same index with axes replaced (a loop's axis by one of its unrolled steps)."""

    def replaced(index: Index) -> Index:
        return Index(tuple((atom_of(atom), c) for atom, c in index.terms), index.constant)

    def atom_of(atom: Atom) -> Atom:
        if isinstance(atom, Axis):
            return axes.get(atom, atom)
        if isinstance(atom, Quotient):
            return Quotient(replaced(atom.index), atom.by, atom.remainder)
        return Loaded(atom.value, rebind(atom.at, axes))

    return tuple(replaced(i) for i in at)
