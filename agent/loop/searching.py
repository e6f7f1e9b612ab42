"""Configuration search: every configuration of one candidate file, compiled for a chip, timed and ranked.

The axes of the file span a product, and all of it is looked at while the time lasts (of one that is larger than POOL a
seeded quasi-random part).  By modelled times configurations are traced and priced first, for up to half of the time,
then compiled in order of their price (:mod:`.assay`).  By measured times the order is a sampler's, which chooses a
batch at a time (:mod:`.sampling`); others are traced and compiled while one is on the GPU, as many as keep the
assemblers busy.  What cannot win by its price is not compiled.  What does not run is kept with its reason,
behind all others.  A search that is given what an earlier one found goes on where that ended.

What comes out is a trial of each configuration, with a modelled time, and with the timer's where that is another kind;
those are ranked by the timer's.  It says nothing about right or wrong: that is the judge's.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluator.compile import Cache, cores
from evaluator.judging import defect, finished
from evaluator.plans import Plans
from evaluator.timing import MODEL, Timer
from evaluator.trace import read_axes
from evaluator.trial import begin
from knowledge_base.chips import Chip
from knowledge_base.errors import UserError
from knowledge_base.records import STANDINGS, Candidate, Kind, Trial, Verdict
from knowledge_base.rules import Space, features
from knowledge_base.snf.task import Task

from .assay import BATCH, Assay, Assemblers, Axes, Elsewhere, over, priced_out, too_slow
from .context import RunStopped
from .enumeration import configurations, listed
from .prior import Prior, prior_of
from .ranking import bar, in_file, leader, looked_at, weighed
from .sampling import Sampler

# By measured times a file is given up once so many of it are known and the best is so much slower than another file's.
ENOUGH, HOPEFUL = 60, 1.15
TRACING = 0.5  # of the time that is left may go to tracing and pricing before anything more is compiled
TRACES_PER_CHILD = 32
TOGETHER = 4  # neighbours in a list of configurations, which differ in hints if in anything: traced together, for less
POOL = 4096  # configurations that are looked at at most: all of any space that people write
MOST_TRACED = 3  # times as many as are to be tried, where many are pruned
# Configurations under way at once: with more a sampler chooses while it knows less.  The second where assemblers idle.
FEW, MOST = 8, 24

Progress = Callable[[int, int, Trial], None]  # configurations decided, configurations looked at, the trial


@dataclass(frozen=True)
class SearchResult:
    """A search's trials: ``decided`` in the order in which their fate was known, ``trials`` best first.

    ``total`` configurations exist; ``left_out`` were not looked at, because of the limit or because the time was over.
    kind: of the times that trials are ranked by.  verdict: why the file as a whole cannot be searched.
    """

    task: str
    chip: str
    sizes: Mapping[str, int]
    kind: Kind
    decided: tuple[Trial, ...]
    total: int
    left_out: int
    seconds: float
    verdict: Verdict | None = None

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(sorted(self.decided, key=lambda trial: _order(trial, self.kind)))

    @property
    def best(self) -> Trial | None:
        """The first configuration that runs; None if none does."""
        return next((trial for trial in self.trials if trial.standing in ("ranked", "spills")), None)

    def counts(self) -> dict[str, int]:
        """How many configurations have each standing."""
        return dict(Counter(trial.standing for trial in self.trials))


def search(
    candidate: Candidate,
    task: Task,
    chip: Chip,
    *,
    limit: int | None = None,
    assemblers: Assemblers | None = None,
    elsewhere: Elsewhere | None = None,
    jobs: int | None = None,
    first: Sequence[Axes] = (),
    known: Sequence[Trial] = (),
    near: Sequence[Space] = (),
    against: float = math.inf,
    seed: int = 0,
    seconds: float | None = None,
    cache: Cache | None = None,
    timer: Timer = MODEL,
    plans: Plans | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Ranks the candidate's configurations for ``task`` on ``chip`` by the timer's times at the task's sizes.

    Ranked ones without a time of it stand behind those that have one.

    limit: configurations looked at, or by measured times tried; by default all.
    assemblers: that several searches share; else this one has its own, by default one for each processor.  jobs: by
    modelled times, how many children trace at once, then how many configurations are compiled at once; by default as
    many as there are assemblers.  elsewhere: other machines that measure, too.
    first: configurations to look at before all others (the best ones of an earlier search); axes that they leave out
    have their defaults, those with values that the file does not list are ignored.
    known: trials of the candidate at these sizes, of earlier searches, with which this one goes on.
    near: what other work took; by measured times, what is tried first follows from those that are near.
    against: µs of the task's best kernel so far; a file that stays far from it is given up.
    plans: what is traced is put there.
    seconds: no compilation is begun later than this; the first always is.
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
    done = looked_at(known, timer.kind)
    chosen = list(configurations(axes, POOL if measures else min(POOL, (limit or POOL) + len(done)), first, seed))
    took = {i: done[in_file(one)] for i, one in enumerate(chosen) if in_file(one) in done}
    warm = len(listed(first, axes)) + 1  # behind those is the default
    expected = min(limit or POOL, len(chosen) - len(took))
    deadline = math.inf if seconds is None else started + seconds
    assemblers = assemblers or Assemblers(jobs or cores())
    plans = Plans() if plans is None else plans
    assay = Assay(candidate, task, chip, assemblers, cache, timer, plans)
    run = _Search(assay, assemblers, jobs or assemblers.count, elsewhere, progress, expected, deadline, against)
    run.lower_bar(known)
    verdict: Verdict | None = None
    try:
        if measures:
            found = [features(one, candidate.source) for one in chosen]
            prior = prior_for(near, task, chip, found) if near else None
            run.sample(chosen, Sampler(chosen, warm, seed, took, prior))
        else:
            new = [(i, one) for i, one in enumerate(chosen) if i not in took][:expected]
            run.go([one for _, one in new], sum(i < warm for i, _ in new), seed)
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
        decided=tuple(run.trials),
        total=total,
        left_out=total - len(run.trials) - len(took),
        seconds=round(time.monotonic() - started, 3),
        verdict=verdict,
    )


def prior_for(near: Sequence[Space], task: Task, chip: Chip, found: Sequence[Mapping[str, Any]]) -> Prior | None:
    """What near work says of a file's configurations, by their features; None where nothing is near enough."""
    ops, dtype = (node.op for node in task.graph.nodes), task.outputs[0].dtype
    return prior_of(near, task.name, ops, dtype, task.sizes, chip.name, found)


# ---------------------------------------------------------------------------------------------------- the search


class _Search:
    """One search's state: configurations decided, and the best time so far."""

    def __init__(
        self, assay: Assay, assemblers: Assemblers, jobs: int, elsewhere: Elsewhere | None, progress: Progress | None,
        expected: int, deadline: float, against: float,
    ) -> None:  # fmt: skip
        self.assay, self.assemblers, self.jobs, self.elsewhere = assay, assemblers, jobs, elsewhere
        self.progress, self.expected, self.deadline, self.against = progress, expected, deadline, against
        self.kind = assay.timer.kind
        self.trials: list[Trial] = []
        self.fastest: Trial | None = None
        self.bar = math.inf  # what prices are held to
        self.begun = False
        self.under_way = 0  # configurations, on this machine

    def decide(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.lower_bar([trial])
        if self.progress:
            self.progress(len(self.trials), self.expected, trial)

    def lower_bar(self, trials: Sequence[Trial]) -> None:
        """Prices are held to the fastest of these, too."""
        known = [self.fastest] if self.fastest else []
        self.fastest = leader([*known, *trials], self.kind)
        self.bar = bar(self.fastest, self.kind)

    @property
    def best(self) -> float:
        """µs by the timer."""
        time = self.fastest.timed(self.kind) if self.fastest else None
        return time.us if time else math.inf

    @property
    def late(self) -> bool:
        """Whether nothing new is to be begun; the first always is."""
        return self.begun and time.monotonic() > self.deadline

    # ------------------------------------------------------------------------------------------------ by the model

    def go(self, chosen: Sequence[Axes], warm: int, seed: int) -> None:
        """Traces, prices, compiles and models while the time lasts, the first ``warm`` configurations before others.

        Where tracing ends before it has seen all, what it saw is compiled, then it goes on.
        """
        rest = [*chosen[:warm], *_dealt(chosen[warm:], seed)]
        while rest and not self.late:
            now = time.monotonic()
            traced, rest = self.traced(rest, now + TRACING * (self.deadline - now))
            self.compiled(self.priced(traced, warm))
            warm = 0

    def traced(self, chosen: Sequence[Axes], until: float) -> tuple[list[Trial], list[Axes]]:
        """A trial for each, several children at once, and what was not begun by then; the first batch always is."""
        batches = [chosen[i : i + TRACES_PER_CHILD] for i in range(0, len(chosen), TRACES_PER_CHILD)]

        def in_time(number: int) -> list[Trial] | None:
            return self.assay.traced(batches[number]) if not number or time.monotonic() < until else None

        made: list[Trial] = []
        left: list[Axes] = []
        pool = ThreadPoolExecutor(max_workers=max(1, min(self.jobs, len(batches))), thread_name_prefix="tracing")
        try:
            for batch, trials in zip(batches, pool.map(in_time, range(len(batches))), strict=True):
                if trials is None:
                    left += batch
                    continue
                made += trials
                if self.progress:
                    self.progress(len(self.trials), self.expected, trials[-1])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return made, left

    def priced(self, trials: Sequence[Trial], warm: int) -> deque[tuple[float, Trial]]:
        """Those that may be compiled, in order, with their prices; the first ``warm`` go first.

        Of configurations that cost the same before they are compiled, the second waits for the first of the others:
        what the price can't tell apart (an order of tiles) is rarely told apart by the cubin.
        """
        found: list[tuple[int, float, int, Trial]] = []
        turns: dict[float, int] = {}
        for i, trial in enumerate(trials):
            if over(trial):
                self.decide(trial)
                continue
            price = self.assay.price(trial)
            turns[price] = turns.get(price, 0) + 1
            found.append((0 if i < warm else turns[price], price, i, trial))
        found.sort(key=lambda one: one[:3])
        return deque((price, trial) for _, price, _, trial in found)

    def compiled(self, priced: deque[tuple[float, Trial]]) -> None:
        """Compiles and models in this order, as many at once as there are assemblers, while the time lasts."""
        under_way: set[Future[Trial]] = set()
        pool = ThreadPoolExecutor(max_workers=self.jobs, thread_name_prefix="search")
        try:
            while True:
                while priced and len(under_way) < self.jobs and not self.late:
                    price, trial = priced.popleft()
                    if too_slow(price, self.bar):
                        self.decide(priced_out(trial, price, self.bar))
                    else:
                        under_way.add(pool.submit(self.assay.tried, trial))
                        self.begun = True
                if not under_way:
                    break
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for one in done:
                    self.decide(one.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        for price, trial in priced:  # there was no time for: some need none
            if too_slow(price, self.bar):
                self.decide(priced_out(trial, price, self.bar))

    # ------------------------------------------------------------------------------------------------ by a clock

    def sample(self, chosen: Sequence[Axes], sampler: Sampler) -> None:
        """Tries what the sampler asks for, as many as are expected, while the time lasts; tells it what they took.

        What is pruned cost a trace, and was no try.
        """
        tries, most = 0, MOST_TRACED * self.expected
        enough = ENOUGH - sampler.told
        asked: dict[Future[list[Trial]], tuple[list[int], bool]] = {}  # places in the list; whether it is done here
        pool = ThreadPoolExecutor(
            max_workers=MOST + (self.elsewhere.batches if self.elsewhere else 0), thread_name_prefix="search"
        )
        try:
            while True:
                hopeless = tries >= enough and self.best > HOPEFUL * self.against
                while (count := min(BATCH, most, self.expected - tries, sampler.left)) > 0:
                    if self.late or hopeless:
                        break
                    here = self.under_way + BATCH <= (MOST if self.assemblers.idle else FEW)
                    if not here and not (self.elsewhere and self.elsewhere.take()):
                        break
                    places = sampler.ask(count)
                    some = [chosen[place] for place in places]
                    asked[pool.submit(self.assay.traced if here else self.there, some)] = places, here
                    tries, most, self.begun = tries + count, most - count, True
                    if here:
                        self.expect(count)
                if not asked:
                    return
                for done in wait(asked, return_when=FIRST_COMPLETED).done:
                    places, here = asked.pop(done)
                    for place, trial in zip(places, done.result(), strict=True):
                        if not trial.evidence:  # it was traced, no more
                            trial = self.assay.held_to(trial, self.bar)
                            if not over(trial):
                                asked[pool.submit(self.tried, trial)] = [place], here
                                continue
                        if here:
                            self.expect(-1)
                        self.decide(trial)
                        time = trial.timed(self.kind)
                        sampler.tell(place, math.inf if time is None else time.us)
                        tries -= bool(trial.pruned)
        finally:
            self.expect(-self.under_way)  # where the run is stopped
            pool.shutdown(wait=False, cancel_futures=True)

    def expect(self, configurations: int) -> None:
        """So many more are under way on this machine; negative: fewer."""
        self.under_way += configurations
        self.assemblers.expect(configurations)

    def there(self, some: Sequence[Axes]) -> list[Trial]:
        """A batch that another machine does; this one where that could not."""
        assert self.elsewhere is not None
        answer = self.elsewhere.assayed(self.assay.candidate, self.assay.task, some, self.bar)
        if answer is None:
            return self.assay.assayed(some, self.bar)
        trials, plans = answer
        self.assay.plans.put(*plans)
        return trials

    def tried(self, trial: Trial) -> list[Trial]:
        return [self.assay.tried(trial)]


def _dealt(chosen: Sequence[Axes], seed: int) -> list[Axes]:
    """The same in an order that is even over the space, though it is cut short; neighbours stay together."""
    together = [chosen[i : i + TOGETHER] for i in range(0, len(chosen), TOGETHER)]
    random.Random(seed).shuffle(together)
    return [one for some in together for one in some]


def _order(trial: Trial, kind: Kind) -> tuple[int, float, str]:
    us = weighed(trial, kind)
    place = "ranked" if us < math.inf and trial.standing == "spills" else trial.standing
    return STANDINGS.index(place), us, in_file(trial.configuration)
