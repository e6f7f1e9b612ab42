"""The beginning of every trial: a candidate in one configuration, at a task's sizes on a chip, by this evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.trace import read_axes
from evaluator.version import evaluator_version
from knowledge_base.chips import Chip
from knowledge_base.records import Candidate, Trial, Verdict
from knowledge_base.snf.task import Task


def begin(candidate: Candidate, task: Task, chip: Chip, axes: Mapping[str, Any] | None = None) -> Trial:
    """``axes``: values for some of the file's axes; the others have their defaults.

    A file whose AXES cannot be read has the configuration it is given: the tracer says what is wrong with it.
    """
    known = read_axes(candidate.source)
    defaults = {} if isinstance(known, Verdict) else {name: values[0] for name, values in known.items()}
    return Trial(
        candidate=candidate,
        configuration={**defaults, **(axes or {})},
        chip=chip.name,
        shape=task.sizes,
        evaluator=evaluator_version(),
    )
