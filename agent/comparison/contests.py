"""Contests: a target's parts, and the target itself, each by the best kernels that are known, beside its baselines."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.loop import PLAN, WHOLE, composition, label_tasks
from evaluator.judging import Rejected
from evaluator.plans import Plans
from evaluator.replay import OURS, AnyRunner, Composition, Spoiled, cubins_of
from evaluator.timing import PROCESSES, measured
from knowledge_base.chips import Chip
from knowledge_base.records import Trial, Verdict
from knowledge_base.snf import decompose
from knowledge_base.snf.graph import Graph
from knowledge_base.snf.task import Task
from knowledge_base.store import Store

ROUNDS = 3  # there and back: 24 samples of each in a process
SECONDS = 550.0  # of one contest in one process: the first one waits for compilers that search


@dataclass
class Contest:
    """``trials``: the winner of a part; of the whole one for each call.  calls: how often the target makes it.

    series: each contestant's samples, by name and process.  lacking: why a baseline has none.  rejected: what is wrong
    with our own.
    """

    name: str
    task: Task
    trials: tuple[Trial, ...]
    chip: Chip
    composition: Composition | None  # None where the assembler has no cubin
    calls: int = 1
    series: dict[str, list[list[float]]] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    rejected: Verdict | None = None

    @property
    def open(self) -> bool:
        return self.rejected is None and self.composition is not None and len(self.series.get(OURS, ())) < PROCESSES

    def sample(self, process: AnyRunner, seed: int) -> None:
        if not self.open:
            return
        try:
            said = self._asked(process, seed)
        except Rejected as rejected:
            self.rejected = rejected.verdict
            return
        for name, found in said.items():
            if isinstance(found, str):
                self._lacks(name, found)
            else:
                self.series.setdefault(name, []).append(found)

    def _asked(self, process: AnyRunner, seed: int) -> dict[str, list[float] | str]:
        while True:
            try:
                asked = (self.composition, self.chip, seed, ROUNDS, tuple(self.lacking))
                said: dict[str, list[float] | str] = process.call("compared", *asked, seconds=SECONDS)
                return said
            except Spoiled as spoiled:
                self._lacks(*spoiled.args)  # once more, without it

    def _lacks(self, name: str, why: str) -> None:
        """What fails in one process has no time."""
        self.lacking[name] = why
        self.series.pop(name, None)

    @property
    def timed(self) -> Trial | None:
        """The part's trial with the time that was measured here."""
        if OURS not in self.series or len(self.trials) != 1:
            return None
        (trial,) = self.trials
        time = measured(self.series[OURS], self.task, trial.shape, self.chip)
        return trial.fuller(measurements=(*trial.measurements, time))


def gathered(store: Store, graph: Graph, chip: Chip) -> tuple[list[Contest], list[str]]:
    """A contest for each distinct task that has a kernel, and one for the whole; and the names of those without.

    A kernel is the fastest correct one, of those that the base knows on this chip at the task's sizes.
    The whole is there if all its tasks are, and there are several.
    """
    decomposition = decompose(graph, PLAN)
    plans = Plans(store)
    found: dict[tuple[str, tuple[tuple[str, int], ...]], Trial] = {}
    contests, missing = [], []
    for task, label in zip(decomposition.tasks, label_tasks(decomposition.tasks), strict=True):
        known = store.best_at(task.identity, chip.name, task.sizes)
        trial = next((trial for trial in known if plans.of(trial)), None)
        if trial is None:
            missing.append(label)
            continue
        found[task.place] = trial
        plan = plans.of(trial)[0]
        cubins = cubins_of([plan], chip)
        made = None if isinstance(cubins, Verdict) else Composition.of_task(task, plan, cubins)
        contests.append(Contest(label, task, (trial,), chip, made, decomposition.calls_of(task)))
    if len(decomposition.calls) > 1 and not missing and all(one.composition for one in contests):
        serving = tuple(found[call.task.place] for call in decomposition.calls)
        target = composition(decomposition, serving, plans, chip)
        contests.append(Contest(WHOLE, decomposition.whole, serving, chip, target))
    return contests, missing
