"""Which plan runs at which size: tracing again where no guards hold, and holding plans to what launch really does.

A candidate has one plan or several.  A size where none applies is traced again, which adds one; a size where launch
raises ValueError is infeasible, no edge of a plan.  Then every size is traced once more with plain integers, in another
child, and must give the launches that its plan gives there: a plan is the claim of a process that the candidate shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluator.sizes import Sizes
from knowledge_base.records import Stage, Status, Verdict
from knowledge_base.snf.task import Task

if TYPE_CHECKING:
    from evaluator.trace import Traced
    from knowledge_base.chips import Chip


@dataclass
class Cover:
    """Plans, and for each size the index of the plan that runs there.  ``infeasible``: sizes with launch's reason."""

    plans: list[Traced]
    chosen: list[tuple[Sizes, int]] = field(default_factory=list)
    infeasible: list[tuple[Sizes, Verdict]] = field(default_factory=list)


def dims(sizes: Mapping[str, int], chip: Chip) -> Sizes:
    """The names a plan's expressions may use, with their values."""
    return {**sizes, "num_sms": chip.sm_count}


def cover(
    source: str, task: Task, chip: Chip, axes: Mapping[str, Any], first: Traced, sizes: Sequence[Sizes]
) -> Cover | Verdict:
    """Finds a plan for every size of ``sizes``, starting with ``first``; a Verdict where launch fails at one."""
    from evaluator.trace import Request, trace

    out = Cover([first])
    missing = [s for s in sizes if not first.plan.applies(dims(s, chip))]
    answers = trace(source, task, [Request(s, axes, "general") for s in missing], chip) if missing else []
    for at, answer in zip(missing, answers, strict=True):
        if isinstance(answer, Verdict):
            if answer.status is not Status.INFEASIBLE:
                return answer.model_copy(update={"message": f"at {text(at)}: {answer.message}"})
            out.infeasible.append((at, answer))
        elif not any(t.plan.applies(dims(at, chip)) for t in out.plans):
            if not answer.plan.applies(dims(at, chip)):
                guard = answer.plan.failing_guard(dims(at, chip))
                return launch_changes(f"traced at {text(at)} the plan has a guard that is false there: {guard}")
            out.plans.append(answer)
    refused = [at for at, _ in out.infeasible]
    for at in sizes:
        if at not in refused:
            out.chosen.append((at, next(i for i, t in enumerate(out.plans) if t.plan.applies(dims(at, chip)))))
    return out


def confirm(source: str, task: Task, chip: Chip, axes: Mapping[str, Any], covered: Cover) -> Verdict | None:
    """Traces every covered size with plain integers in a child of its own; a Verdict where the launches differ."""
    from evaluator.trace import Request, same_launches, trace

    requests = [Request(at, axes, "concrete") for at, _ in covered.chosen]
    answers = trace(source, task, requests, chip) if requests else []
    for (at, index), answer in zip(covered.chosen, answers, strict=True):
        if isinstance(answer, Verdict):
            said = f"at {text(at)}, with plain integers, {answer.message}"
            return answer.model_copy(update={"message": said})
        difference = same_launches(covered.plans[index], dims(at, chip), answer)
        if difference is not None:
            return launch_changes(f"at {text(at)}, with plain integers, launch makes other launches: {difference}")
    return None


def launch_changes(message: str) -> Verdict:
    """The verdict on a file whose ``launch`` does not do the same thing every time it is asked."""
    return Verdict(status=Status.INVALID, stage=Stage.TRACE, error_class="launch-changes", message=message)


def text(sizes: Mapping[str, int]) -> str:
    """``M=65, N=7``."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())
