"""What is timed as one piece: a graph, and a launch plan for each call that computes a part of it.

A task is one call, a target several.  Needs no torch, so that callers of a runner can make one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluator.compile import compile_kernels
from kernels_generated.runtime import Launchable
from knowledge_base.chips import Chip
from knowledge_base.records import Verdict
from knowledge_base.snf.task import Call, Decomposition, Task

OURS = "tilewright"  # a composition's name among those that are timed beside it


@dataclass(frozen=True)
class Composition:
    """``whole``: the graph as a task.  ``outputs``: the buffers in which its outputs lie once all calls ran.

    plans: of each call, for the sizes that it has where ``whole`` has its own.  cubins: of all their kernels, by hash.
    """

    whole: Task
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]
    plans: tuple[Launchable, ...]
    cubins: Mapping[str, bytes]

    @classmethod
    def of_task(cls, task: Task, plan: Launchable, cubins: Mapping[str, bytes]) -> Composition:
        return cls(task, (Call.whole(task),), tuple(t.name for t in task.outputs), (plan,), cubins)

    @classmethod
    def of_target(
        cls, decomposition: Decomposition, plans: Sequence[Launchable], cubins: Mapping[str, bytes]
    ) -> Composition:
        graph = decomposition.graph
        return cls(decomposition.whole, decomposition.calls, graph.outputs, tuple(plans), cubins)


def cubins_of(plans: Iterable[Launchable], chip: Chip) -> dict[str, bytes] | Verdict:
    """The cubins of the plans' kernels by hash, for the chip; the assembler's refusal where it refuses one."""
    kernels = {digest: data for plan in plans for digest, data in plan.kernels.items()}
    answers = compile_kernels(kernels, [chip.arch])
    refused = next((answer for answer in answers.values() if isinstance(answer, Verdict)), None)
    if refused is not None:
        return refused
    return {digest: answer.cubin for (digest, _), answer in answers.items() if not isinstance(answer, Verdict)}
