"""One task's way through the loop: retrieve, propose, search configurations, judge, record; the winner at the end.

Candidates come from the knowledge base (the best known ones, to be judged again by this version of the evaluator) and
from the proposer.  Each one's configurations are ranked by modelled time; the best is judged, the next if that is
rejected.  A task needs one *general* winner, correct at every judged size; one that is faster but refuses some sizes is
kept beside it.  Everything is recorded as soon as it is known, so a run that is stopped loses nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowledge_base.chips import Chip
from knowledge_base.records import Candidate, Measurement, Verdict
from knowledge_base.snf.task import Task
from knowledge_base.store import Evaluation, Known, Store, Winner

from . import winners
from .check import error_ratio
from .proposers.base import ProposalRequest, Proposer
from .ranking import Ranking, evaluations, rank
from .summary import TaskResult

if TYPE_CHECKING:
    from evaluator.judge import Judgement
    from evaluator.trace import Traced

    from .judging import Judges
    from .progress import Progress
    from .rundir import RunFolder

KNOWN = 3  # candidates of the knowledge base that a task starts from
TRIES = 3  # configurations of one candidate that are judged before it is given up
WORTH = 0.98  # a specialised kernel is judged if its modelled time is below this share of the general one's


class Stopped(Exception):
    """The run's time is up, or the user stopped it: the task stays unfinished."""


@dataclass(frozen=True)
class Context:
    """What all tasks of a run share.  ``deadline``: monotonic seconds after which nothing new starts."""

    run: str
    store: Store
    folder: RunFolder
    judges: Judges
    proposer: Proposer
    chip: Chip
    evaluator: str
    seed: int
    rounds: int
    jobs: int
    search_seconds: float  # for all configurations of one candidate
    progress: Progress
    deadline: float | None = None
    stopping: threading.Event = field(default_factory=threading.Event)

    def check_time(self) -> None:
        """Raises Stopped when the run's time is up or it was interrupted."""
        if self.stopping.is_set() or (self.deadline is not None and time.monotonic() > self.deadline):
            raise Stopped


@dataclass(frozen=True)
class Judged:
    """A candidate judged in one configuration."""

    known: Known
    measurement: Measurement
    verdict: Verdict
    general: bool
    plans: tuple[Traced, ...] = ()
    searched: int = 0
    configurations: int = 0


class TaskWork:
    """A task under way.  ``label`` is what people see; ``calls`` how often the target calls it."""

    def __init__(self, context: Context, task: Task, label: str, calls: int) -> None:
        self.context, self.task, self.label, self.calls = context, task, label, calls
        self.rejected: list[dict[str, Any]] = []
        self.feedback: list[Verdict] = []
        self.fresh = False  # something was judged or searched that was not known
        self.seen: set[str] = set()
        self.done = 0.0  # share of the task's work, for the bar

    def run(self) -> TaskResult:
        """Finds, records and writes the task's winner."""
        start = time.monotonic()
        general: Judged | None = None
        special: Judged | None = None
        try:
            for number in range(self.context.rounds):
                rankings = self.rankings(self.candidates(number))
                general, special = self.decide(rankings, general, special)
                if general is not None or not rankings:
                    break
        except Stopped:
            self.say_end(False, "stopped")
            if general is None:
                return self.result("unfinished", "stopped before a kernel was judged", None, start)
        result = self.conclude(general, special, start)
        self.say_end(result.correct, f"{result.kernel[:8]} {result.status}" if result.correct else result.status)
        return result

    # ------------------------------------------------------------------------------------------------ candidates

    def candidates(self, number: int) -> list[tuple[Candidate, str]]:
        """(candidate, move) of this round: known ones first, then what the proposer says; none twice."""
        context = self.context
        context.check_time()
        self.say(0.02, "proposing")
        found: list[tuple[Candidate, str]] = []
        if number == 0:
            known = context.store.best(self.task.identity, context.chip.name, limit=KNOWN)
            found += [(k.candidate, "known") for k in known]
        request = ProposalRequest(self.task, context.chip, tuple(self.feedback))
        move = "fresh" if number == 0 else "repair"
        found += [(candidate, move) for candidate in context.proposer.propose(request)]
        new = [(c, m) for c, m in found if not (c.digest in self.seen or self.seen.add(c.digest))]  # type: ignore[func-returns-value]
        for candidate, _ in new:
            context.store.record_candidate(candidate, run=context.run)
        return new

    def rankings(self, candidates: list[tuple[Candidate, str]]) -> list[tuple[Ranking, str]]:
        """Each candidate's configurations ranked; the fastest candidate first."""
        found = []
        for number, (candidate, move) in enumerate(candidates):
            self.context.check_time()
            self.say(0.05 + 0.35 * number / len(candidates), "searching")
            found.append((self.ranking(candidate), move))
        return sorted(found, key=lambda pair: pair[0].us)

    def ranking(self, candidate: Candidate) -> Ranking:
        """The candidate's configurations: as they are known, else searched now and recorded."""
        context = self.context
        stored = context.store.of_candidate(
            self.task.identity, candidate.digest, context.chip.name, self.task.sizes, context.evaluator
        )
        rows = [k.evaluation for k in stored]
        if not any(row.measurements for row in rows):
            self.fresh = True
            rows = self.search(candidate)
            context.store.record(candidate, rows, run=context.run, move="search")
        ranked = rank(candidate, rows)
        if not ranked.rows and ranked.refused is not None:
            self.reject(candidate, ranked.refused)
        return ranked

    def search(self, candidate: Candidate) -> list[Evaluation]:
        from .search import Row, search

        context = self.context

        def progress(done: int, expected: int, _: Row) -> None:
            context.check_time()
            self.say(self.done, f"searching {done}/{expected}")

        known = context.store.best(self.task.identity, context.chip.name, limit=1)
        found = search(
            candidate.source,
            self.task,
            context.chip,
            jobs=context.jobs,
            first=[dict(k.evaluation.configuration) for k in known],
            seconds=context.search_seconds,
            progress=progress,
        )
        if found.verdict is not None:
            self.reject(candidate, found.verdict)
        return evaluations(found, candidate, self.task, context.chip, context.evaluator)

    # ------------------------------------------------------------------------------------------------ judging

    def decide(
        self, rankings: list[tuple[Ranking, str]], general: Judged | None, special: Judged | None
    ) -> tuple[Judged | None, Judged | None]:
        """The fastest general kernel that is correct, and the fastest specialised one if it is worth its guards."""
        for number, (ranking, move) in enumerate(rankings):
            if general is not None and ranking.us >= WORTH * general.measurement.us:
                continue
            if general is not None and special is not None:
                continue
            self.say(0.4 + 0.6 * number / len(rankings), "judging")
            judged = self.judge_best(ranking, move)
            if judged is None:
                continue
            if judged.general:
                general = judged
            elif special is None:
                special = judged
        if general is not None and special is not None and special.measurement.us >= WORTH * general.measurement.us:
            special = None
        return general, special

    def judge_best(self, ranking: Ranking, move: str) -> Judged | None:
        """Judges the candidate's configurations, fastest first, until one is correct."""
        for row in ranking.rows[:TRIES]:
            self.context.check_time()
            known = Known(row, ranking.candidate)
            if row.verdict is not None:  # by this version of the evaluator, at this shape: it would say so again
                self.context.store.record(ranking.candidate, [row], run=self.context.run, move=move, reused=True)
                general = not row.verdict.message
                return Judged(
                    known, row.measurements[0], row.verdict, general, (), ranking.searched, ranking.configurations
                )
            self.fresh = True
            judgement = self.context.judges.judge(
                ranking.candidate.source, self.task, self.context.chip, row.configuration, self.context.seed
            )
            judged = self.recorded(ranking, row, judgement, move)
            if judgement.verdict.correct:
                return judged
            self.reject(ranking.candidate, judgement.verdict)
        return None

    def recorded(self, ranking: Ranking, row: Evaluation, judgement: Judgement, move: str) -> Judged:
        evaluation = Evaluation(
            task=row.task,
            candidate=row.candidate,
            configuration=row.configuration,
            chip=row.chip,
            shape=row.shape,
            evaluator=row.evaluator,
            verdict=judgement.verdict,
            evidence=row.evidence or judgement.verdict.evidence,
            measurements=row.measurements,
            seed=judgement.seed,
            seconds=judgement.seconds,
        )
        self.context.store.record(ranking.candidate, [evaluation], run=self.context.run, move=move)
        return Judged(
            Known(evaluation, ranking.candidate),
            row.measurements[0],
            judgement.verdict,
            judgement.general,
            judgement.plans,
            ranking.searched,
            ranking.configurations,
        )

    def reject(self, candidate: Candidate, verdict: Verdict) -> None:
        self.feedback.append(verdict)
        self.rejected.append(
            {
                "kernel": candidate.digest,
                "proposer": candidate.proposer,
                "status": verdict.status.value,
                "message": verdict.message,
            }
        )
        self.context.folder.log(f"{self.label}: {candidate.digest[:8]} {verdict.status.value}: {verdict.message}")

    # ------------------------------------------------------------------------------------------------ the end

    def conclude(self, general: Judged | None, special: Judged | None, start: float) -> TaskResult:
        """Writes and records the winners; the faster one stands in the table."""
        if general is None:
            last = self.rejected[-1] if self.rejected else {"status": "no-candidate", "message": "nothing was proposed"}
            if special is not None:
                last = {"status": "infeasible", "message": "no candidate is correct at every size"}
            return self.result(str(last["status"]), str(last["message"]), None, start)
        folder, guards = self.write(general)
        if special is not None:
            folder, guards = self.write(special)
        done = self.result("correct", "", special or general, start)
        return replace(done, guards=guards, folder=str(folder.relative_to(self.context.folder.path)))

    def write(self, judged: Judged) -> tuple[Path, tuple[tuple[str, ...], ...]]:
        """Writes and records a winner; its folder, and the guards of each of its plans."""
        context, evaluation = self.context, judged.known.evaluation
        plans = judged.plans or self.trace_again(judged)
        won = winners.Won(
            task=self.task,
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
        winner = Winner(evaluation, judged.measurement, judged.general, guards, place)
        context.store.record_winner(context.run, winner)
        return folder, guards

    def trace_again(self, judged: Judged) -> tuple[Traced, ...]:
        """The plans of a verdict that was reused: traced at the sizes that it was reached at."""
        from evaluator.cover import cover
        from evaluator.trace import Request, trace

        source, axes = judged.known.candidate.source, dict(judged.known.evaluation.configuration)
        (first,) = trace(source, self.task, [Request(self.task.sizes, axes, "general")], self.context.chip)
        if isinstance(first, Verdict):
            raise RuntimeError(f"a kernel that was correct does not trace: {first.message}")
        sizes = [dict(at) for at in judged_sizes(judged.verdict.numbers)]
        covered = cover(source, self.task, self.context.chip, axes, first, sizes)
        if isinstance(covered, Verdict):
            raise RuntimeError(f"a kernel that was correct does not trace: {covered.message}")
        return tuple(covered.plans)

    def result(self, status: str, message: str, judged: Judged | None, start: float) -> TaskResult:
        from evaluator.model import floor_us

        common: dict[str, Any] = {
            "name": self.label,
            "identity": self.task.identity,
            "ops": operations(self.task),
            "sizes": self.task.sizes,
            "calls": self.calls,
            "status": status,
            "message": message,
            "rejected": tuple(self.rejected),
            "floor_us": floor_us(self.task, self.task.sizes, self.context.chip),
            "reused": not self.fresh,
            "seconds": round(time.monotonic() - start, 3),
        }
        if judged is None:
            return TaskResult(**common)
        evaluation = judged.known.evaluation
        return TaskResult(
            **common,
            kernel=judged.known.candidate.digest,
            proposer=judged.known.candidate.proposer,
            note=judged.known.candidate.note,
            configuration=dict(evaluation.configuration),
            kind=judged.measurement.kind,
            us=judged.measurement.us,
            error=error_ratio(judged.verdict),
            evidence=tuple(e.model_dump() for e in evaluation.evidence),
            searched=judged.searched,
            configurations=judged.configurations,
        )

    def say(self, done: float, now: str) -> None:
        self.done = done
        self.context.progress.step(self.label, done, 1.0, now)

    def say_end(self, good: bool, text: str) -> None:
        self.context.progress.end(self.label, good, text)
        self.context.folder.log(f"{self.label}: {text}")


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
