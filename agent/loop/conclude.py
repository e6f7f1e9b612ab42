"""A winner is kept: its files in the run's folder, its row in the knowledge base."""

from __future__ import annotations

from knowledge_base.records import Trial
from knowledge_base.snf.task import Task

from . import winners
from .compose import assembled
from .context import RunContext


def keep(context: RunContext, task: Task, trial: Trial) -> str:
    """Writes and records a winner, with cubins if it was measured; returns its folder, relative to the run's."""
    plans = context.plans.of(trial)
    cubins = assembled(plans, context.chip) if trial.timed("measured") else None
    folder = winners.write(context.folder.path / "winners", task, trial, plans, {"run": context.run}, cubins)
    place = str(folder.relative_to(context.folder.path))
    context.store.record_winner(context.run, trial, place)
    return place


# What is no operation of its own: values that others are computed with, and views.
_SILENT = frozenset(
    {"const", "dim", "iota", "causal_mask", "permute", "reshape", "select", "split", "heads", "merge", "cast"}
)


def operations(task: Task) -> tuple[str, ...]:
    """The task's operations in order of first use: what was fused."""
    return tuple(dict.fromkeys(n.op for n in task.graph.nodes if n.op not in _SILENT and not n.name.startswith("$")))
