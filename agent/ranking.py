"""Between the configuration search and the knowledge base: a candidate's configurations, fastest modelled first.

A search's rows become evaluations without a verdict (``compiled``); a later run ranks from those instead of searching
again.  What was pruned is no evaluation: nothing was looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowledge_base.chips import Chip
from knowledge_base.records import Candidate, Status, Verdict
from knowledge_base.snf.task import Task
from knowledge_base.store import Evaluation

if TYPE_CHECKING:
    from .search import SearchResult


UNSURE = (Status.TIMEOUT, Status.CRASH)


@dataclass(frozen=True)
class Ranking:
    """A candidate's usable configurations, fastest first, spilling ones last.

    searched: configurations that were compiled or refused; configurations: how many its AXES span.
    refused: the verdict of one that failed.
    """

    candidate: Candidate
    rows: tuple[Evaluation, ...]
    searched: int
    configurations: int
    refused: Verdict | None = None

    @property
    def us(self) -> float:
        """The best modelled time in µs; infinite if nothing is usable."""
        return self.rows[0].measurements[0].us if self.rows else math.inf


def evaluations(found: SearchResult, candidate: Candidate, task: Task, chip: Chip, evaluator: str) -> list[Evaluation]:
    """The rows of a search that say something: compiled, or refused with a verdict."""
    return [
        Evaluation(
            task=candidate.task,
            candidate=candidate.digest,
            configuration=dict(row.axes),
            chip=chip.name,
            shape=task.sizes,
            evaluator=evaluator,
            verdict=row.verdict,
            evidence=row.evidence,
            measurements=(row.measurement,) if row.measurement is not None else (),
        )
        for row in found.rows
        if row.measurement is not None or row.verdict is not None
    ]


def rank(candidate: Candidate, rows: Sequence[Evaluation]) -> Ranking:
    """Orders stored or fresh evaluations of one candidate at one shape on one chip."""
    # A timeout or crash may have been the machine's load: such a configuration is judged again.
    rows = [
        replace(r, verdict=None) if r.verdict and r.verdict.status in UNSURE and r.measurements else r for r in rows
    ]
    usable = [r for r in rows if r.measurements and (r.verdict is None or r.verdict.correct)]
    refused = next((r.verdict for r in rows if r.verdict is not None and not r.verdict.correct), None)
    usable.sort(key=lambda r: (_spills(r), r.measurements[0].us))
    return Ranking(candidate, tuple(usable), len(rows), _span(candidate.source), refused)


def _spills(row: Evaluation) -> bool:
    return any(e.spill_bytes > 0 for e in row.evidence)


def _span(source: str) -> int:
    from evaluator.trace import read_axes

    axes = read_axes(source)
    return math.prod(_lengths(axes.values())) if isinstance(axes, dict) else 0


def _lengths(choices: Iterable[Sequence[object]]) -> list[int]:
    return [len(values) for values in choices]
