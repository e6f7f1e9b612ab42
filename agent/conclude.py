"""A winner is kept: its plans, its files in the run's folder, its row in the knowledge base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from knowledge_base.records import Trial
from knowledge_base.snf.task import Task

from . import winners
from .context import Context

if TYPE_CHECKING:
    from evaluator.trace import Traced
    from knowledge_base.store import Store


def keep(context: Context, task: Task, trial: Trial, plans: Mapping[str, Traced]) -> str:
    """Writes and records a winner; returns its folder, relative to the run's.  ``plans``: by digest, with its own."""
    provenance = {"run": context.run, "evaluation": trial.key, "evaluator": trial.evaluator}
    folder = winners.write(context.folder.path / "winners", task, trial, plans, provenance)
    place = str(folder.relative_to(context.folder.path))
    context.store.record_winner(context.run, trial, place)
    return place


def artifacts(trial: Trial, plans: Mapping[str, Traced]) -> dict[str, bytes]:
    """What is stored of a judged trial's plans, for :func:`recall`; nothing of one that is not correct."""
    return {key: data for plan in plans.values() for key, data in plan.artifacts.items()} if trial.correct else {}


def recall(store: Store, digests: Sequence[str]) -> dict[str, Traced]:
    """The stored plans with these digests, with their bytecode; one that is not there whole is left out.

    They serve winners.  The judge needs what else a trace tells, so it never gets one of these.
    """
    from evaluator.trace import Traced
    from kernels_generated.runtime.plan import loads

    plans = {digest: loads(text.decode()) for digest, text in store.artifacts(digests).items()}
    kernels = store.artifacts(kernel for plan in plans.values() for kernel in plan.kernels)
    return {
        digest: Traced(plan, {kernel: kernels[kernel] for kernel in plan.kernels})
        for digest, plan in plans.items()
        if all(kernel in kernels for kernel in plan.kernels)
    }


# What is no operation of its own: values that others are computed with, and views.
_SILENT = frozenset(
    {"const", "dim", "iota", "causal_mask", "permute", "reshape", "select", "split", "heads", "merge", "cast"}
)


def operations(task: Task) -> tuple[str, ...]:
    """The task's operations in order of first use: what was fused."""
    return tuple(dict.fromkeys(n.op for n in task.graph.nodes if n.op not in _SILENT and not n.name.startswith("$")))
