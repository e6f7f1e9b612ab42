"""The composed target judged like a task: every call in order on the emulator, against the whole graph's reference.

Each task's kernels are right by themselves; here they must be right together: through buffers in their stored dtypes,
at sizes that the target's own dimensions give.  The yardstick is eager PyTorch on the whole graph.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluator.cover import dims, text
from evaluator.execute import POISON_A, POISON_B, Poison, execute, poisoned
from evaluator.inputs import CONSTANT_INPUTS, distributions
from evaluator.judge import EMULATION_SECONDS, Plans, Progress, Rejected, accept, finished, one_thread, wrong
from evaluator.sizes import ELEMENTS, Sizes, fit, output_elements, work
from kernels_generated.runtime.expr import evaluate, substitute
from knowledge_base.records import Stage, Status, Trial, Verdict
from knowledge_base.snf.graph import shape_at
from knowledge_base.snf.task import Call, Decomposition, Task

if TYPE_CHECKING:
    import torch

    from evaluator.compare import Case, Errors, Place
    from evaluator.oracle import Expected, Oracle
    from evaluator.trace import Traced
    from knowledge_base.chips import Chip

FEW_CALLS = 24  # a block; a whole network runs on normal inputs only
MAX_REPEATS = 4
MAX_WORK = 60_000_000  # multiply-adds of the whole target at one size


def judge_composed(
    trial: Trial,
    decomposition: Decomposition,
    winners: Mapping[str, Trial],
    plans: Mapping[str, Traced],
    chip: Chip,
    *,
    seed: int | None = None,
    oracle: Oracle | None = None,
    progress: Progress | None = None,
) -> tuple[Trial, Plans]:
    """Judges the target as ``winners`` (a correct trial by task identity) compute it.

    ``trial``: of the composition; it comes back with its verdict, and with it the plans that had to be traced anew, at
    sizes where no plan of a winner held.  ``plans``: those that the winners name; one that is not there is traced anew.
    Raises KeyError for a task without winner.
    """
    from evaluator.oracle import Oracle

    started = time.monotonic()
    seed = int.from_bytes(os.urandom(6)) if seed is None else seed
    owned = Oracle() if oracle is None else None
    whole = _as_task(decomposition)
    composed = _Composed(decomposition, whole, winners, plans, chip)
    sizes = _sizes(whole, seed)
    numbers: dict[str, Any] = {}
    try:
        with one_thread():
            line = oracle or owned
            assert line is not None
            _judge(composed, sizes, seed, line, numbers, progress)
        verdict = Verdict(status=Status.CORRECT, stage=Stage.DONE, numbers=numbers)
    except Rejected as rejected:
        verdict = finished(rejected.verdict, "")
    finally:
        if owned is not None:
            owned.close()
    judged = trial.fuller(verdict=verdict, judged=sizes, seed=seed, seconds=time.monotonic() - started)
    return judged, {t.plan.digest: t for t in composed.added}


def _judge(
    composed: _Composed, sizes: Sequence[Sizes], seed: int, oracle: Oracle, numbers: dict[str, Any], progress: Any
) -> None:
    from evaluator.compare import Errors, Failure, measure, place
    from evaluator.oracle import composed_question

    few = len(composed.decomposition.calls) <= FEW_CALLS
    names = distributions(composed.decomposition.graph) if few else ("normal",)
    ops = frozenset(node.op for node in composed.decomposition.graph.nodes)
    normal: dict[Place, Errors] = {}
    for i, name in enumerate(names):
        if progress is not None:
            progress("compose", i / len(names))
        places = [(at, seed) for at in (sizes if name == "normal" else sizes[:1])]
        elements = sum(output_elements(composed.whole, at) for at, _ in places)
        while elements < ELEMENTS and len(places) < len(sizes) + MAX_REPEATS:
            places.append((sizes[0], seed + len(places)))
            elements += output_elements(composed.whole, sizes[0])
        questions = [composed_question(composed.decomposition, at, name, s) for at, s in places]
        measured: dict[str, list[tuple[Case, Errors]]] = {}
        for q, expected in zip(questions, oracle.expect_all(questions), strict=True):
            for case in composed.run(dict(q.sizes), name, expected, twice=q is questions[0] and name == "normal"):
                errors = measure(case)
                if isinstance(errors, Failure):
                    raise Rejected(wrong(errors, None, ops))
                measured.setdefault(case.output, []).append((case, errors))
        if name == "normal":
            for case, errors in (m for of_output in measured.values() for m in of_output):
                normal[place(case)] = normal.get(place(case), Errors()) + errors
        numbers[name] = accept(measured, ops, normal if name in CONSTANT_INPUTS else None)


class _Composed:
    """Runs the calls of a target; keeps plans traced anew."""

    def __init__(
        self,
        decomposition: Decomposition,
        whole: Task,
        winners: Mapping[str, Trial],
        plans: Mapping[str, Traced],
        chip: Chip,
    ) -> None:
        self.decomposition, self.whole, self.winners, self.chip = decomposition, whole, winners, chip
        self.added: list[Traced] = []
        self.deadline = time.monotonic() + EMULATION_SECONDS
        self._plans = {identity: [plans[p] for p in w.plans if p in plans] for identity, w in winners.items()}

    def run(self, sizes: Sizes, distribution: str, expected: Expected, twice: bool) -> list[Case]:
        """A case per output of the target.  Raises Rejected."""
        from evaluator.cases import same_bits
        from evaluator.compare import Case

        results = self.once(sizes, expected, POISON_A, sanitize=twice)
        if twice:
            again = self.once(sizes, expected, POISON_B, sanitize=False)
            for name, a, b in zip(self.decomposition.graph.outputs, results, again, strict=True):
                if not same_bits(a, b):
                    message = f"{name} depends on memory that nobody wrote ({text(sizes)})"
                    raise Rejected(_unsafe("uninitialised", message))
        return [
            Case(t.name, t.dtype, distribution, sizes, got, reference, eager)
            for t, got, reference, eager in zip(
                self.whole.outputs, results, expected.reference, expected.eager, strict=True
            )
        ]

    def once(self, sizes: Sizes, expected: Expected, poison: Poison, sanitize: bool) -> list[torch.Tensor]:
        buffers = {name: value.clone() for name, value in expected.inputs.items()}
        for number, call in enumerate(self.decomposition.calls):
            self.call(number, call, sizes, buffers, poison, sanitize)
        graph = self.decomposition.graph
        return [buffers[name].reshape(shape_at(graph.value(name).shape, sizes)) for name in graph.outputs]

    def call(
        self,
        number: int,
        call: Call,
        sizes: Sizes,
        buffers: dict[str, torch.Tensor],
        poison: Poison,
        sanitize: bool,
    ) -> None:
        """One call: its results become buffers."""
        from evaluator.cases import programs_of

        at = {name: evaluate(expr, sizes) for name, expr in call.sizes} or dict(call.task.sizes)
        place = f"call {number} ({call.task.name}, {text(at)})"
        traced = self.plan(call.task, at, place)
        programs = programs_of(traced)
        if isinstance(programs, Verdict):
            raise Rejected(programs)
        given = {
            t.name: buffers[b].reshape(shape_at(t.shape, at))
            for t, b in zip(call.task.inputs, call.arguments, strict=True)
        }
        made = {t.name: poisoned(shape_at(t.shape, at), t.dtype, poison.output) for t in call.task.outputs}
        done = execute(
            traced.plan,
            programs,
            given | made,
            dims(at, self.chip),
            poison=poison,
            sanitize=sanitize,
            deadline=self.deadline,
        )
        if done.verdict is not None:
            raise Rejected(done.verdict.model_copy(update={"message": f"{place}: {done.verdict.message}"}))
        if done.findings:
            worst = done.findings[0]
            raise Rejected(_unsafe(worst.kind, f"{place}: {worst.message}", done.findings[:20]))
        buffers.update(zip(call.results, made.values(), strict=True))

    def plan(self, task: Task, at: Sizes, place: str) -> Traced:
        """A plan of the task's winner that holds at ``at``, traced anew if none does."""
        from evaluator.trace import Request, trace

        known = self._plans[task.identity]
        for traced in known:
            if traced.plan.applies(dims(at, self.chip)):
                return traced
        winner = self.winners[task.identity]
        answer = trace(winner.candidate.source, task, [Request(at, winner.configuration)], self.chip)[0]
        if isinstance(answer, Verdict):
            raise Rejected(answer.model_copy(update={"message": f"{place}: {answer.message}"}))
        known.append(answer)
        self.added.append(answer)
        return answer


def _unsafe(error_class: str, message: str, findings: Any = ()) -> Verdict:
    return Verdict(
        status=Status.UNSAFE, stage=Stage.EMULATE, error_class=error_class, message=message, findings=tuple(findings)
    )


# ---------------------------------------------------------------------------------------------------- sizes


def _as_task(decomposition: Decomposition) -> Task:
    """The whole target in the form of a task, with the constraints of all its calls in its own dimensions."""
    graph = decomposition.graph
    constraints = []
    for call in decomposition.calls:
        by = dict(call.sizes)
        for comparison, left, right in call.task.constraints:
            constraints.append((comparison, substitute(left, by), substitute(right, by)))
    return Task("target", "", graph, graph.precision, graph.listed, tuple(dict.fromkeys(constraints)))


def _grown(whole: Task, row: Sizes, free: Sequence[str]) -> Sizes:
    """``row`` with its shortest free dimensions lengthened until outputs have ELEMENTS elements."""
    while free and output_elements(whole, row) < ELEMENTS:
        shortest = min(free, key=lambda name: row[name])
        longer = row | {shortest: 2 * row[shortest] + 1}
        if work(whole.graph, longer) > MAX_WORK:
            break
        row = longer
    return row


def _sizes(whole: Task, seed: int) -> tuple[Sizes, ...]:
    """Two sizes: the longest dimensions past a tile, listed ones as sampled; and primes with another listed value."""
    rng = random.Random(seed)
    listed = {name: (whole.sizes[name], *values) for name, values in whole.constants}
    keep = frozenset(listed)
    free = sorted((name for name in whole.sizes if name not in listed), key=lambda name: -whole.sizes[name])
    long = {name: rng.choice((67, 71, 73)) for name in free[: len(free) // 2]}
    rows = []
    for primes, longer, pick in (((2, 3), long, 0), ((2, 3, 5, 7), {}, rng.randrange(8))):
        row = {name: rng.choice(primes) for name in whole.sizes} | longer
        row |= {name: values[pick % len(values)] for name, values in listed.items()}
        if longer:
            row = _grown(whole, row, free)
        fitted = fit(whole, row, keep, MAX_WORK)
        if fitted is not None and fitted not in rows:
            rows.append(fitted)
    return tuple(rows) or (dict(whole.sizes),)
