"""The experiment itself: as many places as it takes to refute a rule, one after another, until that is decided.

At a place pairs are timed, one group of configurations after another, so that what drifts meets both sides; a few
groups at a time until the place says the same twice, as mining would (:mod:`knowledge_base.rules.mining`).  Were its
first word taken, a condition without effect would be given one in 27 of 100 experiments; so it is in 14, and in 11
where all groups are timed (600 simulated experiments of 64 groups of two whose times differ by 2 to 20% by chance).
Nothing is pruned: a search leaves the slower half of most pairs untimed, which is why it can say so little of a rule.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agent.loop import Assay, Assemblers, over
from evaluator.plans import Plans
from evaluator.timing import Timer
from knowledge_base.chips import Chip
from knowledge_base.errors import UserError
from knowledge_base.records import Trial
from knowledge_base.rules import (
    Direction,
    Mined,
    RuleForm,
    Space,
    Timed,
    in_spaces,
    judged,
    to_refute,
)
from knowledge_base.snf.task import Task
from knowledge_base.store import Store

from .pairing import Setting
from .places import PairedPlace, nothing_differs, place_of, places

MOVE = "verify"  # of what is recorded

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Experiment:
    """What would refute a rule.  known: measured spaces.  places: if all say the contrary, it is not believed any more.

    ``enough``: there are as many places as that takes.
    """

    form: RuleForm
    claimed: Direction
    chip: Chip
    known: tuple[Space, ...]
    places: tuple[PairedPlace, ...]
    enough: bool


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a place said.  found: None where no pair was left to compare.  fastest: µs with the rule's values, without.

    failed: configurations that were refused, or wrong on the GPU.
    """

    place: PairedPlace
    timed: int
    failed: int
    found: Mined | None
    fastest: tuple[float | None, float | None]

    @property
    def says(self) -> Direction | None:
        """None: nothing."""
        return self.found.direction if self.found is not None and self.found.settled else None


def planned(
    store: Store, form: RuleForm, claimed: Direction, chip: Chip, known: Sequence[Space], seed: int = 0,
    task: Task | None = None,
) -> Experiment:  # fmt: skip
    """The cheapest experiment that could refute the rule on ``chip``, or what ``task``, at its sizes, has to say of it.

    Raises UserError where no file that is at hand can tell.
    """
    needed = max(1, to_refute(known, form, claimed))
    if task is not None:
        only = place_of(store, form, chip, known, seed, task)
        return Experiment(form, claimed, chip, tuple(known), (only,), needed == 1)
    found = tuple(itertools.islice(places(store, form, chip, known, seed), needed))
    if not found:
        mend = "A run of a task in its scope brings files; or name a task and sizes there."
        raise UserError(nothing_differs(form), mend)
    return Experiment(form, claimed, chip, tuple(known), found, len(found) == needed)


def verified(
    experiment: Experiment, store: Store, run: str, timer: Timer, jobs: int, until: float, say: Say
) -> Iterator[Outcome]:
    """Measures place by place and records it as of ``run``; ends as soon as the rule is refuted or can't be any more.

    jobs: assemblers at once.  until: monotonic seconds after which nothing is begun; the first pairs always are.
    """
    spaces, assemblers = list(experiment.known), Assemblers(jobs)
    for number, place in enumerate(experiment.places, 1):
        if number > 1 and time.monotonic() > until:
            return
        work = _Work(experiment, place, store, run, timer, assemblers, until, say)
        outcome = work.outcome()
        yield outcome
        spaces += work.spaces
        needed = to_refute(spaces, experiment.form, experiment.claimed)
        if not 0 < needed <= len(experiment.places) - number:
            return


class _Work:
    """One place under way."""

    def __init__(
        self, experiment: Experiment, place: PairedPlace, store: Store, run: str, timer: Timer, assemblers: Assemblers,
        until: float, say: Say,
    ) -> None:  # fmt: skip
        self.experiment, self.place, self.store, self.run, self.timer = experiment, place, store, run, timer
        self.until, self.say = until, say
        chip, plans = experiment.chip, Plans()
        self.assays = {
            file.digest: Assay(file, place.task, chip, assemblers, None, timer, plans) for file in place.pairing.files
        }
        self.timed: list[tuple[Setting, float]] = []
        self.failed = 0

    def outcome(self) -> Outcome:
        self.store.record_tasks([self.place.task])
        pairing, found, before = self.place.pairing, None, None
        for batch in pairing.batches:
            if self.timed and time.monotonic() > self.until:
                break
            self.say(f"{_named(self.place)}: {len(self.timed)} of up to {pairing.configurations} configurations timed")
            self.try_groups(batch)
            found = judged(self.spaces, self.experiment.form, self.experiment.claimed, clock=self.experiment.known)
            said = found.direction if found is not None and found.settled else None
            if said is not None and said == before:
                break
            before = said
        fastest = [
            min((us for one, us in self.timed if one.having == side), default=None) for side in (True, False)
        ]  # fmt: skip
        return Outcome(self.place, len(self.timed), self.failed, found, (fastest[0], fastest[1]))

    @property
    def spaces(self) -> list[Space]:
        """What was timed here, as the base will have it."""
        task = self.place.task
        ops = tuple(dict.fromkeys(node.op for node in task.graph.nodes))
        return in_spaces(
            Timed(
                task.name, ops, task.sizes, task.outputs[0].dtype, self.experiment.chip.name, self.run, one.axes,
                one.candidate.source, us,
            )
            for one, us in self.timed
        )  # fmt: skip

    def try_groups(self, groups: Sequence[Sequence[Setting]]) -> None:
        """Traces and compiles all of them, then times group after group, and records what became of them."""
        ready: dict[int, Trial] = {}  # by the setting's identity
        done: list[Trial] = []
        for digest, assay in self.assays.items():
            mine = [one for group in groups for one in group if one.candidate.digest == digest]
            traced = assay.traced([one.axes for one in mine])
            ready |= {id(one): trial for one, trial in zip(mine, traced, strict=True) if not over(trial)}
            done += [trial for trial in traced if over(trial)]
            assay.compile([ready[id(one)] for one in mine if id(one) in ready])
        self.failed += len(done)
        try:
            for turn, group in enumerate(groups):
                for one in group if turn % 2 else reversed(group):
                    if id(one) in ready:
                        done.append(self.try_one(one, ready[id(one)]))
        finally:  # also of what is interrupted
            self.store.record(done, run=self.run, move=MOVE)

    def try_one(self, one: Setting, trial: Trial) -> Trial:
        """The trial with its time, where it has one."""
        trial = self.assays[one.candidate.digest].timed(trial)
        took = trial.timed(self.timer.kind)
        if took is not None and took.status == "stable" and trial.verdict is None:
            self.timed.append((one, took.us))
        else:
            self.failed += 1
        return trial


def _named(place: PairedPlace) -> str:
    return f"{place.task.name} at {', '.join(f'{name}={size}' for name, size in place.task.sizes.items())}"
