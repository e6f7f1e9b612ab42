"""Which task ``--target`` and ``--task`` mean."""

from __future__ import annotations

from collections.abc import Mapping

from agent.loop import label_tasks
from knowledge_base.errors import UserError, nearest
from knowledge_base.snf import decompose, load_target, task_named
from knowledge_base.snf.task import Task


def task_of(target: str, name: str, shape: Mapping[str, int]) -> Task:
    """The task that is meant: of a target's by its name, or one that has a name of its own."""
    if not target:
        if not name:
            raise UserError(
                "--target or --task is missing", "For example: agent prompt --target gpt2-block --task linear"
            )
        return task_named(name, dict(shape))
    tasks = decompose(load_target(target, dict(shape)).graph).tasks
    labels = label_tasks(tasks)
    if not name and len(tasks) == 1:
        return tasks[0]
    plain = name.replace("-", "_")
    found = [t for t, label in zip(tasks, labels, strict=True) if plain in (label, t.name, label.replace(" ", "_"))]
    if len(found) == 1:
        return found[0]
    said = f"--task {name}" if name else "--task is missing"
    what = (
        f"{said}: {target} has several of that name" if found else f"{said}: no such task of {target}" if name else said
    )
    near = [label for t, label in zip(tasks, labels, strict=True) if t in found] or nearest(plain, labels) or labels
    raise UserError(what, f"Name one: {', '.join(repr(label) if ' ' in label else label for label in near)}.")
