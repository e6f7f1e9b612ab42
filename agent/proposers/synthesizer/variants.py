"""Which files the synthesizer offers for a task: the general one, and specialised ones where they pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kernels_generated.runtime.expr import Expr, evaluate
from knowledge_base.chips import Chip
from knowledge_base.snf import op_table
from knowledge_base.snf.task import Task

from .attention import write_attention
from .body import Names
from .configurations import configurations, power_of_two
from .groups import Group, Schedule, below
from .kernels import Chunk, KernelText, write_map, write_rows
from .matmul import write_matmul
from .primitives import Prim
from .schedule import schedule
from .source import File, Unfit, make_names, print_file
from .unaligned import row_classes
from .writer import KernelWriter

# A row in registers: up to so many elements, in at most so many pieces (each piece repeats the code).
LONGEST_ROW = 8192
MOST_PIECES = 8
SHORTEST_PIECE = 16
# A product of so few rows takes as long as its right operand is read, and tensor cores want tiles of 64 rows, of which
# there are too few to ask for all that the memory gives (on an H200 1 by 3072 times 3072 by 768: 6.8 us, on tensor
# cores 11.6; 1 by 768 times 768 by 2304: 6.1, 7.5).  With 8 rows tensor cores were faster.
FEW_ROWS = 1


def variants(task: Task, chip: Chip | None, approximate: bool = True) -> Iterator[tuple[str, str]]:
    """(source, note) of each candidate, the general one first.

    approximate: whether the hardware's approximations may be used where 16 bits of a result are kept.
    """
    approximate = approximate and all(t.dtype in ("bf16", "f16") for t in task.outputs)
    plan, names = _schedule(task, exact=False), make_names(task)
    yield print_file(_file(task, chip, plan, names, approximate)), "general: holds at every size"
    if any(g.kind == "matmul" and len(g.anchors) > 1 for g in plan.groups):
        apart = _schedule(task, exact=False, paired=False)
        yield print_file(_file(task, chip, apart, names, approximate)), "general: each product a kernel of its own"
    if any(g.kind == "matmul" and _rows_of(g, task) <= FEW_ROWS for g in plan.groups):
        sums = _schedule(task, exact=False, sums=True)
        yield print_file(_file(task, chip, sums, names, approximate)), "general: products as sums along rows"
        short = _rows_read_once(task, chip, names, approximate, sums=True)
        if short is not None:
            yield print_file(short), "products as sums along rows of the sample's length, read once"
    classes = row_classes(task, plan)
    if classes is not None:
        by_class = replace(_file(task, chip, plan, names, approximate), classes=classes)
        yield print_file(by_class), "rows that begin unaligned, a launch for those that begin alike"
    once = _rows_read_once(task, chip, names, approximate)
    if once is not None:
        yield print_file(once), "rows of the sample's length, read once"
    elif not any(g.kind == "matmul" for g in plan.groups):  # which gain nothing by it: 0.5% at most on an H200
        exact = _file(task, chip, _schedule(task, exact=True), names, approximate)
        if exact.refusals and all(_divides(r, exact, task) for r in exact.refusals):
            yield print_file(exact), "sizes that the tiles divide: no bounds are checked"


def _rows_of(group: Group, task: Task) -> int:
    return math.prod(evaluate(a.extent, task.sizes) for a in (*group.grid, group.rows) if a is not None)


def _rows_read_once(task: Task, chip: Chip | None, names: Names, approximate: bool, sums: bool = False) -> File | None:
    """The file for rows of the sample's length, where there are rows and they are short enough.

    An elementwise kernel's loads are cheaper without bounds (RoPE on an H200: 22.9 us, with them 34.0); where rows are
    reduced it is the same.
    """
    for exact in (True, False):
        plan = _schedule(task, exact, sums=sums)
        rows = [g for g in plan.groups if g.kind == "rows" or (g.kind == "map" and concatenations(g))]
        chunks = {g: c for g in rows if (c := _chunks(g, task)) is not None}
        if not chunks or len(chunks) < len(rows):
            return None
        if exact and any(g.kind != "map" for g in plan.groups):
            continue
        file = _file(task, chip, plan, names, approximate, chunks)
        if all(_divides(r, file, task) for r in file.refusals if r.tile):
            return file
    return None


def _schedule(task: Task, exact: bool, paired: bool = True, sums: bool = False) -> Schedule:
    outputs = [(o.name, v) for o, v in zip(task.outputs, task.graph.outputs, strict=True)]
    return schedule(task.graph, outputs, task.sizes, exact, paired, sums)


def _file(
    task: Task,
    chip: Chip | None,
    plan: Schedule,
    names: Names,
    approximate: bool,
    chunks: dict[Group, list[Chunk]] | None = None,
) -> File:
    dtypes = {t.dtype for t in (*task.inputs, *task.outputs)}
    float_dtype = "f64" if "f64" in dtypes else "f32"
    tf32 = task.precision == "tf32"
    kernels = [
        _write(g, KernelWriter(_kernel_name(g, plan.groups), float_dtype, names, approximate), tf32, chunks or {})
        for g in plan.groups
    ]
    constants = [c for k in kernels for c in k.writer.constants]
    constants += ["PERSISTENT"] * any(k.persistent or k.striding for k in kernels)
    axes = configurations(plan.groups, constants, task.sizes, chip, tf32)
    refusals = [r for g in plan.groups for r in _refusals(g, names, (chunks or {}).get(g))]
    title = f"{task.name}, by the synthesizer."
    return File(task, title, axes, kernels, plan.workspaces, names, list(dict.fromkeys(refusals)))


def _kernel_name(group: Group, groups: Sequence[Group]) -> str:
    same = [g for g in groups if g.kind == group.kind]
    return f"{group.kind}_kernel" if len(same) == 1 else f"{group.kind}_kernel_{same.index(group) + 1}"


def _write(group: Group, writer: KernelWriter, tf32: bool, chunks: dict[Group, list[Chunk]]) -> KernelText:
    parts = chunks.get(group)
    if parts is not None and parts[0].exact and group.columns is not None and isinstance(group.columns.extent, str):
        writer.fixed[group.columns.extent] = sum(c.width for c in parts)
    if group.kind == "map":
        return write_map(writer, group, parts)
    if group.kind == "rows":
        return write_rows(writer, group, parts)
    return (write_matmul if group.kind == "matmul" else write_attention)(writer, group, tf32)


# ---------------------------------------------------------------------------------------------------- specialised


def _chunks(group: Group, task: Task) -> list[Chunk] | None:
    """How a row of the sample's length is cut into tiles without loops; None if it would take too many registers."""
    assert group.columns is not None
    n = evaluate(group.columns.extent, task.sizes)
    if not 2 <= n <= LONGEST_ROW:
        return None
    return pieces(n) if group.kind == "rows" else _halves(group, n, task.sizes)


def concatenations(group: Group) -> list[Prim]:
    """What a kernel puts together along its columns."""
    values = set().union(*(below(s.value) for s in group.stores))
    columns = group.columns
    return [
        v
        for v in values
        if v.op == "concat"
        and columns is not None
        and v.attr("axis") == len(v.shape) - 1
        and op_table.same(v.shape[-1], columns.extent)
    ]


def _halves(group: Group, n: int, sizes: Mapping[str, int]) -> list[Chunk] | None:
    """Equal tiles of a row of ``n``, none of them in two parts of a concatenation; None if there is no such cut."""
    if group.rows is None or not isinstance(group.columns and group.columns.extent, int | str):
        return None
    width = math.gcd(n, *(evaluate(part.shape[-1], sizes) for v in concatenations(group) for part in v.args))
    width &= -width
    if width < SHORTEST_PIECE or n // width > MOST_PIECES:
        return None
    return [Chunk(i * width, width, True) for i in range(n // width)]


def pieces(n: int) -> list[Chunk]:
    """Powers of two that cover a row of ``n``, each at a multiple of its width.

    Equal ones where they are few (768 = 3 * 256 beat one padded 1024 by a quarter on an H200), else the binary digits
    (80 = 64 + 16), else one padded tile.
    """
    even = n & -n
    if n // even <= MOST_PIECES and even >= 64:
        return [Chunk(i * even, even, True) for i in range(n // even)]
    digits = [1 << b for b in reversed(range(n.bit_length())) if n >> b & 1]
    if len(digits) <= 3 and digits[-1] >= 8:
        return [Chunk(sum(digits[:i]), d, True) for i, d in enumerate(digits)]
    return [Chunk(0, power_of_two(n), False)]


def _refusals(group: Group, names: Names, chunks: list[Chunk] | None) -> list[Unfit]:
    """What launch refuses for a specialised kernel."""
    refusals = []
    if chunks is not None and group.columns is not None:
        size: Expr = group.columns.extent
        width = sum(c.width for c in chunks)
        text = names.size(size)
        if not isinstance(size, int) and chunks[0].exact:
            refusals.append(Unfit(f"{text} != {width}", f"only for {text} == {width}", (size,)))
        elif not isinstance(size, int):
            refusals.append(Unfit(f"{text} > {width}", f"only for {text} <= {width}", (size,)))
    axes = [a for a in (group.rows, group.columns, group.inner, group.keys) if a is not None and a.exact]
    axes = [a for a in axes if chunks is None or a is not group.columns]
    for axis in dict.fromkeys(axes):
        if isinstance(axis.extent, int) and axis.extent == 1:
            continue
        text, tile = names.factor(axis.extent), str(axis.tile)
        refusals.append(Unfit(f"{text} % {tile}", f"only where {tile} divides {text}", (axis.extent,), tile))
    return refusals


def _divides(refusal: Unfit, file: File, task: Task) -> bool:
    """Whether the default tile divides the sample's size."""
    size = evaluate(refusal.sizes[0], task.sizes)
    tile = file.axes[refusal.tile][0] if refusal.tile in file.axes else power_of_two(size)
    return size % tile == 0
