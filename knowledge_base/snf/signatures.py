"""A task's arrays and sizes as ``launch`` is given them, for people to read."""

from __future__ import annotations

from kernels_generated.runtime.expr import show as show_size

from .graph import Tensor
from .task import Task


def signature(task: Task) -> str:
    """The task's arrays in the order of ``launch``: ``linear(x[M,K], w[N,K], b[N]) -> y[M,N]``.

    Sizes that launch is given because no array tells them come last: ``-> y[M,N], given N2``.
    """
    inputs = ", ".join(map(_array, task.inputs))
    given = f", given {', '.join(task.size_arguments)}" if task.size_arguments else ""
    return f"{task.name}({inputs}) -> {', '.join(map(_array, task.outputs))}{given}"


def arguments(task: Task) -> tuple[str, ...]:
    """What ``launch`` takes after its stream, in order: inputs, outputs, sizes that none of these tells."""
    return (*map(_array, task.inputs), *map(_array, task.outputs), *task.size_arguments)


def _array(tensor: Tensor) -> str:
    return f"{tensor.name}[{','.join(map(show_size, tensor.shape))}]"
