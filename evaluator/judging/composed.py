"""The composed target judged like a task: every call in order on the emulator, against the whole graph's reference.

Each task's kernels are right by themselves; here they must be right together: through buffers in their stored dtypes,
at sizes that the target's own dimensions give.  The yardstick is eager PyTorch on the whole graph.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Mapping, Sequence
from math import prod

from evaluator.plans import Plans
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import Chip
from knowledge_base.errors import UserError
from knowledge_base.records import Stage, Status, Trial, Verdict
from knowledge_base.snf.graph import shape_at
from knowledge_base.snf.task import Decomposition, Task

from .cover import Cover, confirm, cover, dims
from .examine import EMULATION_SECONDS, Examination
from .executable import Executable, Within
from .oracle import Oracle
from .rejection import Rejected, defect, finished
from .sizes import ELEMENTS, Sizes, fit, output_elements, work

FEW_CALLS = 24  # a block; a whole network runs on normal inputs only
MAX_REPEATS = 4
MAX_WORK = 60_000_000  # multiply-adds of the whole target at one size


def judge_composed(
    trial: Trial,
    decomposition: Decomposition,
    winners: Mapping[str, Sequence[Trial]],
    plans: Plans,
    chip: Chip,
    *,
    seed: int | None = None,
    oracle: Oracle | None = None,
    within: Within | None = None,
) -> Trial:
    """Judges the target as ``winners`` (correct trials by task identity) compute it.

    Of a task's winners the last serves every size, those before it where a plan of theirs holds; the first that can
    is used.
    ``trial``: of the composition; it comes back with its verdict.  ``plans``: the winners'; what the last one lacks is
    traced anew, and so are sizes where no plan holds.
    within: as :func:`.judge.judge` has it.  Raises KeyError for a task without winner.
    """
    started = time.monotonic()
    seed = int.from_bytes(os.urandom(6)) if seed is None else seed
    whole = decomposition.whole
    sizes = _sizes(whole, seed)
    with contextlib.nullcontext(oracle) if oracle is not None else Oracle() as asked:
        try:
            serving = _cover(decomposition, winners, plans, sizes, chip)
            deadline = time.monotonic() + EMULATION_SECONDS
            executable = Executable(decomposition.calls, decomposition.graph.outputs, serving, chip, deadline, within)
            names = None if len(decomposition.calls) <= FEW_CALLS else ("normal",)
            examination = Examination(whole, executable, sizes, seed, asked, names=names, repeats=MAX_REPEATS)
            examination.run()
            verdict = Verdict(status=Status.CORRECT, stage=Stage.DONE, numbers=examination.numbers)
        except Rejected as rejected:
            verdict = finished(rejected.verdict, "")
        except UserError:  # this machine lacks something: no word about the target
            raise
        except Exception as error:
            verdict = finished(defect(error), "")
    return trial.fuller(verdict=verdict, judged=sizes, seed=seed, seconds=time.monotonic() - started)


def _cover(
    decomposition: Decomposition,
    winners: Mapping[str, Sequence[Trial]],
    plans: Plans,
    sizes: Sequence[Sizes],
    chip: Chip,
) -> dict[str, tuple[Launchable, ...]]:
    """Plans by task identity for every call at every size, in the order in which they are used.  Raises Rejected."""
    places: dict[str, list[Sizes]] = {}
    for call in decomposition.calls:
        mine = places.setdefault(call.task.identity, [])
        mine += [at for at in (call.sizes_at(s) for s in sizes) if at not in mine]
    out: dict[str, tuple[Launchable, ...]] = {}
    for task in {call.task.identity: call.task for call in decomposition.calls}.values():
        *preferred, general = winners[task.identity]
        known = [plan for winner in preferred for plan in plans.of(winner)]
        left = [at for at in places[task.identity] if not any(k.plan.applies(dims(at, chip)) for k in known)]
        source, axes = general.candidate.source, general.configuration
        try:
            covered = cover(source, task, chip, axes, Cover(plans.of(general)), left)
            if covered.infeasible:
                raise Rejected(covered.infeasible[0][1])
            confirm(source, task, chip, axes, covered)
        except Rejected as rejected:
            verdict = rejected.verdict
            said = f"{task.name}: {verdict.message}"
            raise Rejected(verdict.model_copy(update={"message": said})) from None
        plans.put(*covered.traced)
        out[task.identity] = (*known, *covered.plans)
    return out


# ---------------------------------------------------------------------------------------------------- sizes


def _grown(whole: Task, row: Sizes, free: Sequence[str]) -> Sizes:
    """``row`` with free dimensions lengthened until outputs have ELEMENTS elements.

    Each time the one that costs least for what it adds to them, the shortest of equally dear ones: a row that is summed
    up is not lengthened.
    """

    def enough(at: Sizes) -> int:
        return sum(min(prod(shape_at(t.shape, at)), ELEMENTS) for t in whole.outputs)

    while (least := output_elements(whole, row)) < ELEMENTS:
        had, cost = enough(row), work(whole.graph, row)
        longer = {}
        for name in sorted(free, key=lambda name: row[name]):
            one = row | {name: min(2 * row[name] + 1, -(-row[name] * ELEMENTS // least))}
            if enough(one) > had and work(whole.graph, one) <= MAX_WORK:
                longer[name] = (work(whole.graph, one) - cost) / (enough(one) - had), one
        if not longer:
            break
        row = min(longer.values(), key=lambda found: found[0])[1]
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
    # Where no such size meets the constraints, the sample does: cut down as far as they allow.
    return tuple(rows) or (fit(whole, dict(whole.sizes), keep, MAX_WORK) or dict(whole.sizes),)
