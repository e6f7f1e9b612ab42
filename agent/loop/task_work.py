"""One task's way through the loop: retrieve, propose, search configurations, judge, record; the winner at the end.

Candidates come from the knowledge base (the best known ones and those of other bases, to be judged by this version of
the evaluator) and from the proposer.  Each one's configurations are ranked by the run's timer; the best is judged, the
next if that is rejected.  A task needs one *general* winner, correct at every judged size; one that is faster but
refuses some sizes is kept beside it.  Everything is recorded as soon as it is known, so a run that is stopped loses
nothing.
"""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass
from typing import Any

from agent.console import count, us
from agent.proposers import ProposalRequest, Proposer
from evaluator.judging import defect
from evaluator.timing import floor_us
from knowledge_base.chips import Chip
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.records import Candidate, Measurement, Stage, Trial, Verdict
from knowledge_base.snf.task import Task
from knowledge_base.store import Store

from .conclude import keep
from .context import RunContext, RunStopped
from .ranking import least, looked_at, rank, searched, span
from .searching import search
from .summary import Effort, TaskResult

LIMIT: int | None = None  # configurations of a candidate that are looked at: all, while the time lasts
KNOWN = 3  # candidates of the knowledge base that a task starts from, and as many that other bases have
SEARCHING = 0.5  # of what is left of a run's budget may go to searching: what is never judged is worth nothing
SHORTEST = 3.0  # seconds a task may search, however small its share
TRIES = 3  # configurations of one candidate that are judged before it is given up
WORTH = 0.98  # a specialised kernel is judged if its time is below this share of the general one's


def known_trials(store: Store, task: Task, chip: Chip, run: str = "") -> tuple[Trial, ...]:
    """What a task starts from: the fastest correct trials, each of another candidate, best first.

    ``run``: of those that were made in this run alone, before it was resumed.
    """
    return tuple(store.best(task.identity, chip.name, limit=KNOWN, run=run))


def foreign_trials(store: Store, task: Task, chip: Chip, known: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """What other bases call correct and nobody tried here, unless they give it more time than the best one known."""
    found = store.foreign(task.identity, chip.name, limit=KNOWN)
    return tuple(trial for trial in found if not any(_slower(trial, one) for one in known))


def _slower(one: Trial, other: Trial) -> bool:
    """Whether times that compare say so."""
    mine, theirs = one.time, other.time
    alike = one.shape == other.shape and one.chip == other.chip
    return alike and mine is not None and theirs is not None and mine.kind == theirs.kind and theirs < mine


@dataclass(frozen=True)
class Searched:
    """How many of a file's configurations are compiled, and ruled out; how many of both are new; how many there are."""

    compiled: int
    pruned: int
    new: int
    configurations: int


def _refused_early(trial: Trial) -> bool:
    """Whether a configuration got no further than its trace: ``launch`` refused it, or the tracer did."""
    return trial.verdict is not None and trial.verdict.stage in (Stage.STATIC, Stage.IMPORT, Stage.TRACE)


class TaskWork:
    """A task under way.  ``label`` is what people see; ``calls`` how often the target calls it.

    ``share``: of the target's modelled floor, all calls together; it gets that share of the time for searching, and of
    a model's budget.
    """

    def __init__(self, context: RunContext, task: Task, label: str, calls: int, share: float) -> None:
        self.context, self.task, self.label, self.calls, self.share = context, task, label, calls, share
        # For all candidates of a round.  What is measured waits for the GPU most of the time: there all search at once.
        by_share = max(SHORTEST, share * context.search_seconds * context.cores)
        self.seconds = by_share if context.timer.kind == "modelled" else context.search_seconds
        self.searched: dict[str, Searched] = {}  # by candidate
        self.known: tuple[Trial, ...] = ()  # of earlier runs, best first
        self.tried: list[Trial] = []  # what became of this run's candidates, oldest first
        self.judged = False  # a judgement was begun
        self.fresh = False  # something was judged or searched that was not known
        self.seen: set[str] = set()
        self.judge_all: set[str] = set()  # candidates that are judged though a faster one is known
        self.promising: list[dict[str, Any]] = []  # the best configuration of each candidate so far
        self.fastest = math.inf  # µs of the best of them
        self.general: Trial | None = None  # the fastest kernel so far that serves every size
        self.special: Trial | None = None  # one that is faster and refuses some sizes
        self.done = 0.0  # share of the task's work, for the bar
        self.over = ""  # why its last proposer was asked no more
        self.failed: Verdict | None = None  # what is said of a defect that ended it

    def run(self) -> TaskResult:
        """Finds, records and writes the task's winner."""
        start = time.monotonic()
        try:
            of_run = self.context.run if self.context.starts_alone else ""
            self.known = known_trials(self.context.store, self.task, self.context.chip, of_run)
            start_from = [(trial.candidate, "known") for trial in self.known]
            if not self.context.starts_alone:
                others = foreign_trials(self.context.store, self.task, self.context.chip, self.known)
                self.promising += [trial.configuration for trial in others]
                start_from += [(trial.candidate, "foreign") for trial in others]
            self.try_all(start_from)
            for proposer in self.context.proposers:
                self.over = self.ask(proposer)
                if proposer.learns:
                    self.context.progress.say(f"{self.label}: asked no more: {self.over}")
                    proposer.reflect(self.request())
        except (RunStopped, EnvironmentLacks) as error:
            if isinstance(error, EnvironmentLacks) and not self.context.stopping.is_set():
                raise  # otherwise: its judge was ended because the run is
            if self.general is None:
                self.say_end(False, "stopped")
                return self.result("unfinished", self.why_unfinished(), start)
        except Exception as error:  # the others go on, and what this task has found stands
            self.fail(error)
        try:
            result = self.conclude(start)
        except EnvironmentLacks:
            raise
        except Exception as error:
            failed = self.fail(error)
            result = self.result(failed.status.value, failed.message, start)
        best = result.trial
        self.say_end(result.correct, f"{best.candidate.digest[:8]} {result.status}" if best else result.status)
        return result

    def fail(self, error: Exception) -> Verdict:
        """Notes a defect of ours that ends this task alone."""
        self.context.folder.log(f"{self.label}: {''.join(traceback.format_exception(error))}")
        self.failed = defect(error)
        self.over = self.failed.message
        self.context.progress.say(f"{self.label}: {self.over} (log.txt has all of it)")
        return self.failed

    def why_unfinished(self) -> str:
        """What the run's end kept from this task."""
        if self.rejected:
            return "stopped before a correct kernel was found"
        compiled = sum(one.compiled for one in self.searched.values())
        if compiled:
            span = sum(one.configurations for one in self.searched.values())
            return f"stopped with {compiled} of {span} configurations searched and none judged"
        return "stopped before anything was searched"

    # ------------------------------------------------------------------------------------------------ candidates

    def ask(self, proposer: Proposer) -> str:
        """Tries what a proposer offers, round after round; returns why no longer."""
        context = self.context
        for _ in range(context.rounds):
            context.check_time()
            self.say(self.done or 0.02, f"proposing ({proposer.name})")
            offer = proposer.propose(self.request())
            if offer.over:
                return offer.over
            if proposer.learns:
                self.judge_all |= {proposal.candidate.digest for proposal in offer.proposals}
            self.try_all([(proposal.candidate, proposal.move.value) for proposal in offer.proposals])
        return f"{count(context.rounds, 'round')} over"

    def request(self) -> ProposalRequest:
        """What a proposer may look at now."""
        context = self.context
        return ProposalRequest(
            self.task, context.chip, self.known, tuple(self.tried), self.label, context.timer.kind,
            context.part(self.label),
        )  # fmt: skip

    def try_all(self, candidates: list[tuple[Candidate, str]]) -> None:
        """Searches and judges candidates, each with the move that it came by; none twice."""
        new = [(c, m) for c, m in candidates if not (c.digest in self.seen or self.seen.add(c.digest))]  # type: ignore[func-returns-value]
        for candidate, _ in new:
            self.context.store.record_candidate(candidate, run=self.context.run)
        if new:
            with self.context.computing():
                self.decide(self.rankings(new))

    def rankings(self, candidates: list[tuple[Candidate, str]]) -> list[tuple[list[Trial], str]]:
        """Each candidate's configurations ranked: the fastest first, of equally fast ones the first proposed."""
        self.context.check_time()
        seconds = min(self.seconds, SEARCHING * self.context.left * self.part_of_time())
        end = time.monotonic() + seconds
        found: list[tuple[list[Trial], str]] = []
        for number, (candidate, move) in enumerate(candidates):
            self.context.check_stopping()
            if self.context.deadline is not None and time.monotonic() > end and any(trials for trials, _ in found):
                break  # the rest of the budget is for judging
            self.say(0.05 + 0.35 * number / len(candidates), "searching")
            found.append((self.ranking(candidate, seconds / len(candidates)), move))
        return sorted(found, key=lambda pair: _step(self.time(pair[0][0]).us if pair[0] else math.inf))

    def part_of_time(self) -> float:
        """This task's part of the time that is left: unfinished tasks share it, several at a time."""
        return min(1.0, self.context.at_once / max(1, len(self.context.unfinished)))

    def ranking(self, candidate: Candidate, seconds: float) -> list[Trial]:
        """The candidate's configurations: as they are known, else searched now and recorded."""
        context, kind, configurations = self.context, self.context.timer.kind, span(candidate.source)
        trials = self.stored(candidate)
        before = len(trials)
        if not searched(trials, kind, configurations if LIMIT is None else min(LIMIT, configurations)):
            self.promising += [trial.configuration for trial in rank(trials, kind)[:1]]  # of an earlier run, or a check
            found = self.search(candidate, trials, seconds)
            self.fresh |= bool(found)
            context.store.record(found, run=context.run, move="search")
            trials = self.stored(candidate)
        ranked = rank(trials, kind)
        pruned = sum(bool(trial.pruned) or _refused_early(trial) for trial in trials)
        self.searched[candidate.digest] = Searched(len(trials) - pruned, pruned, len(trials) - before, configurations)
        for trial in ranked[:1]:
            self.promising.append(trial.configuration)
            self.fastest = min(self.fastest, self.time(trial).us)
        refused = least([t for t in trials if t.standing in ("failed", "infeasible", "untimed")])
        if not ranked and refused is not None:
            self.hear(refused)
        return ranked

    def stored(self, candidate: Candidate) -> list[Trial]:
        """What the knowledge base has of the candidate at the task's sizes, by this version of the evaluator."""
        context, task = self.context, self.task
        return context.store.of_candidate(
            task.identity, candidate.digest, context.chip.name, task.sizes, context.evaluator
        )

    def search(self, candidate: Candidate, before: list[Trial], seconds: float) -> list[Trial]:
        """What a search finds that goes on from the candidate's trials of ``before``, in the order of trying."""
        context = self.context

        def progress(done: int, expected: int, _: Trial) -> None:
            context.check_stopping()
            self.say(self.done, f"searching {done}/{expected}")

        known = context.store.best(self.task.identity, context.chip.name, limit=1)
        first = [*self.promising, *(trial.configuration for trial in known)]
        limit = None if LIMIT is None else max(1, LIMIT - len(looked_at(before, context.timer.kind)))
        found = search(
            candidate,
            self.task,
            context.chip,
            jobs=context.jobs,
            assemblers=context.assemblers,
            elsewhere=context.elsewhere,
            limit=limit,
            first=first,
            known=before,
            near=context.spaces,
            against=self.fastest,
            seed=0 if context.timer.kind == "modelled" else context.seed,  # by the model a command repeats itself
            seconds=seconds,
            timer=context.timer,
            plans=context.plans,
            progress=progress,
        )
        return list(found.decided)

    # ------------------------------------------------------------------------------------------------ judging

    def decide(self, rankings: list[tuple[list[Trial], str]]) -> None:
        """Keeps the fastest general kernel that is correct, and the fastest other one if it is worth its conditions.

        Such are guards, and that weights are packed first: general is what serves every call as it comes, if there is
        one.
        """
        for number, (trials, move) in enumerate(rankings):
            if not trials:
                continue
            wanted = trials[0].candidate.digest in self.judge_all
            if self.general is not None and self.general.packs and not trials[0].packs:
                wanted = True  # the first that takes weights as they are
            if self.general is not None and not wanted and not self.worth(trials[0], self.general):
                self.hear(trials[0])
                continue
            self.say(0.4 + 0.6 * number / len(rankings), "judging")
            try:
                judged = self.judge_best(trials, move)
            except RunStopped:
                self.context.check_stopping()
                if self.general is None:
                    raise
                break  # the time is up, and there is a kernel
            if judged is None:
                continue
            self.hear(judged)
            if self.general is not None and self.general.packs and judged.general and not judged.packs:
                judged, self.general = self.general, judged
            self.settle(judged)
        if self.general is not None and self.special is not None and not self.worth(self.special, self.general):
            self.special = None

    def settle(self, judged: Trial) -> None:
        """Keeps a correct kernel, if it is faster than the one that is where it belongs."""
        general = judged.general and (not judged.packs or self.general is None or self.general.packs)
        best = self.general if general else self.special
        if best is not None and not self.time(judged) < self.time(best):
            return  # its fastest configuration was rejected
        if general:
            self.general = judged
        else:
            self.special = judged

    def time(self, trial: Trial) -> Measurement:
        """A ranked trial's time of the kind that this run compares by."""
        time = trial.timed(self.context.timer.kind)
        assert time is not None, "what is ranked has a time of the timer's kind"
        return time

    def worth(self, other: Trial, general: Trial) -> bool:
        """Whether a kernel is enough faster than the one that serves all sizes to be judged, and kept."""
        return self.time(other).over(self.time(general)) < WORTH

    def judge_best(self, trials: list[Trial], move: str) -> Trial | None:
        """Judges the candidate's configurations, fastest first, until one is correct."""
        heard: set[tuple[str, str]] = set()
        for trial in trials[:TRIES]:
            if self.judged:
                self.context.check_time()
            self.context.check_stopping()
            self.judged = True  # the best configuration of a task that was searched is judged, even if that is late
            if trial.correct and self.context.plans.of(trial) and self.as_far_as_here(trial):
                # The same evaluator judged this configuration at this shape before, so its verdict still holds.
                self.context.store.record([trial], run=self.context.run, move=move, reused=True)
                return trial
            judged = self.judge(trial, move)
            verdict = judged.verdict
            if judged.correct:
                return judged
            assert verdict is not None
            said = (verdict.status, verdict.message)
            if said in heard:
                break  # another configuration, the same fault: it is the file's
            heard.add(said)
            self.hear(judged)
        return None

    @property
    def winners(self) -> tuple[Trial, ...]:
        """The special kernel and the general one, as far as there are such: the faster one first."""
        return tuple(trial for trial in (self.special, self.general) if trial is not None)

    def as_far_as_here(self, trial: Trial) -> bool:
        """Whether a stored verdict was reached where this run's would be: on a GPU, if it has one."""
        return self.context.runner is None or (trial.verdict is not None and trial.verdict.stage is Stage.REPLAY)

    def judge(self, trial: Trial, move: str) -> Trial:
        """The trial with its verdict, recorded."""
        self.fresh = True
        context = self.context
        judged = context.judges.judge(trial, self.task, context.chip, context.plans, context.seed)
        context.store.record([judged], run=context.run, move=move, artifacts=context.plans.artifacts(judged))
        return judged

    def hear(self, trial: Trial) -> None:
        """Notes what became of a candidate, for proposers that are asked again."""
        self.tried.append(trial)
        verdict, time = trial.verdict, trial.timed(self.context.timer.kind)
        digest = trial.candidate.digest
        said = f"{self.label}: {digest[:8]} {trial.status}"
        if verdict is not None and not verdict.correct:
            said += f": {verdict.message}"
            self.context.folder.log(said)
        elif time is not None:
            said += f", {us(time.us, time.kind)} µs"
        elif trial.reason:
            said += f": {trial.reason}"
            self.context.folder.log(said)
        if digest in self.judge_all:
            self.context.progress.say(said)
        for proposer in self.context.proposers:
            if proposer.name == trial.candidate.proposer:
                proposer.hear(self.task, trial)

    @property
    def rejected(self) -> tuple[Trial, ...]:
        """What was tried and failed."""
        return tuple(trial for trial in self.tried if trial.verdict is not None and not trial.correct)

    # ------------------------------------------------------------------------------------------------ the end

    def conclude(self, start: float) -> TaskResult:
        """Writes and records the winners; the faster one stands in the table."""
        if self.general is None:
            if self.failed is not None:
                return self.result(self.failed.status.value, self.failed.message, start)
            if self.special is not None:
                return self.result("infeasible", "no candidate is correct at every size", start)
            if self.rejected:
                verdict = self.rejected[-1].verdict
                assert verdict is not None
                return self.result(verdict.status.value, verdict.message, start)
            reason = next((trial.reason for trial in self.tried if trial.reason), "nothing was proposed")
            return self.result("no-candidate", reason, start)
        folder = keep(self.context, self.task, self.general)
        if self.special is not None:
            folder = keep(self.context, self.task, self.special)
        return self.result("correct", "", start, self.special or self.general, folder)

    def result(
        self, status: str, message: str, start: float, trial: Trial | None = None, folder: str = ""
    ) -> TaskResult:
        of_all = self.searched.values()
        of_winner = of_all if trial is None else [self.searched[trial.candidate.digest]]
        effort = Effort(
            searched=sum(one.compiled for one in of_winner),
            configurations=sum(one.configurations for one in of_winner),
            files=len(of_all),
            of_all=sum(one.compiled for one in of_all),
            span=sum(one.configurations for one in of_all),
            pruned=sum(one.pruned for one in of_all),
            new=sum(one.new for one in of_all),
            seconds=round(time.monotonic() - start, 3),
            reused=not self.fresh,
        )
        return TaskResult(
            label=self.label,
            task=self.task,
            calls=self.calls,
            floor_us=floor_us(self.task, self.task.sizes, self.context.chip),
            status=status,
            message=message,
            trial=trial,
            time=self.time(trial) if trial is not None else None,
            plans=self.context.plans.of(trial) if trial is not None else (),
            rejected=self.rejected,
            effort=effort,
            folder=folder,
            over=self.over,
        )

    def say(self, done: float, now: str) -> None:
        self.done = done
        self.context.progress.step(self.label, done, 1.0, now)

    def say_end(self, good: bool, text: str) -> None:
        self.context.unfinished.pop(self.label, None)
        self.context.progress.end(self.label, good, text)
        self.context.folder.log(f"{self.label}: {text}")


def _step(us: float) -> float:
    """Times that differ by less than a specialised kernel is worth are one step."""
    return math.floor(math.log(us) / -math.log(WORTH)) if 0 < us < math.inf else us
