"""SNF, the language that says what a piece of a network computes: texts, graphs, tasks, what they mean and cost.

``parse`` and ``show`` (text and graph), ``load_target`` and ``targets`` (shipped specs), ``decompose`` (graph to
tasks), ``everyday``, ``task_named`` and ``canonical`` (tasks), ``cost``; what a graph means is in
:mod:`knowledge_base.snf.reference`.  Importing this does not import torch.
"""

from .canonical import canonical
from .cost import Cost, cost
from .decompose import decompose
from .errors import SnfError
from .everyday import everyday
from .graph import Graph, Node, Tensor
from .parser import parse
from .printer import show
from .shipped import Target, load_target, targets, task_named
from .task import Call, Decomposition, Task

__all__ = [
    "Call",
    "Cost",
    "Decomposition",
    "Graph",
    "Node",
    "SnfError",
    "Target",
    "Task",
    "Tensor",
    "canonical",
    "cost",
    "decompose",
    "everyday",
    "load_target",
    "parse",
    "show",
    "targets",
    "task_named",
]
