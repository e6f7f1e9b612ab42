"""Which plan runs at which size: tracing again where no guards hold, and holding plans to what launch really does.

A candidate has one plan or several.  A size where none applies is traced again, which adds one; a size where launch
raises ValueError is infeasible, no edge of a plan.  Then every size is traced once more with plain integers, in another
child, and must give the launches that its plan gives there: a plan is the claim of a process that the candidate shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.trace import Request, Traced, same_launches, trace
from kernels_generated.runtime.plan import MAX_GRID, Launchable
from knowledge_base.chips import Chip
from knowledge_base.records import Stage, Status, Verdict
from knowledge_base.snf.task import Task

from .rejection import Rejected
from .sizes import Sizes


@dataclass
class Cover:
    """Plans, and for each size the index of the plan that runs there.

    known: plans that were held to what launch does before.  traced: the others.  infeasible: with what launch said.
    """

    known: tuple[Launchable, ...] = ()
    traced: list[Traced] = field(default_factory=list)
    chosen: list[tuple[Sizes, int]] = field(default_factory=list)
    infeasible: list[tuple[Sizes, Verdict]] = field(default_factory=list)

    @property
    def plans(self) -> tuple[Launchable, ...]:
        """The known ones first."""
        return (*self.known, *self.traced)

    def serving(self, dims: Sizes) -> int | None:
        """The index of the first plan whose guards hold."""
        return next((i for i, one in enumerate(self.plans) if one.plan.applies(dims)), None)


def dims(sizes: Mapping[str, int], chip: Chip) -> Sizes:
    """The names a plan's expressions may use, with their values: ``sizes`` may say another number of processors."""
    return {"num_sms": chip.sm_count, **sizes}


def cover(source: str, task: Task, chip: Chip, axes: Mapping[str, Any], out: Cover, sizes: Sequence[Sizes]) -> Cover:
    """Adds to ``out`` a plan for every size of ``sizes`` that none of its plans serves, and returns it.

    Left out are sizes at which a launch would need a grid that no chip takes, as a plan's guard says.  Raises Rejected
    where launch fails.
    """
    refused: list[Sizes] = []
    missing = [s for s in sizes if out.serving(dims(s, chip)) is None]
    answers = trace(source, task, [Request(s, axes, "general") for s in missing], chip) if missing else []
    for at, answer in zip(missing, answers, strict=True):
        if isinstance(answer, Verdict):
            if answer.error_class == "grid-range" and _grid_too_large(out, dims(at, chip)):
                refused.append(at)
                continue
            if answer.status is not Status.INFEASIBLE:
                raise Rejected(answer.model_copy(update={"message": f"at {text(at)}: {answer.message}"}))
            out.infeasible.append((at, answer))
        elif out.serving(dims(at, chip)) is None:
            if not answer.plan.applies(dims(at, chip)):
                guard = answer.plan.failing_guard(dims(at, chip))
                said = f"traced at {text(at)} the plan has a guard that is false there: {guard}"
                raise Rejected(launch_changes(said))
            out.traced.append(answer)
    refused += [at for at, _ in out.infeasible]
    for at in sizes:
        if at not in refused:
            index = out.serving(dims(at, chip))
            assert index is not None
            out.chosen.append((at, index))
    return out


def _grid_too_large(out: Cover, sizes: Sizes) -> bool:
    limits = [g for one in out.plans for g in one.plan.guards if g.comparison == "<=" and g.right in MAX_GRID]
    return any(not guard.holds(sizes) for guard in limits)


def confirm(source: str, task: Task, chip: Chip, axes: Mapping[str, Any], covered: Cover) -> None:
    """Traces every size that a traced plan serves once more, with plain integers, in a child of its own.

    Raises Rejected where the launches differ.
    """
    since = len(covered.known)
    chosen = [(at, covered.traced[index - since]) for at, index in covered.chosen if index >= since]
    answers = trace(source, task, [Request(at, axes, "concrete") for at, _ in chosen], chip) if chosen else []
    for (at, traced), answer in zip(chosen, answers, strict=True):
        if isinstance(answer, Verdict):
            said = f"at {text(at)}, with plain integers, {answer.message}"
            raise Rejected(answer.model_copy(update={"message": said}))
        difference = same_launches(traced, dims(at, chip), answer)
        if difference is not None:
            said = f"at {text(at)}, with plain integers, launch makes other launches: {difference}"
            raise Rejected(launch_changes(said))


def launch_changes(message: str) -> Verdict:
    """The verdict on a file whose ``launch`` does not do the same thing every time it is asked."""
    return Verdict(status=Status.INVALID, stage=Stage.TRACE, error_class="launch-changes", message=message)


def text(sizes: Mapping[str, int]) -> str:
    """``M=65, N=7``."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())
