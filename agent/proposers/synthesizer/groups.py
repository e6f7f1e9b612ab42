"""What a schedule is made of: groups (one kernel each), what they store, and the axes they run over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernels_generated.runtime.expr import Expr, product
from knowledge_base.snf import op_table

from .index import ZERO, At, Axis, along
from .primitives import ELEMENTWISE, VIEWS, Prim, Primitives


@dataclass(frozen=True)
class Stored:
    """``value``, whose axes lie at ``at``, goes into ``buffer`` seen in ``value``'s shape."""

    value: Prim
    at: At
    buffer: str


@dataclass(eq=False)
class Group:
    """One kernel.  ``grid`` are the axes of which a block has one element; rows and columns are the tiled ones.

    anchors: the reductions in order of evaluation, or the matmuls, which share their left operand (attention: the
    product with v).
    beside: the columns of matmuls that lie side by side with the first, one for each further anchor.
    inner: matmul's contracted axis; attention's are head (of q and k) and keys.
    """

    kind: str  # rows | matmul | attention | map
    order: int
    grid: tuple[Axis, ...] = ()
    rows: Axis | None = None
    columns: Axis | None = None
    beside: list[Axis] = field(default_factory=list)
    inner: Axis | None = None
    keys: Axis | None = None
    anchors: list[Prim] = field(default_factory=list)
    reads: dict[Prim, At] = field(default_factory=dict)  # where a reduction's argument lies
    scores: Prim | None = None  # attention: what softmax is taken of
    product: Prim | None = None  # attention: q kᵀ
    stores: list[Stored] = field(default_factory=list)
    flat: bool = False  # map: all buffers are seen as one long row
    transposes: bool = False  # map: some buffer is read across its rows


@dataclass(frozen=True)
class Workspace:
    name: str
    value: Prim


@dataclass
class Schedule:
    groups: list[Group]
    workspaces: list[Workspace]
    made: Primitives


def peel(x: Prim) -> Prim:
    """The value under a chain of views."""
    while x.op in VIEWS:
        x = x.args[0]
    return x


def below(v: Prim) -> set[Prim]:
    seen: set[Prim] = set()
    todo = [v]
    while todo:
        x = todo.pop()
        if x not in seen:
            seen.add(x)
            todo += x.args
    return seen


# ---------------------------------------------------------------------------------------------------- axes


def axes_of(
    shape: Iterable[Expr], tiles: tuple[str, str], exact: bool, keep_last: bool = False, keep_rows: bool = False
) -> list[Axis | None]:
    """An axis for each size that is not 1; the last two of them are tiled, the others counted by the grid."""
    sizes = list(shape)
    kept = [
        p
        for p, s in enumerate(sizes)
        if s != 1 or (keep_last and p == len(sizes) - 1) or (keep_rows and p == len(sizes) - 2)
    ]
    axes: list[Axis | None] = [None] * len(sizes)
    for order, p in enumerate(reversed(kept)):
        if order == 0:
            axes[p] = Axis("j", sizes[p], tiles[1], exact and sizes[p] != 1, "cols")
        elif order == 1:
            axes[p] = Axis("i", sizes[p], tiles[0], exact and sizes[p] != 1, "rows")
        else:
            axes[p] = Axis(f"batch{order - 2}" if len(kept) > 3 else "batch", sizes[p], None)
    return axes


def roles(axes: Sequence[Axis | None]) -> tuple[tuple[Axis, ...], Axis | None, Axis | None]:
    """(grid axes, rows, columns) of what :func:`axes_of` made."""
    present = [a for a in axes if a is not None]
    grid = tuple(a for a in present if a.tile is None)
    tiled = [a for a in present if a.tile is not None]
    return grid, (tiled[0] if len(tiled) == 2 else None), (tiled[-1] if tiled else None)


def move_last(at: At, axis: int) -> At:
    """The last axis put back to where it was."""
    return (*at[:axis], at[-1], *at[axis:-1])


def fit(group: Group, shape: Sequence[Expr]) -> At | None:
    """Where axes of these sizes lie in a rows group's domain; None if they are not its own."""
    domain = [a for a in (*group.grid, group.rows, group.columns) if a is not None]
    present = [s for s in shape[:-1] if s != 1] + [shape[-1]]
    if len(domain) != len(present) or not all(op_table.same(a.extent, s) for a, s in zip(domain, present, strict=True)):
        return None
    axes = iter(domain)
    at = [ZERO if s == 1 else along(next(axes)) for s in shape[:-1]]
    return (*at, along(next(axes)))


# ---------------------------------------------------------------------------------------------------- maps


def see_flat(group: Group, exact: bool) -> None:
    """Marks a map whose buffers all have the result's whole shape (or are a number): it runs over one long row.

    Otherwise notes whether a buffer is read with another axis innermost.
    """
    shape = group.stores[0].value.shape
    values = set().union(*(below(s.value) for s in group.stores))
    plain = all(
        v.shape in (shape, ())
        and (v.op in ELEMENTWISE or v.op in ("const", "dim") or (v.op == "leaf" and v.shape == shape))
        for v in values
    )
    if plain and shape:
        axis = Axis("j", product(list(shape)), "CHUNK", exact, "cols")
        group.flat, group.grid, group.rows, group.columns = True, (), None, axis
        group.stores = [Stored(s.value, (along(axis),), s.buffer) for s in group.stores]
    group.transposes = any(v.op == "permute" and v.attr("perm")[-1] != len(v.shape) - 1 for v in values)
