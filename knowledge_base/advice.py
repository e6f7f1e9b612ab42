"""What the knowledge base has to say about a task on a chip: facts, beliefs, the best kernel of the nearest task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowledge_base import browse
from knowledge_base.chips import UNITS, Chip
from knowledge_base.compiler_faults import compiler_faults
from knowledge_base.records import Trial
from knowledge_base.rules import form_of, known_as
from knowledge_base.snf.task import Task

if TYPE_CHECKING:
    from knowledge_base.store import Store

REACHED = ("time reached", "rate reached")  # begin the names of facts that are of one chip alone
MOST_BELIEFS = 12  # with evidence, of a prompt
NEAR = 0.3  # of the ops of two tasks, as many have to be common to both


@dataclass(frozen=True)
class Fact:
    """A finding with its value.  ``where``: the chip it was measured on, or the architecture that it speaks of."""

    name: str
    value: str
    where: str
    source: str


@dataclass(frozen=True)
class Belief:
    """A rule.  status: hypothesised | supported | refuted.

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


@dataclass(frozen=True)
class Advice:
    """facts, beliefs: those that apply, the most special first.

    example: the fastest kernel of the nearest other task that is known on this chip, with that task's name.
    """

    facts: tuple[Fact, ...] = ()
    beliefs: tuple[Belief, ...] = ()
    example: tuple[str, Trial] | None = None


def advice(store: Store, task: Task, chip: Chip) -> Advice:
    """All that applies to ``task`` on ``chip``.

    Facts that were measured on the chip, and those that hold anywhere; where none about this task's ops was measured on
    it, what other chips say about them as well.
    """
    ops = known_as(task.name, (node.op for node in task.graph.nodes))
    figures = {"product", "arch", *UNITS}  # of a chip's record, which who asks has
    rows = [r for r in browse.facts(store.database) if (not r["op"] or r["op"] in ops) and r["name"] not in figures]
    here = [row for row in rows if row["chip"] in (chip.name, "") and row["subject"] in (chip.name, chip.arch)]
    if not any(row["op"] for row in here):
        here += [row for row in rows if row["chip"] not in (chip.name, "") and not row["name"].startswith(REACHED)]
    here = [row for row in here if _at_this_shape(row["name"], task)]
    here.sort(key=lambda row: (row["op"] != task.name, not row["op"]))  # of this task, of its ops, of none
    facts = [Fact(r["name"], f"{r['value']} {r['unit']}".strip(), r["chip"] or r["subject"], r["source"]) for r in here]
    facts += [
        Fact("fault of the compiler", f"{fault.says}; {fault.around}", chip.arch, fault.source)
        for fault in compiler_faults()
        if chip.arch in fault.archs
    ]
    return Advice(facts=tuple(facts), beliefs=_beliefs(store, task, chip, ops), example=_nearest(store, task, chip))


def _beliefs(store: Store, task: Task, chip: Chip, ops: Iterable[str]) -> tuple[Belief, ...]:
    """The rules that speak of this task at its sizes: what is faster, then what is slower, then what is open."""
    dtypes = {tensor.dtype for tensor in (*task.inputs, *task.outputs)}
    untested: list[Belief] = []
    tested: list[Belief] = []
    for row in browse.rules(store.database, gpu=chip.name):
        form = form_of(row)
        if form is None:
            continue
        scope = form.scope
        here = scope.op and any(scope.holds(ops, chip.name, dtype, task.sizes) for dtype in dtypes)
        if here and row["status"] != "superseded":
            (untested if row["effect"] is None else tested).append(_belief(row))
    tested.sort(key=lambda belief: ((belief.effect or 0) > 0, -abs(belief.effect or 0)))
    return (*tested[:MOST_BELIEFS], *untested)


def _at_this_shape(name: str, task: Task) -> bool:
    """A time is one at a shape (``time reached by hand at M=8192 N=768``): that has to be the task's."""
    what, _, shape = name.partition(" at ")
    if not what.startswith(REACHED[0]):
        return True
    return dict(pair.split("=") for pair in shape.split()) == {n: str(v) for n, v in task.sizes.items()}


def _belief(row: Mapping[str, Any]) -> Belief:
    interval = (row["effect_low"], row["effect_high"]) if row["effect"] is not None else None
    claimed = ", ".join(f"{name} {value}" for name, value in row["claimed"].items() if name != "direction")
    return Belief(row["statement"], row["status"], row["effect"], interval, row["evidence"], claimed, row["source"])


def _nearest(store: Store, task: Task, chip: Chip) -> tuple[str, Trial] | None:
    mine = {node.op for node in task.graph.nodes}
    found: list[tuple[float, str, str]] = []
    for row in browse.tasks(store.database, gpu=chip.name):
        theirs = set(row["ops"].strip(",").split(","))
        near = len(mine & theirs) / len(mine | theirs)
        if row["identity"] != task.identity and row["correct"] and near >= NEAR:
            found.append((-near, row["task"], row["identity"]))
    for _, name, identity in sorted(found):
        best = [trial for trial in store.best(identity, chip.name, limit=1) if trial.chip == chip.name]
        if best:
            return name, best[0]
    return None
