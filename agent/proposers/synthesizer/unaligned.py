"""Products whose rows begin unaligned, most of which TMA can still store.

TMA writes to multiples of 16 bytes, which rows of, say, 50,257 elements of bf16 do not begin at; but every 8th row
begins alike.  So each class of rows is a launch of its own, over the columns from its first multiple of 16 bytes to its
last whole unit, and two launches before them write the few columns at both ends of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels_generated.runtime.expr import Expr, evaluate
from knowledge_base.chips import TMA_UNIT
from knowledge_base.element_types import BYTES
from knowledge_base.snf.task import Task

from .body import INDENT, Names, Parameter
from .groups import Group, Schedule, below
from .primitives import ELEMENTWISE

# Rows that a class needs: each launch reads the right operand again, and ends with a wave of blocks of its own.  With
# N = 50,257 and K = 768 in bf16, on an H200 under its power limit, classes of 512 rows took 569 us, one launch 613; of
# 1,024 rows 1,068 and 1,250; but of 128 rows 245 and 156.
ROWS_OF_A_CLASS = 512
# What may be computed around the product: the column that a value lies in must not be among it.
_ALLOWED = ELEMENTWISE | {"matmul", "leaf", "const", "permute"}


@dataclass(frozen=True)
class RowClasses:
    """rows, columns: the result's dimensions.  unit: its elements in 16 bytes, and so the number of classes.

    odd: ``columns`` modulo ``unit``, by which each row begins further from a multiple of 16 bytes than the one before.
    """

    rows: str
    columns: str
    unit: int
    odd: int

    def lines(self, parameters: Sequence[Parameter], names: Names) -> list[str]:
        """The lines of ``launch`` that call ``product`` for the edges and for each class."""
        M, N, unit = names.dims[self.rows], names.dims[self.columns], self.unit

        def call(parts: Sequence[str]) -> list[str]:
            line = f"product(stream, {', '.join(parts)}, *how)"
            return [line] if len(line) < 110 else ["product(", f"{INDENT}stream, {', '.join(parts)}, *how,", ")"]

        return [
            f"if {M} % {unit} or {N} % {unit} != {self.odd} or {N} < {2 * unit}:",
            f'{INDENT}raise ValueError("only for {M} % {unit} == 0, {N} % {unit} == {self.odd} and {N} > {2 * unit}")',
            "# TMA stores to multiples of 16 bytes. The first and last columns of all rows, without it:",
            *call([self._edge(p, f":{unit}") for p in parameters]),
            *call([self._edge(p, f"{N} - {unit}:") for p in parameters]),
            f"# The others of every {unit}th row, which begin alike, from one multiple to another:",
            f"for row in range({unit}):",
            f"{INDENT}skip = -row * {self.odd} % {unit}",
            f"{INDENT}stop = {N} - ({self.odd} - skip) % {unit}",
            *(INDENT + line for line in call([self._class(p) for p in parameters])),
        ]

    def _edge(self, p: Parameter, columns: str) -> str:
        """A kernel's argument of all rows, of which ``columns`` are a slice."""
        cuts = [columns if size == self.columns else ":" for size in p.shape]
        while cuts and cuts[-1] == ":":
            cuts.pop()
        return f"{p.name}[{', '.join(cuts)}]" if cuts else p.name

    def _class(self, p: Parameter) -> str:
        """A kernel's argument for the class of ``row``."""
        if p.shape[:1] != (self.rows,):
            return self._edge(p, "skip:stop")
        return f"alike({p.name}, row, {'skip, stop' if p.shape[1] == self.columns else f'0, {p.name}.shape[1]'})"

    def helper(self) -> list[str]:
        """The lines of the function ``alike``, which takes a class of rows."""
        return [
            "def alike(a, row, begin, end):",
            f'{INDENT}"""Every {self.unit}th row from ``row`` on, of each the columns from begin to end."""',
            f"{INDENT}rows, columns = a.shape",
            f"{INDENT}first = row * columns",
            f"{INDENT}return a.view(rows // {self.unit}, {self.unit} * columns)[:, first + begin:first + end]",
        ]


def row_classes(task: Task, plan: Schedule) -> RowClasses | None:
    """How the rows of a task's result fall into classes; None where they begin aligned, or it is no plain product."""
    group = plan.groups[0]
    if len(plan.groups) > 1 or plan.workspaces or group.kind != "matmul" or group.grid or group.beside:
        return None
    extents = [axis.extent for axis in (group.rows, group.columns, group.inner) if axis is not None]
    dims = [e for e in extents if isinstance(e, str)]
    if len(set(dims)) < 3 or not _plain(group, dims):
        return None
    unit = TMA_UNIT // min(BYTES[t.dtype] for t in task.outputs)
    rows, columns = (evaluate(d, task.sizes) for d in dims[:2])
    if columns % unit == 0 or columns < 2 * unit or rows % unit or rows < unit * ROWS_OF_A_CLASS:
        return None
    return RowClasses(dims[0], dims[1], unit, columns % unit)


def _plain(group: Group, dims: Sequence[Expr]) -> bool:
    """Whether each buffer is a matrix of these dimensions, or a vector along the result's columns."""
    rows, columns, inner = dims
    values = set().union(*(below(s.value) for s in group.stores))
    matrices = [(rows, columns), (rows, inner), (columns, inner), (inner, columns), (columns,), ()]
    leaves = [v.shape for v in values if v.op == "leaf"]
    return all(v.op in _ALLOWED for v in values) and all(
        shape in matrices for shape in (*leaves, *(s.value.shape for s in group.stores))
    )
