"""Chains of views as one strided read: which elements of a stored value, in which order, grouped how.

A ``Read`` names its root (an input or a computed value) and gives the root's atoms by position: those picked by an
index, and the others in reading order, grouped into axes.  Reads compose, so ``Heads(split(3))`` of a QKV buffer is one
select and one permutation of the buffer's own axes.  Pure bookkeeping: no sizes are compared here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .graph import Graph, Node
from .op_table import OPS

Units = list[list[int]]


@dataclass(frozen=True)
class Read:
    """``axes``: positions of the root's atoms, grouped; ``picked``: (position, index) of those that an index fixes."""

    root: str
    axes: tuple[tuple[int, ...], ...]
    picked: tuple[tuple[int, int], ...] = ()

    @property
    def flat(self) -> list[int]:
        return [p for axis in self.axes for p in axis]

    @property
    def in_order(self) -> bool:
        """Whether it reads every element once, in the root's order."""
        return not self.picked and self.flat == sorted(self.flat)


def reads(
    graph: Graph, counts: Mapping[str, list[int]], cuts: Mapping[str, int], shift: Mapping[str, int]
) -> dict[str, Read]:
    """How each value is read, by name.

    counts: atoms per axis of each value.  cuts: how many atoms heads and split nodes cut off.  shift: axes that a value
    has gained in front since its node was written (negative: lost).
    """
    out: dict[str, Read] = {}
    for value in graph.values:
        if isinstance(value, Node) and OPS[value.op].kind == "view":
            out[value.name] = _through(
                value, out[value.args[0]], counts[value.name], cuts.get(value.name, 0), shift.get(value.name, 0)
            )
        else:
            places = iter(range(sum(counts[value.name])))
            axes = tuple(tuple(next(places) for _ in range(n)) for n in counts[value.name])
            out[value.name] = Read(value.name, axes)
    return out


def _through(node: Node, x: Read, counts: Sequence[int], cut: int, shift: int) -> Read:
    axes = list(x.axes)
    picked = list(x.picked)
    if node.op == "reshape":
        places = iter(x.flat)
        axes = [tuple(next(places) for _ in range(n)) for n in counts]
    elif node.op == "permute":
        perm = node.attr("perm")
        if shift:  # the front was untouched: one axis now, where 1 - shift were
            perm = (0, *(p + shift for p in perm[1 - shift :]))
        axes = [x.axes[p] for p in perm]
    elif node.op == "heads":
        axes = [*x.axes[:-2], x.axes[-1][:cut], x.axes[-2], x.axes[-1][cut:]]
    elif node.op == "merge":
        axes = [*x.axes[:-3], x.axes[-2], x.axes[-3] + x.axes[-1]]
    elif node.op == "split":
        picked += _pick(x.axes[-1][:cut], node.attr("index"), node)
        axes[-1] = x.axes[-1][cut:]
    elif node.op == "select":
        place = node.attr("axis") % (len(axes) - shift) + shift
        picked += _pick(axes.pop(place), node.attr("index"), node)
    return Read(x.root, tuple(axes), tuple(sorted(picked)))


class NotOneAtom(Exception):
    """An index into an axis that another read takes apart."""


def _pick(positions: tuple[int, ...], index: int, node: Node) -> list[tuple[int, int]]:
    if len(positions) > 1:
        raise NotOneAtom(node.name)
    return [(positions[0], index)] if positions else []  # an axis of 1 has nothing to choose


def units(read: Read, root_axes: Sequence[Sequence[int]] | None) -> Units:
    """The coarsest pieces of the root that this read moves as a whole, in the root's order.

    root_axes: axes that pieces must not cross (a computed root's); None for an input, whose axes are ours to choose.
    """
    group = {p: i for i, axis in enumerate(read.axes) for p in axis}
    place = {p: i for i, p in enumerate(read.flat)}
    fence = {p: i for i, axis in enumerate(root_axes or ()) for p in axis}
    everything = sorted([*read.flat, *(p for p, _ in read.picked)])
    out: Units = []
    for p in everything:
        before = p - 1
        joined = (
            bool(out) and p in group and before in group and group[p] == group[before]
            and place[p] == place[before] + 1 and (root_axes is None or fence[p] == fence[before])
        )  # fmt: skip
        if joined:
            out[-1].append(p)
        else:
            out.append([p])
    return out


def common(all_units: Sequence[Units]) -> Units:
    """The coarsest pieces that refine all of these."""
    starts = {piece[0] for pieces in all_units for piece in pieces}
    out: Units = []
    for p in sorted(p for piece in all_units[0] for p in piece):
        if p in starts:
            out.append([p])
        else:
            out[-1].append(p)
    return out
