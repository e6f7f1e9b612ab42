"""Axes of a sub-graph as lists of atoms: what makes a task independent of the target's own sizes.

Each input axis starts as one free atom.  The ops then say what must be equal (a contraction's two sides) and what must
come apart (``Heads`` splits an axis in two, ``split(3)`` in three equal parts): atoms are united, or refined into an
ordered list of atoms.  Nothing else of the target's arithmetic survives: in ``Linear(n, 4*C)`` the two widths are two
free atoms.

Two equalities are kept although no op forces them, where the target's sizes agree: rows and columns under a causal mask
(so that attention on q, k, v is square), and the widths that attention's two products contract and produce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernels_generated.runtime.expr import Expr, product

from .graph import Graph, Node
from .op_table import OPS, divide, same


class NotGeneral(Exception):
    """The sub-graph's sizes can't be told apart from the target's arithmetic; it is kept with it."""


@dataclass(eq=False)
class Atom:
    """A size that is not taken apart further; ``origin`` is its value in the target's dimensions.

    const: it is that number in every use (the parts of a split).  total: it is the sum of these axes (a concat).
    """

    origin: Expr
    const: int | None = None
    total: list[list[Atom]] | None = None
    parts: list[Atom] | None = None  # what it was refined into or united with


Axis = list[Atom]


def new_axis(size: Expr) -> Axis:
    """A fresh axis; an axis of 1 has no atoms and broadcasts."""
    return [] if size == 1 else [Atom(size)]


def resolve(axis: Axis) -> Axis:
    """The axis in atoms that are not refined further."""
    out: Axis = []
    stack = list(reversed(axis))
    while stack:
        atom = stack.pop()
        if atom.parts is None:
            out.append(atom)
        else:
            stack.extend(reversed(atom.parts))
    return out


def size_of(axis: Axis) -> Expr:
    return product([a.origin for a in axis])


def _unite(a: Atom, b: Atom) -> None:
    if a is b:
        return
    if a.total is not None and b.total is not None:
        raise NotGeneral("two sums that must be equal")
    keep, drop = (a, b) if b.total is None and (a.total is not None or a.const is not None) else (b, a)
    if keep.total is not None and drop.const is not None:
        raise NotGeneral("a sum that must be a number")
    drop.parts = [keep]


def _refine(atom: Atom, first: Expr, rest: Expr) -> None:
    if atom.total is not None:
        raise NotGeneral("a sum that must come apart")
    atom.parts = [Atom(first), Atom(rest)]
    if atom.const is not None:
        for part in atom.parts:
            if not isinstance(part.origin, int):
                raise NotGeneral("a number that must come apart into sizes")
            part.const = part.origin


def unify(left: Axis, right: Axis) -> None:
    """Makes two axes equal, refining atoms where one side is finer.  Raises NotGeneral."""
    a, b = resolve(left), resolve(right)
    while a and b:
        x, y = a[0], b[0]
        if x is y or same(x.origin, y.origin):
            _unite(x, y)
            a, b = a[1:], b[1:]
            continue
        for coarse, fine in ((x, y), (y, x)):
            rest = divide(coarse.origin, fine.origin)
            if rest is not None:
                _refine(coarse, fine.origin, rest)
                break
        else:
            raise NotGeneral(f"{x.origin} against {y.origin}")
        a, b = resolve(a), resolve(b)
    if a or b:
        raise NotGeneral("one axis is finer than the other")


def take(flat: Axis, size: Expr) -> tuple[Axis, Axis]:
    """(axis of that size, what is left) from the front of a flat list of atoms, refining the last one if needed."""
    axis: Axis = []
    flat = resolve(flat)
    while size != 1:
        if not flat:
            raise NotGeneral("a reshape that asks for more than there is")
        atom = flat[0]
        rest = divide(size, atom.origin)
        if rest is None:
            left = divide(atom.origin, size)
            if left is None:
                raise NotGeneral(f"{atom.origin} against {size}")
            _refine(atom, size, left)
            flat = resolve(flat)
            continue
        axis.append(atom)
        flat, size = flat[1:], rest
    return axis, flat


@dataclass
class Axes:
    """The axes of every value of a graph.  ``heads`` are the pieces that heads and split nodes cut off in front."""

    of: dict[str, list[Axis]] = field(default_factory=dict)
    cut: dict[str, Axis] = field(default_factory=dict)  # node -> the axis it splits off (heads: n, split: parts)
    touched: list[Axis] = field(default_factory=list)  # axes that an op does more with than passing them through
    tiles: list[Axis] = field(default_factory=list)  # widths that attention holds in one tile
    batched: bool = False
    shift: dict[str, int] = field(default_factory=dict)  # value -> axes gained (or lost) in front, by ``lead``

    def resolved(self, name: str) -> list[Axis]:
        return [resolve(axis) for axis in self.of[name]]


def infer(graph: Graph) -> Axes:
    """Axes for every value.  Raises NotGeneral."""
    axes = Axes()
    for tensor in graph.inputs:
        axes.of[tensor.name] = [new_axis(size) for size in tensor.shape]
    axes.batched = any(n.op == "matmul" and len(graph.value(n.args[1]).shape) > 2 for n in graph.nodes)
    for node in graph.nodes:
        rule = _RULES.get(node.op) or _RULES[OPS[node.op].kind]
        axes.of[node.name] = rule(axes, node, [axes.of[a] for a in node.args])
    _tie_attention(graph, axes)
    return axes


def _broadcast(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    rank = max((len(a) for a in args), default=0)
    out: list[Axis] = [[] for _ in range(rank)]
    for arg in args:
        for i in range(-len(arg), 0):
            if out[i] and arg[i]:
                unify(out[i], arg[i])
            elif arg[i]:
                out[i] = arg[i]
    return out


def _reduction(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    (x,) = args
    place = len(x) + node.attr("axis")
    axes.touched.append(x[place])
    return x[:place] + ([[]] if node.attr("keepdims") else []) + x[place + 1 :]


def _row(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    for parameter in args[1:]:
        unify(args[0][-1], parameter[0])
    axes.touched.append(args[0][-1])
    return args[0]


def _rope(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    out = _broadcast(axes, node, args)
    axes.touched.append(out[-1])
    return out


def _linear(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    x, w = args[:2]
    unify(x[-1], w[1])
    if len(args) == 3:
        unify(args[2][0], w[0])
    axes.touched += [w[0], w[1]]
    return [*x[:-1], w[0]]


def _matmul(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    a, b = args
    unify(a[-1], b[-2])
    batch = _broadcast(axes, node, [a[:-2], b[:-2]])
    axes.touched += [a[-1], b[-1]]
    if axes.batched:
        axes.touched += [*batch, a[-2]]
    return [*batch, a[-2], b[-1]]


def _reshape(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    flat = [atom for axis in args[0] for atom in axis]
    out: list[Axis] = []
    for size in node.shape:
        axis, flat = take(flat, size)
        out.append(axis)
    return out


def _heads(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    x = args[0]
    heads, width = take(x[-1], node.attr("n"))
    axes.cut[node.name] = heads
    return [*x[:-2], heads, x[-2], width]


def _merge(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    x = args[0]
    return [*x[:-3], x[-2], [*x[-3], *x[-1]]]


def _split(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    x = args[0]
    parts, rest = take(x[-1], node.attr("parts"))
    _fix(parts)
    axes.cut[node.name] = parts
    return [*x[:-1], rest]


def _select(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    place = node.attr("axis") % len(args[0])
    _fix(args[0][place])
    return args[0][:place] + args[0][place + 1 :]


def _fix(axis: Axis) -> None:
    """An axis that is indexed with a number is that long in every use of the task."""
    for atom in resolve(axis):
        if atom.total is None and isinstance(atom.origin, int):
            atom.const = atom.origin


def _iota(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    axis = new_axis(node.attr("n"))
    axes.touched.append(axis)
    return [axis]


def _mask(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    rows, columns = args[0][-2:]
    if same(size_of(resolve(rows)), size_of(resolve(columns))) and rows:
        unify(rows, columns)
    axes.touched += [rows, columns]
    return [rows, columns]


def _concat(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    place = len(args[0]) + node.attr("axis")
    out = list(args[0])
    for other in args[1:]:
        for i, axis in enumerate(other):
            if i != place:
                unify(out[i], axis)
    out[place] = [Atom(node.shape[place], total=[a[place] for a in args])] if len(args) > 1 else args[0][place]
    axes.touched += [a[place] for a in args] + [out[place]]
    return out


def _gather(axes: Axes, node: Node, args: Sequence[list[Axis]]) -> list[Axis]:
    table, index = args
    axes.touched.append(table[0])
    return [*index, *table[1:]]


_RULES: dict[str, Callable[[Axes, Node, Sequence[list[Axis]]], list[Axis]]] = {
    "scalar": lambda axes, node, args: [],
    "elementwise": _broadcast, "reduction": _reduction, "row": _row, "rope": _rope, "linear": _linear,
    "matmul": _matmul, "reshape": _reshape, "heads": _heads, "merge": _merge, "split": _split, "select": _select,
    "permute": lambda axes, node, args: [args[0][p] for p in node.attr("perm")],
    "iota": _iota, "causal_mask": _mask, "concat": _concat, "gather": _gather,
}  # fmt: skip


def _tie_attention(graph: Graph, axes: Axes) -> None:
    """Unites the width that one product contracts with the width that a later product of its scores produces."""
    contracted: dict[str, list[Axis]] = {}
    for node in graph.nodes:
        if node.op == "matmul" and axes.batched:
            for width in contracted.get(node.args[0], ()):
                produced = axes.of[node.args[1]][-1]
                axes.tiles += [width, produced]
                if produced and width and same(size_of(resolve(width)), size_of(resolve(produced))):
                    unify(width, produced)
            contracted[node.name] = [axes.of[node.args[0]][-1]]
        elif OPS[node.op].kind in ("elementwise", "row"):
            found = [width for arg in node.args for width in contracted.get(arg, ())]
            if found:
                contracted[node.name] = found[:1]


def lead(graph: Graph, axes: Axes) -> Atom | None:
    """Flattens the leading axes that all values share, and no op touches, to one atom (or adds one of size 1).

    Returns the atom, or None where a task has no such axis: in batched products every axis has its part.
    """
    if axes.batched:
        return None
    names = [v.name for v in graph.values]
    shapes = {name: axes.resolved(name) for name in names}
    touched = {id(a) for axis in axes.touched for a in resolve(axis)}
    first = shapes[graph.outputs[0]]
    longest = max(len(s) for s in shapes.values()) - 1
    for count in range(min(len(first), longest), 0, -1):
        front = first[:count]
        atoms = {id(a) for axis in front for a in axis}
        free = all(axis and all(a.const is None and a.total is None for a in axis) for axis in front)
        if free and not atoms & touched and all(_fits(shape, front, atoms) for shape in shapes.values()):
            merged = Atom(product([size_of(axis) for axis in front]))
            for name, shape in shapes.items():
                carries = any(id(a) in atoms for axis in shape for a in axis)
                axes.of[name] = [[merged], *shape[count:]] if carries else shape
                axes.shift[name] = 1 - count if carries else 0
            return merged
    return _add_lead(graph, axes, shapes)


def _fits(shape: list[Axis], front: list[Axis], atoms: set[int]) -> bool:
    """Whether a value starts with exactly the front axes, or has none of their atoms."""
    used = [id(a) for axis in shape for a in axis if id(a) in atoms]
    if not used:
        return True
    starts = len(shape) >= len(front) and all(
        [id(a) for a in mine] == [id(a) for a in theirs] for mine, theirs in zip(shape, front, strict=False)
    )
    return starts and len(used) == len(atoms)


def _add_lead(graph: Graph, axes: Axes, shapes: dict[str, list[Axis]]) -> Atom | None:
    """A new leading axis of 1 for what depends on activations, where every op allows it (layernorm of one row)."""
    activations = {t.name for t in graph.inputs if t.role == "input"} or {t.name for t in graph.inputs}
    carries = set(activations)
    for node in graph.nodes:
        with_it = [arg in carries for arg in node.args]
        if not any(with_it) or node.op == "causal_mask":
            continue
        ranks = {len(shapes[arg]) for arg, has in zip(node.args, with_it, strict=True) if has}
        others = [len(shapes[arg]) for arg, has in zip(node.args, with_it, strict=True) if not has]
        whole = OPS[node.op].kind in ("contraction", "row", "movement") and node.op != "concat"
        if node.op == "gather":
            if with_it[0]:
                return None
        elif (
            node.op == "matmul" or len(ranks) > 1 or (whole and any(with_it[1:])) or max(others, default=0) > min(ranks)
        ):
            return None
        if node.op == "concat" and not all(with_it):
            return None
        carries.add(node.name)
    if not set(graph.outputs) <= carries:
        return None
    added = Atom(1)
    for name, shape in shapes.items():
        axes.of[name] = [[added], *shape] if name in carries else shape
        axes.shift[name] = int(name in carries)
    return added
