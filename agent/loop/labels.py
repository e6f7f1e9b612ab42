"""What a target's tasks are called where people are to tell them apart."""

from __future__ import annotations

from collections.abc import Sequence

from knowledge_base.snf.task import Task


def label_tasks(tasks: Sequence[Task]) -> list[str]:
    """A name for each task that people can tell apart: sizes are added where a name occurs twice."""
    labels = []
    for task in tasks:
        same = [t for t in tasks if t.name == task.name]
        differ = [d for d in task.sizes if len({t.sizes.get(d) for t in same}) > 1]
        labels.append(" ".join([task.name, *(f"{d}={task.sizes[d]}" for d in differ)]))
    return labels
