"""Which files the synthesizer offers for a task: the general one, and specialised ones where they pay."""

from __future__ import annotations

from collections.abc import Iterator

from knowledge_base.chips import Chip
from knowledge_base.snf.task import Task

from .contractions import write_attention, write_matmul
from .kernels import Kernel, write_map, write_rows
from .schedule import Group, schedule
from .source import File, make_names, print_file
from .writer import KernelWriter, Names


def variants(task: Task, chip: Chip | None) -> Iterator[tuple[str, str]]:
    """(source, note) of each candidate, the general one first."""
    yield print_file(_general(task, chip)), "general: every size"


def _general(task: Task, chip: Chip | None) -> File:
    names = make_names(task)
    outputs = [(o.name, v) for o, v in zip(task.outputs, task.graph.outputs, strict=True)]
    plan = schedule(task.graph, outputs, task.sizes)
    dtypes = {t.dtype for t in (*task.inputs, *task.outputs)}
    float_dtype = "f64" if "f64" in dtypes else "f32"
    kernels = [_write(g, _kernel_name(g, plan.groups), float_dtype, names, task.precision == "tf32") for g in plan.groups]
    axes = {"TM": [64], "TN": [64], "TK": [32], "GROUP": [8], "ROWS": [4], "CHUNK": [1024], "PERSISTENT": [1, 0], "occupancy": [1]}
    used = {c for k in kernels for c in k.writer.constants} | {"occupancy"}
    used |= {"PERSISTENT"} if any(g.kind == "matmul" for g in plan.groups) else set()
    axes = {a: v for a, v in axes.items() if a in used}
    return File(task, f"{task.name}", axes, kernels, plan.workspaces, names)


def _kernel_name(group: Group, groups: list[Group]) -> str:
    same = [g for g in groups if g.kind == group.kind]
    return f"{group.kind}_kernel" if len(same) == 1 else f"{group.kind}_kernel_{same.index(group) + 1}"


def _write(group: Group, name: str, float_dtype: str, names: Names, tf32: bool) -> Kernel:
    writer = KernelWriter(name, float_dtype, names)
    if group.kind == "map":
        return write_map(writer, group)
    if group.kind == "rows":
        return write_rows(writer, group)
    return (write_matmul if group.kind == "matmul" else write_attention)(writer, group, tf32)
