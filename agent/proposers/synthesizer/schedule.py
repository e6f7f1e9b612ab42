"""Which kernels a task becomes, and which values each of them computes.

A kernel is built round an *anchor*: reductions over the last axis of one domain (``rows``), a matmul, an attention, or
nothing (``map``).  A value that needs no anchor is *free*: whoever reads it computes it again from the buffers.  A
value that depends on an anchor is *attached* to its group as long as its axes are those of the group; where that ends
(another anchor follows, axes get mixed) it is stored in a workspace and is a buffer from there on.  So everything is
covered, and what fuses is decided by the graph alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels_generated.runtime.expr import evaluate
from knowledge_base.snf import op_table
from knowledge_base.snf.graph import FLOATS, Graph

from .groups import Group, Schedule, Stored, Workspace, axes_of, below, fit, move_last, peel, roles, see_flat
from .index import ZERO, At, Axis, Index, along
from .patterns import attention_parts, between_matmul_and
from .primitives import ELEMENTWISE, SOURCES, VIEWS, Prim, accumulator_dtype, from_graph, operand_dtype

# A head wider than this (at the sample sizes) does not fit beside its accumulator: scores go through memory instead.
WIDEST_HEAD = 256
MOST_IN_A_ROW = 2**31  # elements (at the sample sizes): cuTile counts along an axis in 32 bits
MAX_SIDE_BY_SIDE = 4  # matmuls of one kernel, each with its own code


@dataclass(frozen=True)
class _Attached:
    group: Group
    at: At
    # for an axis of length 1 that a reduction left: the axis it was, along which the value may be broadcast again
    was: tuple[Axis | None, ...]


def schedule(
    graph: Graph,
    outputs: Sequence[tuple[str, str]],
    sizes: Mapping[str, int],
    exact: bool = False,
    paired: bool = True,
    sums: bool = False,
) -> Schedule:
    """The kernels for ``graph``.  ``outputs`` are (buffer, value) names.

    sizes: where fusing depends on them.  exact: tiles may be taken to divide the sizes.  paired: two products of one
    left operand may be one kernel.  sums: matrix products are sums along rows, without tensor cores.
    """
    return _Scheduler(graph, outputs, sizes, exact, paired, sums).run()


class _Scheduler:
    def __init__(
        self,
        graph: Graph,
        outputs: Sequence[tuple[str, str]],
        sizes: Mapping[str, int],
        exact: bool,
        paired: bool,
        sums: bool,
    ) -> None:
        self.made, self.values = from_graph(graph)
        self.sizes, self.exact, self.paired, self.sums = sizes, exact, paired, sums
        self.precision = graph.precision
        self.groups: list[Group] = []
        self.workspaces: list[Workspace] = []
        self.outputs = [(buffer, self.values[value]) for buffer, value in outputs]
        self.done: dict[Prim, Prim] = {}  # original -> rewritten over buffers
        self.attached: dict[Prim, _Attached] = {}  # by rewritten value
        self.stored: dict[Prim, Prim] = {}  # rewritten value -> the leaf it was stored to
        self.after: dict[str, int] = {}  # buffer -> order of the group that writes it
        self.filled: set[str] = set()  # outputs already written
        self.readers = self._count_readers()
        self.serves: dict[Prim, frozenset[Prim]] = {}  # rewritten matmul -> the outputs that depend on it

    def run(self) -> Schedule:
        for _, value in self.outputs:
            self.rewrite(value)
        for buffer, value in self.outputs:
            if buffer not in self.filled:
                self._store_output(self.rewrite(value), buffer)
        for group in self.groups:
            if group.kind == "map" and self._count(group.stores[0].value) < MOST_IN_A_ROW:
                see_flat(group, self.exact)
        return Schedule(self.groups, self.workspaces, self.made)

    def _count(self, value: Prim) -> int:
        return math.prod(evaluate(size, self.sizes) for size in value.shape)

    def _count_readers(self) -> dict[Prim, list[Prim]]:
        readers: dict[Prim, list[Prim]] = {}
        seen: set[Prim] = set()
        todo = [value for _, value in self.outputs]
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            for a in v.args:
                readers.setdefault(a, []).append(v)
                todo.append(a)
        return readers

    # ------------------------------------------------------------------------------------------ rewriting

    def rewrite(self, value: Prim) -> Prim:
        """``value`` over buffers and anchors; its groups exist afterwards."""
        stack = [value]
        while stack:  # a loop: a user's graph may be deeper than Python's stack
            v = stack[-1]
            waiting = [a for a in v.args if a not in self.done]
            if v in self.done or not waiting or self._attention_parts(v):
                stack.pop()
                if v not in self.done:
                    self.done[v] = self._rewrite_one(v)
            else:
                stack += waiting
        return self.done[value]

    def _rewrite_one(self, v: Prim) -> Prim:
        if v.op in SOURCES:
            return v
        if v.op == "matmul":
            parts = self._attention_parts(v)
            return self._attention(v, *parts) if parts else self._matmul(v)
        args = [self.done[a] for a in v.args]
        if v.op == "softmax":
            (x,) = args
            spelled = self.made.spell_out_softmax(self.made.make("softmax", [x], v.shape, v.dtype, v.name))
            self.done.setdefault(x, x)
            return self.rewrite(spelled)
        if v.op == "reduce":
            return self._reduce(v, args[0])
        if v.op in ELEMENTWISE:
            return self._elementwise(v, args)
        if v.op in VIEWS:
            return self._view(v, args[0])
        return self._again(v, [self.buffered(a) for a in args])  # gather, concat: free, over buffers

    def _again(self, v: Prim, args: Sequence[Prim]) -> Prim:
        """The same op on other arguments."""
        node = self._made_again(v, args)
        if v in self.made.inner and node.op == v.op:
            self.made.inner.add(node)
        return node

    def _made_again(self, v: Prim, args: Sequence[Prim]) -> Prim:
        if v.op == "reshape":
            return self.made.reshape(args[0], v.shape, v.name)
        if v.op == "permute":
            return self.made.permute(args[0], v.attr("perm"), v.name)
        return self.made.make(v.op, args, v.shape, v.dtype, v.name, **dict(v.attrs))

    def latest(self, v: Prim) -> int:
        """Order of the last group that writes a buffer a free value reads; -1 for inputs alone."""
        return max((self.after.get(leaf.attr("buffer"), -1) for leaf in below(v) if leaf.op == "leaf"), default=-1)

    def buffered(self, v: Prim) -> Prim:
        """``v``, stored first if it is attached (views of it: what they view)."""
        base = peel(v)
        if base not in self.attached:
            return v
        return self._review(v, base, self.store(base))

    def loadable(self, v: Prim) -> Prim:
        """``v`` as a view of a buffer: an operand that is streamed many times is computed once."""
        base = peel(v)
        while base.op == "cast" and base.args[0].dtype in FLOATS and base.dtype in FLOATS:
            base = peel(base.args[0])  # free on the way to the registers
        if base.op == "leaf":
            return v
        base = peel(v)
        return self._review(v, base, self._stored_leaf(base))

    def _review(self, v: Prim, base: Prim, leaf: Prim) -> Prim:
        if v is base:
            return leaf
        return self._again(v, [self._review(v.args[0], base, leaf)])

    def store(self, v: Prim) -> Prim:
        """``v`` over buffers: the leaf it is stored to; for an inner step, the step over stored values."""
        if v in self.made.inner and v.op in ELEMENTWISE:
            return self._again(v, [self.buffered(a) for a in v.args])
        return self._stored_leaf(v)

    def _stored_leaf(self, v: Prim) -> Prim:
        """The leaf that ``v`` is stored to: an output if it is one, otherwise a workspace."""
        if v in self.stored:
            return self.stored[v]
        names = [buffer for buffer, o in self.outputs if self.done.get(o) is v and buffer not in self.filled]
        if names:
            buffer = names[0]
        else:
            buffer = f"ws{len(self.workspaces)}"
            self.workspaces.append(Workspace(buffer, v))
        self._store_output(v, buffer)
        return self.stored[v]

    def _store_output(self, v: Prim, buffer: str) -> None:
        target = v
        same_elements = target.op == "reshape" or (
            target.op == "select" and target.args[0].shape[target.attr("axis")] == 1
        )
        if same_elements and (target.args[0] in self.attached or peel(target) not in self.attached):
            target = target.args[0] if target not in self.attached else target  # the buffer is seen in that shape
        place = self.attached.get(target)
        if place is None:
            target = self.buffered(target)
            group, at = self._map_group(target, buffer)
        else:
            group, at = place.group, place.at
        group.stores.append(Stored(target, at, buffer))
        self.filled.add(buffer)
        self.after[buffer] = group.order
        self.stored.setdefault(v, self.made.make("leaf", (), v.shape, v.dtype, v.name, buffer=buffer))

    # ------------------------------------------------------------------------------------------ groups

    def _new(self, kind: str) -> Group:
        group = Group(kind, len(self.groups))
        self.groups.append(group)
        return group

    def _attach(self, v: Prim, group: Group, at: At, was: tuple[Axis | None, ...] | None = None) -> Prim:
        self.attached[v] = _Attached(group, at, was or (None,) * len(at))
        return v

    def _map_group(self, v: Prim, buffer: str) -> tuple[Group, At]:
        latest = self.latest(v)
        for group in self.groups:
            if group.kind == "map" and group.stores[0].value.shape == v.shape and group.order > latest:
                return group, group.stores[0].at
        group = self._new("map")
        axes = axes_of(v.shape, ("ROWS", "CHUNK"), self.exact)
        group.grid, group.rows, group.columns = roles(axes)
        return group, tuple(along(a) if a else ZERO for a in axes)

    def _reduce(self, v: Prim, x: Prim) -> Prim:
        axis = v.attr("axis")
        place = self.attached.get(x)
        if place is not None:
            group = place.group
            columns = group.columns
            if group.kind == "rows" and columns is not None and place.at[axis] == along(columns):
                return self._add_reduction(v, x, group, place.at)
            x = self.store(x)
        x = self.buffered(x)
        latest = self.latest(x)
        shape = (*x.shape[:axis], *x.shape[axis + 1 :], x.shape[axis])
        for group in self.groups:
            at = fit(group, shape)
            if group.kind == "rows" and group.order > latest and at is not None:
                return self._add_reduction(v, x, group, move_last(at, axis))
        group = self._new("rows")
        axes = axes_of(shape, ("ROWS", "CHUNK"), self.exact, keep_last=True)
        group.grid, group.rows, group.columns = roles(axes)
        return self._add_reduction(v, x, group, move_last(tuple(along(a) if a else ZERO for a in axes), axis))

    def _add_reduction(self, v: Prim, x: Prim, group: Group, at: At) -> Prim:
        axis = v.attr("axis")
        node = self._again(v, [x])
        if node in self.attached:
            return node
        group.anchors.append(node)
        group.reads[node] = at
        was = tuple(group.columns if i == axis else None for i in range(len(at)))
        return self._attach(node, group, (*at[:axis], ZERO, *at[axis + 1 :]), was)

    def _elementwise(self, v: Prim, args: list[Prim]) -> Prim:
        homes = [self.attached[a].group for a in args if a in self.attached]
        if not homes:
            return self._again(v, [self.buffered(a) for a in args])
        group = max(homes, key=lambda g: g.order)
        # values of other groups come through memory
        args = [a if a in self.attached and self.attached[a].group is group else self.buffered(a) for a in args]
        place = self._unify(v, args)
        free = [a for a in args if a not in self.attached]
        if place is not None and all(self.latest(a) < group.order for a in free):
            return self._attach(self._again(v, args), group, *place)
        return self._again(v, [self.buffered(a) for a in args])

    def _unify(self, v: Prim, args: Sequence[Prim]) -> tuple[At, tuple[Axis | None, ...]] | None:
        """Where the axes of an elementwise result lie in the group; None if they do not fit."""
        rank = len(v.shape)
        at: list[Index] = [ZERO] * rank
        was: list[Axis | None] = [None] * rank
        for a in args:
            place = self.attached.get(a)
            if place is None:
                continue
            lead = rank - len(a.shape)
            for p, (index, old) in enumerate(zip(place.at, place.was, strict=True), lead):
                stretched = a.shape[p - lead] == 1 and v.shape[p] != 1
                if index != ZERO and (stretched or at[p] not in (ZERO, index)):
                    return None
                at[p] = index if index != ZERO else at[p]
                was[p] = old or was[p]
        for p, size in enumerate(v.shape):
            if at[p] == ZERO and size != 1:
                axis = was[p]
                if axis is None or not op_table.same(axis.extent, size):
                    return None
                at[p] = along(axis)
        used = [i for i in at if i != ZERO]
        if len(set(used)) != len(used):
            return None
        return tuple(at), tuple(w if i == ZERO else None for i, w in zip(at, was, strict=True))

    def _view(self, v: Prim, x: Prim) -> Prim:
        node = self._again(v, [x])
        place = self.attached.get(x)
        if place is None or node in self.attached:
            return node
        if v.op == "permute":
            perm = v.attr("perm")
            return self._attach(node, place.group, tuple(place.at[p] for p in perm), tuple(place.was[p] for p in perm))
        if v.op == "select" and x.shape[v.attr("axis")] == 1 and place.at[v.attr("axis")] == ZERO:
            axis = v.attr("axis")
            return self._attach(
                node, place.group, place.at[:axis] + place.at[axis + 1 :], place.was[:axis] + place.was[axis + 1 :]
            )
        return node  # whoever reads it has what it views stored

    # ------------------------------------------------------------------------------------------ contractions

    def _matmul(self, v: Prim) -> Prim:
        a, b = (self.loadable(self.done[x]) for x in v.args)
        if self.sums:
            return self.rewrite(self._as_sum(v, a, b))
        node = self._again(v, [a, b])
        if node in self.attached:
            return node
        self.serves[node] = self._outputs_of(v)
        beside = self._beside(node) if self.paired else None
        if beside is not None:
            beside.anchors.append(node)
            at = self.attached[beside.anchors[0]].at
            if not self.serves[node] & self.serves[beside.anchors[0]]:
                axis = Axis(f"j{len(beside.anchors)}", v.shape[-1], "TN", self.exact and v.shape[-1] != 1, "cols")
                beside.beside.append(axis)
                at = (*at[:-1], along(axis))
            return self._attach(node, beside, at)
        group = self._new("matmul")
        axes = axes_of(v.shape, ("TM", "TN"), self.exact, keep_last=True, keep_rows=True)
        group.grid, group.rows, group.columns = roles(axes)
        group.inner = Axis("step", a.shape[-1], "TK", self.exact, "inner")
        group.anchors.append(node)
        return self._attach(node, group, tuple(along(x) if x else ZERO for x in axes))

    def _as_sum(self, v: Prim, a: Prim, b: Prim) -> Prim:
        """a[…, M, K] b[…, K, N] as the sum over K of a[…, M, 1, K] · bᵀ[…, 1, N, K], in float32 as on tensor cores."""
        made, rank = self.made, len(b.shape)
        left = made.make("reshape", [a], (*a.shape[:-1], 1, a.shape[-1]), a.dtype, a.name)
        right = made.permute(b, (*range(rank - 2), rank - 1, rank - 2))
        if rank > 2:
            right = made.make("reshape", [right], (*right.shape[:-2], 1, *right.shape[-2:]), b.dtype, b.name)
        work = accumulator_dtype(operand_dtype((a, b)))
        products = made.elementwise("mul", [left, right], work, "products")
        made.inner.add(products)
        kept = made.reduce("sum", products, len(products.shape) - 1, work, v.name)
        return made.elementwise("cast", [made.select(kept, len(kept.shape) - 1, 0, v.name)], v.dtype, v.name)

    def _beside(self, v: Prim) -> Group | None:
        """The matmul's group that ``v`` may be made in: of the same left operand.

        As a second accumulator where some output needs both; side by side where each output needs one of them.
        """
        for group in self.groups:
            if group.kind != "matmul" or self.latest(v) >= group.order:
                continue
            first = group.anchors[0]
            if first.args[0] is not v.args[0] or first.args[1].dtype != v.args[1].dtype:
                continue
            if not any(self.serves[v] & self.serves[a] for a in group.anchors):
                single = len(group.anchors) == 1 + len(group.beside)
                if (
                    single
                    and len(group.anchors) < MAX_SIDE_BY_SIDE
                    and op_table.same_shape(first.shape[:-1], v.shape[:-1])
                ):
                    return group
            elif len(group.anchors) == 1 and op_table.same_shape(first.shape, v.shape):
                return group
        return None

    def _outputs_of(self, v: Prim) -> frozenset[Prim]:
        """The task's outputs that depend on ``v``."""
        wanted = {value for _, value in self.outputs}
        found, todo, seen = set(), [v], {v}
        while todo:
            x = todo.pop()
            if x in wanted:
                found.add(x)
            fresh = [r for r in self.readers.get(x, ()) if r not in seen]
            seen.update(fresh)
            todo += fresh
        return frozenset(found)

    def _attention_parts(self, v: Prim) -> tuple[Prim, Prim] | None:
        """(scores, q kᵀ) if ``v`` is an attention whose heads fit beside their accumulator."""
        found = attention_parts(v, self.readers, [o for _, o in self.outputs])
        if found is None:
            return None
        widths = (found[1].args[0].shape[-1], v.args[1].shape[-1])
        return found if all(evaluate(w, self.sizes) <= WIDEST_HEAD for w in widths) else None

    def _attention(self, v: Prim, scores: Prim, product: Prim) -> Prim:
        q, k = (self.loadable(self.rewrite(x)) for x in product.args)
        values = self.loadable(self.rewrite(v.args[1]))
        node_product = self.made.make("matmul", [q, k], product.shape, product.dtype, "qk")
        new = {product: node_product}

        def redo(x: Prim) -> Prim:
            if x not in new:
                inner = [redo(a) if a in between else self.buffered(self.rewrite(a)) for a in x.args]
                new[x] = self._again(x, inner)
            return new[x]

        between = between_matmul_and(scores)
        new_scores = redo(scores)
        group = self._new("attention")
        axes = axes_of(v.shape, ("TM", "TE"), self.exact, keep_last=True, keep_rows=True)
        group.grid, group.rows, group.columns = roles(axes)
        if {q.dtype, k.dtype} == {"f32"} and self.precision != "tf32":
            group.inner = Axis("step", q.shape[-1], "TK", self.exact, "depth")
        else:
            group.inner = Axis("0", q.shape[-1], "TD", self.exact, "depth")
        group.keys = Axis("j", k.shape[-1], "TN", self.exact, "keys")
        assert group.columns is not None
        wide = "TD" if op_table.same(group.columns.extent, q.shape[-1]) else "TE"
        columns = Axis("0", group.columns.extent, wide, self.exact, "cols")
        axes[-1] = group.columns = columns
        node = self.made.make("attention", [new_scores, values], v.shape, v.dtype, v.name)
        group.scores, group.product = new_scores, node_product
        group.anchors.append(node)
        return self._attach(node, group, tuple(along(x) if x else ZERO for x in axes))
