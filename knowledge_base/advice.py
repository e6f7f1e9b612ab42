"""What the knowledge base has to say about a task on a chip, the most useful first.

Facts, rules, mistakes of earlier answers, and the best kernel of the nearest task.  What is told is ranked by what it
is worth: how much of its scope the task and the chip are (``match``), times what heeding it changes (``effect``): the
log-ratio of times that a rule's evidence is sure of, or the share of answers that a mistake cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from knowledge_base import browse
from knowledge_base.chips import CHIPS, UNITS, Chip
from knowledge_base.compiler_faults import compiler_faults
from knowledge_base.records import Trial, Verdict
from knowledge_base.rules import RuleForm, form_of, known_as
from knowledge_base.snf.task import Task

if TYPE_CHECKING:
    from knowledge_base.store import Store

REACHED = ("time reached", "rate reached")  # begin the names of facts that are of one chip alone
NEAR = 0.3  # of the ops of two tasks, as many have to be common to both
ANSWERS = 50  # to near tasks, the latest, whose mistakes are told
TASKS = 16  # near ones that are looked at

# How much of a scope a task is: it itself, one of its ops, whatever there is.  And of where it was seen.
ITSELF, ITS_OP, ANY_TASK = 1.0, 0.8, 0.5
THIS_CHIP, ITS_ARCH, ANY_CHIP, OTHER_CHIP = 1.0, 0.9, 0.7, 0.4
UNBOUNDED = 0.9  # a rule of all dtypes, or of all sizes, beside one of these

# What it changes, as a log-ratio of times.  By hand some twenty facts together took answers from 1.05 to 0.93 of
# PyTorch's time; a fault of the compiler loses an answer, and about one first answer in three is lost to something.
FACT, FAULT = 0.05, 0.3
UNTESTED = 0.1  # of what its author claims of a rule
UNSURE = 0.1  # of the effect of a rule whose interval has both signs
WARNING = 0.25  # of the effect of a rule that says what is slower: who would not have done it has nothing of it
NO_EFFECT = 0.002  # what it is worth to know that something makes no difference
SAID = 0.25  # of its worth, what a rule keeps all of whose features stand in rules before it


@dataclass(frozen=True)
class Fact:
    """A finding with its value.  ``where``: the chip it was measured on, or the architecture that it speaks of."""

    name: str
    value: str
    where: str
    source: str


@dataclass(frozen=True)
class Belief:
    """A rule.  status: hypothesised | supported | refuted.  where: the chip that it speaks of, empty for any.

    effect: log-ratio of times, best against best, with its interval, negative is faster; None before there is
    evidence.  evidence: how many pieces there are, each of a shape.  claimed: what its author says, in words.
    """

    statement: str
    status: str
    effect: float | None
    interval: tuple[float, float] | None
    evidence: int
    claimed: str
    source: str
    where: str


@dataclass(frozen=True)
class Mistake:
    """What answers to this task, or to near ones, were rejected for.

    name: the error class, or the verdict's status.  answers: how many, ``of`` so many that were judged.  task: the one
    whose message is shown, that of this task if there is one, and of those the latest.
    """

    name: str
    message: str
    hint: str
    answers: int
    of: int
    task: str


@dataclass(frozen=True)
class Item:
    """Something to be told.  key: its id in the knowledge base, empty for what is in no table of it.

    match: how much of its scope the task and the chip are, 1 at most; ``because`` says it in words.  effect: what
    heeding it changes, a log-ratio of times or a share of answers.  new: what of it is not said by items before it.
    """

    what: Fact | Belief | Mistake
    key: str
    match: float
    because: str
    effect: float
    new: float = 1.0

    @property
    def worth(self) -> float:
        return self.match * self.effect * self.new


@dataclass(frozen=True)
class Example:
    """The fastest kernel that is known on the chip of the nearest other task.  common: ops of both ÷ ops of either."""

    task: str
    trial: Trial
    common: float


@dataclass(frozen=True)
class Advice:
    """What applies, what is worth most first; and a kernel to learn from."""

    items: tuple[Item, ...] = ()
    example: Example | None = None


def advice(store: Store, task: Task, chip: Chip, but: Collection[str] = ()) -> Advice:
    """All that applies to ``task`` on ``chip``.  ``but``: answers (digests) whose mistakes are told elsewhere.

    Facts that were measured on the chip, and those that hold anywhere; where none about this task's ops was measured on
    it, what other chips say about them as well.  Of rules likewise.
    """
    ops = known_as(task.name, (node.op for node in task.graph.nodes))
    near = _near(store, task)
    items = [*_facts(store, task, chip, ops), *_faults(chip), *_mistakes(store, task, near, but)]
    items += _unlike(_beliefs(store, task, chip, ops))
    items.sort(key=lambda item: -item.worth)
    return Advice(tuple(items), _example(store, task, chip, near))


# ---------------------------------------------------------------------------------------------------- facts


def _facts(store: Store, task: Task, chip: Chip, ops: Collection[str]) -> Iterator[Item]:
    figures = {"product", "arch", *UNITS}  # of a chip's record, which who asks has
    rows = [r for r in browse.facts(store.database) if (not r["op"] or r["op"] in ops) and r["name"] not in figures]
    here = [row for row in rows if row["chip"] in (chip.name, "") and row["subject"] in (chip.name, chip.arch)]
    if not any(row["op"] for row in here):
        here += [row for row in rows if row["chip"] not in (chip.name, "") and not row["name"].startswith(REACHED)]
    for row in here:
        if _at_this_shape(row["name"], task):
            where = row["chip"] or row["subject"]
            match, because = _match(row["op"], where, task, chip)
            value = f"{row['value']} {row['unit']}".strip()
            yield Item(Fact(row["name"], value, where, row["source"]), row["key"], match, because, FACT)


def _faults(chip: Chip) -> Iterator[Item]:
    for fault in compiler_faults():
        if chip.arch in fault.archs:
            fact = Fact("fault of the compiler", f"{fault.says}; {fault.around}", chip.arch, fault.source)
            yield Item(fact, "", *_match("", chip.arch, None, chip), FAULT)


def _match(op: str, where: str, task: Task | None, chip: Chip) -> tuple[float, str]:
    """How much of it the task and the chip are that something about ``op``, seen at ``where``, speaks of."""
    if not op:
        of, what = ANY_TASK, "any task"
    elif task is not None and op == task.name:
        of, what = ITSELF, "this task"
    else:
        of, what = ITS_OP, f"{op} is in it"
    if where == chip.name:
        return of * THIS_CHIP, f"{what}, on this GPU"
    if where == chip.arch:
        return of * ITS_ARCH, f"{what}, on {where}"
    if where in CHIPS:
        return of * OTHER_CHIP, f"{what}, but on another GPU ({where})"
    return of * ANY_CHIP, f"{what}, on any GPU"


def _at_this_shape(name: str, task: Task) -> bool:
    """A time is one at a shape (``time reached by hand at M=8192 N=768``): that has to be the task's."""
    what, _, shape = name.partition(" at ")
    if not what.startswith(REACHED[0]):
        return True
    return dict(pair.split("=") for pair in shape.split()) == {n: str(v) for n, v in task.sizes.items()}


# ---------------------------------------------------------------------------------------------------- rules


def _beliefs(store: Store, task: Task, chip: Chip, ops: Collection[str]) -> list[tuple[Item, RuleForm]]:
    """The rules that speak of this task at its sizes on this chip; where none with evidence does, on other chips."""
    dtypes = {tensor.dtype for tensor in (*task.inputs, *task.outputs)}
    here: list[tuple[Item, RuleForm]] = []
    elsewhere: list[tuple[Item, RuleForm]] = []  # what is only claimed of another chip is not told
    known = False
    for row in browse.rules(store.database):
        form = form_of(row)
        if form is None or row["status"] == "superseded" or not form.scope.op:
            continue
        scope, tested = form.scope, row["effect"] is not None
        if not any(scope.holds(ops, scope.chip or chip.name, dtype, task.sizes) for dtype in dtypes):
            continue
        match, because = _match(scope.op, scope.chip or "any", task, chip)
        match *= (1 if scope.dtype else UNBOUNDED) * (1 if scope.shape else UNBOUNDED)
        because += f", {scope.shape}" if scope.shape else ""
        one = Item(_belief(row, scope.chip), row["key"], match, because, _effect(row)), form
        if scope.chip in ("", chip.name):
            here.append(one)
            known = known or tested
        elif tested:
            elsewhere.append(one)
    return here if known else here + elsewhere


def _belief(row: Mapping[str, Any], where: str) -> Belief:
    interval = (row["effect_low"], row["effect_high"]) if row["effect"] is not None else None
    claimed = ", ".join(f"{name} {value}" for name, value in row["claimed"].items() if name != "direction")
    known = (row["statement"], row["status"], row["effect"], interval, row["evidence"], claimed, row["source"])
    return Belief(*known, where=where)


def _effect(row: Mapping[str, Any]) -> float:
    """What is sure of a rule's effect, the end of its interval that is nearer to none; less of a warning."""
    if row["effect"] is None:
        claimed = row["claimed"]
        ratio = float(claimed.get("ratio", 0)) or 1 / max(0.01, 1 - float(claimed.get("saving", 0)))
        return max(NO_EFFECT, UNTESTED * abs(math.log(ratio)))
    low, high = row["effect_low"], row["effect_high"]
    sure = min(abs(low), abs(high)) if low * high > 0 else UNSURE * abs(row["effect"])
    return max(NO_EFFECT, sure * (WARNING if row["effect"] > 0 else 1))


def _unlike(found: Sequence[tuple[Item, RuleForm]]) -> list[Item]:
    """Rules, what is worth most first, where a rule counts less the more of its features stand in those before it."""
    features = [{condition.feature for condition in form.when or ()} for _, form in found]
    said: set[str] = set()
    out: list[Item] = []

    def now(i: int) -> Item:
        mine = features[i]
        return replace(found[i][0], new=SAID + (1 - SAID) * (len(mine - said) / len(mine) if mine else 1))

    # What something is worth never grows, so that only what comes first has to be looked at again.
    heap = [(-now(i).worth, i) for i in range(len(found))]
    heapq.heapify(heap)
    while heap:
        worth, i = heapq.heappop(heap)
        item = now(i)
        if item.worth < -worth:
            heapq.heappush(heap, (-item.worth, i))
            continue
        out.append(item)
        said |= features[i]
    return out


# ---------------------------------------------------------------------------------------------------- other tasks


def _near(store: Store, task: Task) -> list[tuple[float, str, str]]:
    """(share of ops that both have, name, identity) of the task itself and those nearest to it."""
    mine = {node.op for node in task.graph.nodes}
    found = []
    for identity, name, ops in store.known_tasks():
        common = len(mine & ops) / len(mine | ops)
        if common >= NEAR:
            found.append((1.0 if identity == task.identity else common, name, identity))
    found.sort(key=lambda row: (row[2] != task.identity, -row[0], row[1], row[2]))
    return found[:TASKS]


def _mistakes(store: Store, task: Task, near: Iterable[tuple[float, str, str]], but: Collection[str]) -> Iterator[Item]:
    """What files were rejected for that were right in no configuration; the latest verdict of each counts."""
    tasks = {identity: (common, name) for common, name, identity in near}
    answers = [one for one in store.answers(tasks, limit=ANSWERS) if one.candidate.digest not in but]
    lost: dict[str, list[tuple[Trial, Verdict]]] = {}
    for trial in answers:
        if trial.verdict is not None and not trial.correct:
            name = trial.verdict.error_class or trial.verdict.status.value
            lost.setdefault(name, []).append((trial, trial.verdict))
    for name, found in lost.items():
        shown, verdict = next((one for one in found if one[0].task == task.identity), found[0])
        own = sum(trial.task == task.identity for trial, _ in found)
        common = max(tasks[trial.task][0] for trial, _ in found)
        because = f"answers, {own} of this task" if own else f"answers to {tasks[shown.task][1]}"
        told = Mistake(name, verdict.message, verdict.hint, len(found), len(answers), tasks[shown.task][1])
        yield Item(told, shown.key, common, because, len(found) / len(answers))


def _example(store: Store, task: Task, chip: Chip, near: Iterable[tuple[float, str, str]]) -> Example | None:
    for common, name, identity in near:
        if identity != task.identity and (trial := store.fastest(identity, chip.name)) is not None:
            return Example(name, trial, common)
    return None
