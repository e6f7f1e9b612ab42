"""A winner is kept: its plans, its files in the run's folder, its row in the knowledge base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from knowledge_base.records import Verdict
from knowledge_base.snf.task import Task
from knowledge_base.store import Winner

from . import winners
from .context import Context, Judged

if TYPE_CHECKING:
    from evaluator.trace import Traced


@dataclass(frozen=True)
class Kept:
    """A winner with its plans, where it was written, and the guards of each plan as people read them."""

    judged: Judged
    folder: str  # relative to the run's
    guards: tuple[tuple[str, ...], ...]


def keep(context: Context, task: Task, judged: Judged) -> Kept:
    """Writes and records a winner; its plans are traced again if its verdict was reused."""
    evaluation = judged.known.evaluation
    plans = judged.plans or trace_again(context, task, judged)
    won = winners.Won(
        task=task,
        candidate=judged.known.candidate,
        configuration=evaluation.configuration,
        chip=context.chip.name,
        measurement=judged.measurement,
        verdict=judged.verdict,
        plans=[t.plan for t in plans],
        kernels={h: data for t in plans for h, data in t.kernels.items()},
        provenance={"run": context.run, "evaluation": evaluation.key, "evaluator": context.evaluator},
        general=judged.general,
    )
    folder = winners.write(context.folder.path / "winners", won)
    guards = tuple(tuple(winners.guards(t.plan)) for t in plans)
    place = str(folder.relative_to(context.folder.path))
    context.store.record_winner(context.run, Winner(evaluation, judged.measurement, judged.general, guards, place))
    return Kept(replace(judged, plans=tuple(plans)), place, guards)


def is_general(verdict: Verdict) -> bool:
    """Whether a correct verdict holds at every judged size: the judge's message names those that launch refuses."""
    return verdict.correct and not verdict.message


def trace_again(context: Context, task: Task, judged: Judged) -> tuple[Traced, ...]:
    """The plans of a verdict that was reused: traced at the sizes that it was reached at."""
    from evaluator.cover import cover
    from evaluator.trace import Request, trace

    source, axes = judged.known.candidate.source, dict(judged.known.evaluation.configuration)
    (first,) = trace(source, task, [Request(task.sizes, axes, "general")], context.chip)
    if isinstance(first, Verdict):
        raise RuntimeError(f"a kernel that was correct does not trace: {first.message}")
    sizes = [dict(at) for at in judged_sizes(judged.verdict.numbers)]
    covered = cover(source, task, context.chip, axes, first, sizes)
    if isinstance(covered, Verdict):
        raise RuntimeError(f"a kernel that was correct does not trace: {covered.message}")
    return tuple(covered.plans)


# What is no operation of its own: values that others are computed with, and views.
_SILENT = frozenset(
    {"const", "dim", "iota", "causal_mask", "permute", "reshape", "select", "split", "heads", "merge", "cast"}
)


def operations(task: Task) -> tuple[str, ...]:
    """The task's operations in order of first use: what was fused."""
    return tuple(dict.fromkeys(n.op for n in task.graph.nodes if n.op not in _SILENT and not n.name.startswith("$")))


def judged_sizes(numbers: Mapping[str, Any]) -> list[Mapping[str, int]]:
    """The sizes that a verdict's numbers speak of, each once."""
    found: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
    for outputs in numbers.values():
        for figure in outputs.values():
            for at in figure.get("sizes", ()):
                found.setdefault(tuple(sorted(at.items())), at)
    return list(found.values())
