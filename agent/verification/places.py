"""Where a rule can be tested: tasks and sizes in its scope.

A place where nothing was measured yet comes before one of the rule's evidence: there it may turn out to be wrong.
Compiling costs more than any kernel's time, so that sizes which people use come before small ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent.loop import in_file, prior_for
from agent.proposers.synthesizer import synthesize
from evaluator.timing import floor_us
from evaluator.version import evaluator_version
from knowledge_base import browse
from knowledge_base.chips import Chip
from knowledge_base.errors import UserError
from knowledge_base.records import Trial
from knowledge_base.rules import RuleForm, Space, known_as
from knowledge_base.snf import canonical, decompose, everyday, load_target, parse, targets
from knowledge_base.snf.everyday import NAMES, sized
from knowledge_base.snf.task import Task
from knowledge_base.store import Store

from .pairing import Pairing, pairing

FILES = 8  # that a base has of a task, which are looked at beside the synthesizer's
TASKS = 100  # of a base that are looked at
OTHER_SIZES = (2.0, 0.5, 4.0, 0.25)  # times the first dimension of a task's own
MOST_NODES = 64  # of a graph: a block's at most, no whole model's
LOOKED = 64  # places at which files are looked for


@dataclass(frozen=True, eq=False)
class PairedPlace:
    """A task at its sizes, and what is compared there.  new: nothing was measured there.  floor_us: of one launch."""

    task: Task
    new: bool
    floor_us: float
    pairing: Pairing


def places(store: Store, form: RuleForm, chip: Chip, known: Sequence[Space], seed: int) -> Iterator[PairedPlace]:
    """Where the rule can be tested on ``chip``: new places first, of those the tasks' own sizes, then what is near.

    Of equals the cheap first.  known: what was measured, of any work.  Raises UserError where no task that is known
    lies in the rule's scope.
    """
    seen = {space.shape for space in known}
    found: list[tuple[bool, int, float, Task]] = []
    for task in _tasks(store, form):
        for away, size in _at(task):
            if _holds(form, size, chip):
                found.append((_shape(size, chip) in seen, away, floor_us(size, size.sizes, chip), size))
    if not found:
        what = "no task that is known lies in the rule's scope at its sizes, or near them"
        raise UserError(what, f"Name one that does. The scope is {_scope(form)}.")
    for old, _, floor, task in sorted(found, key=lambda row: (*row[:3], row[3].name))[:LOOKED]:
        made = _pairing(store, form, task, chip, known, seed)
        if made is not None:
            yield PairedPlace(task, not old, floor, made)


def place_of(store: Store, form: RuleForm, chip: Chip, known: Sequence[Space], seed: int, task: Task) -> PairedPlace:
    """The place that a task is.  Raises UserError where the rule does not speak of it, or no file can tell."""
    if not _holds(form, task, chip):
        of = f"{task.name} in {_dtype(task)} at {', '.join(f'{n}={v}' for n, v in task.sizes.items())}"
        raise UserError(f"the rule does not speak of {of}", f"Its scope is {_scope(form)}.")
    made = _pairing(store, form, task, chip, known, seed)
    if made is None:
        raise UserError(nothing_differs(form), f"None of {task.name} at these sizes, that is.")
    new = _shape(task, chip) not in {space.shape for space in known}
    return PairedPlace(task, new, floor_us(task, task.sizes, chip), made)


def _scope(form: RuleForm) -> str:
    return ", ".join(f"{name} {value}" for name, value in form.scope.model_dump().items() if value) or "everything"


def nothing_differs(form: RuleForm) -> str:
    """That there is no experiment."""
    features = ", ".join(condition.feature for condition in form.when or ())
    return f"no file has enough configurations that were not measured and differ in {features} alone"


def _tasks(store: Store, form: RuleForm) -> Iterator[Task]:
    """Those that the rule may speak of: the everyday ones, in its dtype, of shipped targets, then the base's."""
    seen = set()
    for task in itertools.chain(_everyday(form.scope.dtype or "bf16"), _shipped()):
        if task.place not in seen and _called(form, _known_as(task)):
            seen.add(task.place)
            yield task
    known = {identity for identity, _ in seen}
    others = [key for key, name, ops in store.known_tasks() if key not in known and _called(form, known_as(name, ops))]
    for key, text in browse.specifications(store.database, others[:TASKS]).items():
        try:
            task = canonical(parse(text, "task"))
        except UserError:  # of another version
            continue
        if task.identity == key and len(task.graph.nodes) <= MOST_NODES:
            yield task


def _everyday(dtype: str) -> Iterator[Task]:
    for name in NAMES:
        with suppress(UserError):  # it is none of this dtype
            yield everyday(name, dtype)


def _shipped() -> Iterator[Task]:
    for name, _ in targets():
        graph = load_target(name).graph
        if len(graph.nodes) <= MOST_NODES:
            yield from decompose(graph).tasks


def _called(form: RuleForm, ops: Collection[str]) -> bool:
    return not form.scope.op or form.scope.op in ops


def _at(task: Task) -> Iterator[tuple[int, Task]]:
    """The task at its own sizes (0), then at others, numbered as they stand in OTHER_SIZES."""
    yield 0, task
    first, size = next(iter(task.sizes.items()), ("", 0))
    for away, factor in enumerate(OTHER_SIZES, 1):
        with suppress(UserError):  # it can't be of that size
            yield away, sized(task, {first: int(size * factor)})


def _pairing(store: Store, form: RuleForm, task: Task, chip: Chip, known: Sequence[Space], seed: int) -> Pairing | None:
    """Files that this base has of the task first, then the synthesizer's."""
    trials = [*store.best(task.identity, chip.name, limit=FILES), *store.foreign(task.identity, chip.name, limit=FILES)]
    files = {one.digest: one for one in (*(trial.candidate for trial in trials), *synthesize(task, chip))}

    def expected(made: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        prior = prior_for(known, task, chip, made) if known and made else None
        return [0.0] * len(made) if prior is None else prior.slower({})

    measured = {digest: _measured(store, task, chip, digest) for digest in files}
    return pairing(list(files.values()), form.when or (), expected, measured, seed)


def _measured(store: Store, task: Task, chip: Chip, digest: str) -> frozenset[str]:
    """A file's configurations whose fate is known at the task's sizes: what was timed there is evidence already."""
    known = store.of_candidate(task.identity, digest, chip.name, task.sizes, evaluator_version())
    return frozenset(in_file(trial.configuration) for trial in known if _tried(trial))


def _tried(trial: Trial) -> bool:
    return trial.timed("measured") is not None or (trial.verdict is not None and not trial.correct)


def _holds(form: RuleForm, task: Task, chip: Chip) -> bool:
    return form.scope.holds(_known_as(task), chip.name, _dtype(task), task.sizes)


def _known_as(task: Task) -> frozenset[str]:
    return known_as(task.name, (node.op for node in task.graph.nodes))


def _dtype(task: Task) -> str:
    return task.outputs[0].dtype


def _shape(task: Task, chip: Chip) -> tuple[Any, ...]:
    """As :attr:`knowledge_base.rules.Space.shape` says it."""
    return task.name, chip.name, _dtype(task), tuple(sorted(task.sizes.items()))
