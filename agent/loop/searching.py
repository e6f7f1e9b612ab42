"""Configuration search: every configuration of one candidate file, compiled for a chip, timed and ranked.

The axes of the file span a product.  By modelled times, a seeded quasi-random part of one that is larger than the limit
is looked at (the default, its neighbours along one axis, then Halton points): each configuration is traced, priced by
the model with an *ideal* cubin, and compiled in order of that price.  By measured times a sampler chooses, a batch at a
time (:mod:`.sampling`), and the next ones are compiled while one is on the GPU.  As no real cubin is faster than the
ideal one, what is priced more than PRUNE times the best time so far is not compiled: it cannot win.  Spilling and
unlaunchable configurations are kept with their reason, behind all others.

What comes out is a trial of each configuration, with a modelled time, and with the timer's where that is another kind;
those are ranked by the timer's.  It says nothing about right or wrong: that is the judge's.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from evaluator.compile import Cache, compile_kernels, cores
from evaluator.judging import Rejected, defect, finished
from evaluator.kernel import Kernel, refusal
from evaluator.plans import Plans
from evaluator.tileir import TileIRError
from evaluator.timing import MODEL, Timer, modelled
from evaluator.trace import Request, Traced, read_axes, trace
from evaluator.trial import begin
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import FULL_RATE, Chip
from knowledge_base.errors import UserError
from knowledge_base.records import STANDINGS, Candidate, CompileEvidence, Kind, Trial, Verdict
from knowledge_base.snf.task import Task

from .context import RunStopped
from .enumeration import configurations, listed
from .sampling import Sampler

LIMIT = 64  # configurations looked at unless told
PRUNE = 1.1  # the ideal price may be this much above the best time before a configuration is given up
CHUNK = 4  # compiled between two looks at the best time, times the jobs
TRACES_PER_CHILD = 32
POOL = 4096  # configurations that a sampler chooses from
MOST_TRACED = 3  # times as many as are to be tried, where many are pruned
BATCH = 4  # that it chooses at a time
PREPARING = 3  # batches that are traced and compiled at once: with more, it chooses while it knows less
ASSEMBLY_S = 20.0  # of processor time: a kernel that the assembler chews on for longer is unrolled beyond any use
REGISTER_FILE = 256 * 1024  # bytes of registers of an SM, and of tensor memory where there is one

Axes = Mapping[str, Any]
Progress = Callable[[int, int, Trial], None]  # configurations decided, configurations looked at, the trial


@dataclass(frozen=True)
class SearchResult:
    """``trials`` best first.  ``total`` configurations exist, ``left_out`` were not looked at because of the limit.

    kind: of the times that trials are ranked by.  verdict: why the file as a whole cannot be searched.
    """

    task: str
    chip: str
    sizes: Mapping[str, int]
    kind: Kind
    trials: tuple[Trial, ...]
    total: int
    left_out: int
    seconds: float
    verdict: Verdict | None = None

    @property
    def best(self) -> Trial | None:
        """The fastest configuration; by modelled times one that does not spill, if one does not; None if none runs."""
        return next((trial for trial in self.trials if trial.standing in ("ranked", "spills")), None)

    def counts(self) -> dict[str, int]:
        """How many configurations have each standing."""
        return dict(Counter(trial.standing for trial in self.trials))


def search(
    candidate: Candidate,
    task: Task,
    chip: Chip,
    *,
    limit: int = LIMIT,
    jobs: int | None = None,
    slots: threading.Semaphore | None = None,
    first: Sequence[Axes] = (),
    seed: int = 0,
    seconds: float | None = None,
    cache: Cache | None = None,
    timer: Timer = MODEL,
    plans: Plans | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Ranks the candidate's configurations for ``task`` on ``chip`` by the timer's times at the task's sizes.

    Ranked ones without a time of it stand behind those that have one.

    jobs: assemblers at once.  slots: of which each takes one, where several searches share them; then this one may have
    more of them when others need none.
    first: configurations to look at before all others (the best ones of an earlier search); axes that they leave out
    have their defaults, those with values that the file does not list are ignored.
    plans: what is traced is put there.
    seconds: no compilation is begun later than this (what is left is pruned); the first chunk always is.
    Raises EnvironmentLacks without the toolchain; what is wrong with the candidate is in the trials, and where that is
    the file as a whole, in its default configuration's.
    """
    started = time.monotonic()
    axes = read_axes(candidate.source)
    if isinstance(axes, Verdict):
        refused = begin(candidate, task, chip).fuller(verdict=finished(axes, candidate.source))
        return SearchResult(task.name, chip.name, task.sizes, timer.kind, (refused,), 0, 0, 0.0, refused.verdict)
    total = math.prod(len(values) for values in axes.values())
    measures = timer.kind == "measured"
    chosen = list(configurations(axes, max(limit, POOL) if measures else limit, first, seed))
    warm = len(listed(first, axes))
    deadline = math.inf if seconds is None else started + seconds
    expected = min(limit, len(chosen))
    jobs = jobs or cores()
    slots = slots or threading.Semaphore(jobs)
    run = _Search(candidate, task, chip, jobs, slots, cache, timer, plans, progress, expected, deadline)
    verdict: Verdict | None = None
    try:
        if measures:
            run.sample(chosen, Sampler(chosen, warm + 1, seed))  # behind the warm ones is the default
        else:
            run.go(run.trace(chosen), warm)
    except (UserError, RunStopped):  # this machine lacks something, or the caller has seen enough
        raise
    except Exception as error:
        verdict = defect(error)
        whole = begin(candidate, task, chip).fuller(verdict=verdict)
        run.trials += [whole] if whole.key not in {trial.key for trial in run.trials} else []
    return SearchResult(
        task=task.name,
        chip=chip.name,
        sizes=task.sizes,
        kind=timer.kind,
        trials=tuple(sorted(run.trials, key=lambda trial: _order(trial, timer.kind))),
        total=total,
        left_out=total - len(run.trials) if measures else total - len(chosen),
        seconds=round(time.monotonic() - started, 3),
        verdict=verdict,
    )


# ---------------------------------------------------------------------------------------------------- the search


class _Search:
    """One search's state: configurations decided, plans traced, kernels compiled, the best time so far."""

    def __init__(
        self, candidate: Candidate, task: Task, chip: Chip, jobs: int, slots: threading.Semaphore,
        cache: Cache | None, timer: Timer, plans: Plans | None, progress: Progress | None, expected: int,
        deadline: float,
    ) -> None:  # fmt: skip
        self.candidate, self.task, self.chip, self.cache, self.timer = candidate, task, chip, cache, timer
        self.jobs, self.slots = jobs, slots
        self.progress, self.expected, self.deadline = progress, expected, deadline
        self.trials: list[Trial] = []
        self.plans = Plans() if plans is None else plans
        self.seen: dict[str, Any] = {}  # bytecode hash → Compiled or Verdict
        self.best = math.inf  # µs by the timer

    def decide(self, trial: Trial) -> None:
        self.trials.append(trial)
        time = trial.timed(self.timer.kind)
        if trial.standing == "ranked" and time is not None:
            self.best = min(self.best, time.us)
        if self.progress:
            self.progress(len(self.trials), self.expected, trial)

    def trace(self, chosen: Sequence[dict[str, Any]]) -> list[Trial]:
        """A trial for each configuration, a batch a child: with its plan, or with the tracer's verdict."""
        batches = [chosen[i : i + TRACES_PER_CHILD] for i in range(0, len(chosen), TRACES_PER_CHILD)]

        def batch(some: Sequence[dict[str, Any]]) -> list[Traced | Verdict]:
            requests = [Request(self.task.sizes, axes, "sample") for axes in some]
            return trace(self.candidate.source, self.task, requests, self.chip)

        with ThreadPoolExecutor(max_workers=max(1, min(self.jobs, len(batches)))) as pool:
            answers = [answer for part in pool.map(batch, batches) for answer in part]
        default = begin(self.candidate, self.task, self.chip)
        made: list[Trial] = []
        for axes, answer in zip(chosen, answers, strict=True):
            trial = default.fuller(configuration=axes)
            if isinstance(answer, Verdict):
                made.append(trial.fuller(verdict=answer))
                continue
            self.plans.put(answer)
            made.append(trial.fuller(plans=(answer.digest,)))
        return made

    def go(self, trials: Sequence[Trial], warm: int) -> None:
        """Prices, prunes, compiles and models; the first ``warm`` configurations go first.

        Of configurations that cost the same before they are compiled, the second waits for the first of the others:
        what the price can't tell apart (an order of tiles) is rarely told apart by the cubin.
        """
        priced: list[tuple[int, float, int, Trial]] = []
        turns: dict[float, int] = {}
        for i, trial in enumerate(map(self.readable, trials)):
            if _over(trial):
                self.decide(trial)
                continue
            price = self.ideal(self.plans.of(trial)[0])
            turns[price] = turns.get(price, 0) + 1
            priced.append((0 if i < warm else turns[price], price, i, trial))
        priced.sort(key=lambda p: p[:3])
        while priced:
            chunk: list[Trial] = []
            while priced and len(chunk) < CHUNK * self.jobs:
                _, price, _, trial = priced.pop(0)
                why = self.hopeless(price)
                if why:
                    self.decide(trial.fuller(pruned=why))
                else:
                    chunk.append(trial)
            self.compile(chunk)
            for trial in chunk:
                self.decide(self.compiled(trial))

    def sample(self, chosen: Sequence[dict[str, Any]], sampler: Sampler) -> None:
        """Tries what the sampler asks for, as many as are expected, and tells it what they took.

        While a batch is on the GPU others are traced and compiled, which were asked for before its times are known.
        """
        self.jobs = BATCH  # each batch whole, as far as there are slots
        with ThreadPoolExecutor(max_workers=PREPARING, thread_name_prefix="compile") as pool, ExitStack() as stack:
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # where the run is stopped
            asked, most = 0, MOST_TRACED * self.expected
            batches: deque[Future[list[tuple[int, Trial]]]] = deque()
            while True:
                while (
                    len(batches) <= PREPARING
                    and not self.late
                    and (count := min(BATCH, most, self.expected - asked)) > 0
                ):
                    places = sampler.ask(count)
                    if not places:
                        break
                    asked, most = asked + len(places), most - len(places)
                    batches.append(pool.submit(self.prepared, places, [chosen[place] for place in places]))
                if not batches:
                    return
                for place, trial in batches.popleft().result():
                    done = trial if _over(trial) else self.compiled(trial)
                    self.decide(done)
                    time = done.timed(self.timer.kind)
                    sampler.tell(place, math.inf if time is None else time.us)
                    asked -= bool(done.pruned)  # it cost a trace, and was no try

    @property
    def late(self) -> bool:
        """Whether nothing new is to be begun; the first batch always is."""
        return bool(self.trials) and time.monotonic() > self.deadline

    def prepared(self, places: Sequence[int], some: Sequence[dict[str, Any]]) -> list[tuple[int, Trial]]:
        """Their trials, compiled, but for what is refused or pruned."""
        trials = []
        for trial in map(self.readable, self.trace(some)):
            if not _over(trial):
                trial = trial.fuller(pruned=self.too_slow(self.ideal(self.plans.of(trial)[0])))
            trials.append(trial)
        self.compile([trial for trial in trials if not _over(trial)])
        return list(zip(places, trials, strict=True))

    def readable(self, trial: Trial) -> Trial:
        """The trial, with a verdict where its Tile IR cannot be read, pruned where no chip could run it."""
        if trial.verdict is not None:
            return trial
        one = self.plans.of(trial)[0]
        why = self.refused(one) or self.too_large(one)
        if isinstance(why, Verdict):
            return trial.fuller(verdict=finished(why, self.candidate.source))
        return trial.fuller(pruned=why) if why else trial

    def hopeless(self, price: float) -> str:
        """Why a configuration of this ideal price need not be compiled; empty if it should be."""
        late = self.seen and time.monotonic() > self.deadline
        return self.too_slow(price) or ("the time allowed for the search was over" if late else "")

    def too_slow(self, price: float) -> str:
        """Why a configuration of this ideal price can't win; empty if it can."""
        if price > PRUNE * self.best:
            return f"an ideal cubin would take {price:.1f} µs by the model, another configuration takes {self.best:.1f}"
        return ""

    def refused(self, one: Launchable) -> Verdict | None:
        """Why a kernel's Tile IR cannot be read; None if all can."""
        try:
            for digest in one.plan.kernels:
                Kernel.of(one.kernels[digest]).module  # noqa: B018 (reading it is the question)
        except TileIRError as error:
            return refusal(error)
        return None

    def too_large(self, one: Launchable) -> str:
        """Why no chip can hold a kernel's accumulator; empty if one can."""
        size = max((Kernel.of(one.kernels[digest]).counts.accumulator_bytes for digest in one.plan.kernels), default=0)
        if size <= REGISTER_FILE:
            return ""
        return f"an accumulator of {size // 1024} KiB: an SM holds {REGISTER_FILE // 1024}"

    def ideal(self, one: Launchable) -> float:
        """The modelled time with cubins that use few registers, no shared memory and the fastest instructions."""
        evidence = {k: _ideal(k, self.chip) for k in one.plan.kernels}
        return modelled(self.task, self.task.sizes, one.plan, one.kernels, evidence, self.chip).us

    def compile(self, chunk: Sequence[Trial]) -> None:
        """Compiles the chunk's kernels that no earlier configuration shares."""
        traced = [self.plans.of(trial)[0] for trial in chunk]
        new = {k: one.kernels[k] for one in traced for k in one.plan.kernels if k not in self.seen}
        answers = compile_kernels(
            new, [self.chip.arch], jobs=self.jobs, slots=self.slots, cache=self.cache, seconds=ASSEMBLY_S
        )
        self.seen |= {digest: answer for (digest, _), answer in answers.items()}

    def compiled(self, trial: Trial) -> Trial:
        """The trial of a configuration whose kernels are compiled."""
        one = self.plans.of(trial)[0]
        answers = [self.seen[k] for k in one.plan.kernels]
        refused = next((a for a in answers if isinstance(a, Verdict)), None)
        if refused:
            return trial.fuller(verdict=finished(refused, self.candidate.source))
        trial = trial.fuller(evidence=tuple(a.evidence for a in answers))
        modelled = MODEL.time(trial, self.task, one)
        if modelled is None:
            return trial  # no block fits: there is nothing to time
        trial = trial.fuller(measurements=(modelled,))
        if self.timer.kind == MODEL.kind:
            return trial
        try:
            timed = self.timer.time(trial, self.task, one)
        except Rejected as rejected:  # a clock looks at results, too
            return trial.fuller(verdict=finished(rejected.verdict, self.candidate.source))
        return trial if timed is None else trial.fuller(measurements=(modelled, timed))


def _over(trial: Trial) -> bool:
    """Whether it is not compiled: refused, or pruned."""
    return trial.verdict is not None or bool(trial.pruned)


def _ideal(kernel: str, chip: Chip) -> CompileEvidence:
    return CompileEvidence(
        arch=chip.arch, kernel=kernel, symbol="", registers=32, stack_bytes=0, spill_bytes=0, shared_bytes=0,
        mma=FULL_RATE[chip.arch], tma=False, threads=128,
    )  # fmt: skip


def _order(trial: Trial, kind: Kind) -> tuple[int, float, str]:
    time, place = trial.timed(kind), trial.standing
    us = math.inf if time is None else time.us
    if kind == "measured" and place == "spills" and time is not None:
        place = "ranked"  # what the spills cost is in its time
    return STANDINGS.index(place), us, repr(sorted(trial.configuration.items()))
