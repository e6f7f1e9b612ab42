"""Which plan runs at which size: tracing again where no guards hold, and holding plans to what launch really does.

A candidate has one plan or several.  A size where none applies is traced again, which adds one; a size where launch
raises ValueError is infeasible, no edge of a plan.  Then every size is traced once more with plain integers, in another
child, and must give the launches that its plan gives there: a plan is the claim of a process that the candidate shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluator.rejection import Rejected
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

    def serving(self, dims: Sizes) -> int | None:
        """The index of the first plan whose guards hold."""
        return next((i for i, traced in enumerate(self.plans) if traced.plan.applies(dims)), None)


def dims(sizes: Mapping[str, int], chip: Chip) -> Sizes:
    """The names a plan's expressions may use, with their values."""
    return {**sizes, "num_sms": chip.sm_count}


def cover(
    source: str, task: Task, chip: Chip, axes: Mapping[str, Any], known: Sequence[Traced], sizes: Sequence[Sizes]
) -> Cover:
    """Finds a plan for every size of ``sizes``, among ``known`` or traced anew.  Raises Rejected where launch fails."""
    from evaluator.trace import Request, trace

    out = Cover(list(known))
    missing = [s for s in sizes if out.serving(dims(s, chip)) is None]
    answers = trace(source, task, [Request(s, axes, "general") for s in missing], chip) if missing else []
    for at, answer in zip(missing, answers, strict=True):
        if isinstance(answer, Verdict):
            if answer.status is not Status.INFEASIBLE:
                raise Rejected(answer.model_copy(update={"message": f"at {text(at)}: {answer.message}"}))
            out.infeasible.append((at, answer))
        elif out.serving(dims(at, chip)) is None:
            if not answer.plan.applies(dims(at, chip)):
                guard = answer.plan.failing_guard(dims(at, chip))
                said = f"traced at {text(at)} the plan has a guard that is false there: {guard}"
                raise Rejected(launch_changes(said))
            out.plans.append(answer)
    refused = [at for at, _ in out.infeasible]
    for at in sizes:
        if at not in refused:
            index = out.serving(dims(at, chip))
            assert index is not None
            out.chosen.append((at, index))
    return out


def confirm(source: str, task: Task, chip: Chip, axes: Mapping[str, Any], covered: Cover, since: int = 0) -> None:
    """Traces every covered size with plain integers in a child of its own.  Raises Rejected where the launches differ.

    ``since``: sizes that an earlier plan serves are left out.
    """
    from evaluator.trace import Request, same_launches, trace

    chosen = [(at, index) for at, index in covered.chosen if index >= since]
    answers = trace(source, task, [Request(at, axes, "concrete") for at, _ in chosen], chip) if chosen else []
    for (at, index), answer in zip(chosen, answers, strict=True):
        if isinstance(answer, Verdict):
            said = f"at {text(at)}, with plain integers, {answer.message}"
            raise Rejected(answer.model_copy(update={"message": said}))
        difference = same_launches(covered.plans[index], dims(at, chip), answer)
        if difference is not None:
            said = f"at {text(at)}, with plain integers, launch makes other launches: {difference}"
            raise Rejected(launch_changes(said))


def launch_changes(message: str) -> Verdict:
    """The verdict on a file whose ``launch`` does not do the same thing every time it is asked."""
    return Verdict(status=Status.INVALID, stage=Stage.TRACE, error_class="launch-changes", message=message)


def text(sizes: Mapping[str, int]) -> str:
    """``M=65, N=7``."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())
