"""Of a task at a shape on a chip: which configurations are fastest, what lost to them, and why.

Measured times compare whichever version of the evaluator saw them; modelled ones only within a version, so that where
nothing was measured the latest version's are shown.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from knowledge_base.browse.asking import Row, listed, where
from knowledge_base.records import FOREIGN, STANDINGS, CompileEvidence, Status, Trial
from knowledge_base.store import trials
from knowledge_base.tables import TALLIES, TRIALS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

PLACES = 6  # chips and shapes that are told of; what was tried most comes first
BEST = 8  # configurations of each
SAMPLE = 20  # trials whose reasons are told, of each standing
NOTABLE = 0.02  # of the best time: how much longer a term of the model has to be, to be named
TERMS = ("memory", "l2", "shared", "mma", "lanes", "special", "latency", "spill", "launch")


def places(connection: Connection, task: str, chip: str = "") -> tuple[list[Row], int]:
    """Where a task (identity) was tried, the measured places first, then what was tried most; how many there are.

    A place: chip, shape, kind (of its times; None without any), trials (by standing), ``best``: trials in brief, each
    with ``slower`` (its time ÷ the best one's) and ``why``; ``lost``: what was not ranked, by its reason.
    """
    y = TALLIES.c
    counted = where(select(y.chip, y.shape, y.evaluator, y.standing, y.trials), y.task == task, y.trials > 0)
    by_place: dict[tuple[str, str], dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in listed(connection, where(counted, y.chip == chip if chip else None)):
        evaluator = "" if row["standing"] == FOREIGN else row["evaluator"]  # other bases' are told of, whosever
        by_place[row["chip"], row["shape"]][evaluator][row["standing"]] += row["trials"]
    measured = _measured(connection, task)
    trials_at = {place: sum(n.total() for n in counts.values()) for place, counts in by_place.items()}
    ordered = sorted(by_place, key=lambda place: (place not in measured, -trials_at[place], place))
    shown = [_place(connection, task, *place, by_place[place], place in measured) for place in ordered[:PLACES]]
    return shown, len(ordered)


def _measured(connection: Connection, task: str) -> set[tuple[str, str]]:
    """(chip, shape) of which something right was measured."""
    t = TRIALS.c
    query = select(t.chip, t.shape).where(t.task == task, t.status == Status.CORRECT.value, t.kind == "measured")
    return {(chip, shape) for chip, shape in connection.execute(query.distinct())}


def _place(
    connection: Connection, task: str, chip: str, shape: str, counts: dict[str, Counter[str]], measured: bool
) -> Row:
    foreign = counts.pop("", Counter())
    evaluators = list(counts) if measured or len(counts) < 2 else [_latest(connection, task, chip, shape)]
    here = (TRIALS.c.task == task, TRIALS.c.chip == chip, TRIALS.c.shape == shape)
    among = None if len(evaluators) == len(counts) else TRIALS.c.evaluator.in_(evaluators)
    tally = foreign.copy()
    for evaluator in evaluators:
        tally.update(counts[evaluator])
    older = sum(n.total() for evaluator, n in counts.items() if evaluator not in evaluators)
    kind = "measured" if measured else "modelled"
    ranked = _fastest(connection, (*here, TRIALS.c.kind == kind), among)
    first = next((trial for trial in ranked if trial.correct), ranked[0] if ranked else None)
    return {
        "chip": chip,
        "shape": first.shape if first else json.loads(shape),
        "kind": kind if first else None,
        "trials": {standing: tally[standing] for standing in STANDINGS if tally[standing]},
        "older_trials": older,
        "best": [_beside(trial, first) for trial in ranked[:BEST]] if first else [],
        "lost": [
            row
            for standing in STANDINGS[1:]
            if tally[standing]
            for row in _lost(connection, here, None if standing == FOREIGN else among, standing, tally[standing])
        ],
    }


def _latest(connection: Connection, task: str, chip: str, shape: str) -> str:
    """The evaluator of the latest trial there."""
    t = TRIALS.c
    query = select(t.evaluator).where(t.task == task, t.chip == chip, t.shape == shape, t.status != FOREIGN)
    return str(connection.execute(query.order_by(t.created_at.desc()).limit(1)).scalar())


def _fastest(connection: Connection, here: Sequence[Any], among: Any) -> list[Trial]:
    """The fastest trials that nothing speaks against, a correct one among them if there is any."""
    t = TRIALS.c
    found: list[tuple[float, str]] = []
    for asked in (t.standing == "ranked", t.standing == "spills"):
        query = where(select(t.us, t.key), *here, asked, among).order_by(t.us).limit(BEST)
        found += [(us, key) for us, key in connection.execute(query)]
    keys = [key for _, key in sorted(found)[:BEST]]
    right = where(select(t.key), *here, t.status == Status.CORRECT.value, t.us.is_not(None), among)
    right_key = connection.execute(right.order_by(t.us).limit(1)).scalar()
    if right_key is not None and right_key not in keys:
        keys[BEST - 1 :] = [right_key]
    return trials(connection, keys)


def _beside(trial: Trial, first: Trial) -> Row:
    own, best = trial.time, first.time
    slower = round(own.over(best), 4) if own is not None and best is not None else None
    return trial.brief() | {"slower": slower, "why": differences(trial, first) if trial is not first else []}


def differences(trial: Trial, best: Trial) -> list[str]:
    """What the assembler and the model say that a trial has worse than the best one, in words.

    From the model, which has no part in a measured time, only what it takes longer for is named: µs it adds.
    """
    said = _of_cubins(trial.evidence, best.evidence)
    own, theirs = trial.timed("modelled"), best.timed("modelled")
    if own is None or theirs is None:
        return said
    held, more = own.terms.get("occupancy", 0), theirs.terms.get("occupancy", 0)
    if 0 < held < more:
        said.append(f"{held:g} {'block' if held == 1 else 'blocks'} an SM, not {more:g}")
    waves = own.terms.get("waves", 0.0)
    if waves > 1 and _filled(waves) < 0.9 * _filled(theirs.terms.get("waves", 0.0)):
        said.append(f"{waves:.2f} waves, the last of them not full")
    longer = [(own.terms.get(name, 0.0) - theirs.terms.get(name, 0.0), name) for name in TERMS]
    worst = [(us, name) for us, name in sorted(longer, reverse=True) if us > NOTABLE * theirs.us]
    return said + [f"{name} ~+{us:.3g} µs" for us, name in worst[:2]]


def _of_cubins(own: Sequence[CompileEvidence], best: Sequence[CompileEvidence]) -> list[str]:
    if not own or not best:
        return []
    said = []
    spilled = max(e.spill_bytes for e in own)
    if spilled > max(e.spill_bytes for e in best):
        said.append(f"spills {spilled} B a thread")
    if all(e.tma for e in best) and not all(e.tma for e in own):
        said.append("no TMA")
    units, wanted = ({e.mma for e in kernels if e.mma} for kernels in (own, best))
    if wanted and units != wanted:
        said.append(f"{'+'.join(sorted(units)) or 'no MMA'}, not {'+'.join(sorted(wanted))}")
    if any(e.serialised_wgmma for e in own) and not any(e.serialised_wgmma for e in best):
        said.append("waits after every wgmma")
    return said


def _filled(waves: float) -> float:
    """The share of all waves' room that is used."""
    return waves / max(1, -int(-waves // 1))


def _lost(connection: Connection, here: Sequence[Any], among: Any, standing: str, count: int) -> list[Row]:
    """Why trials of a standing lost: of some of them, by error class or by what is said, numbers left out."""
    t = TRIALS.c
    query = where(select(t.key), *here, t.standing == standing, among).order_by(t.kind, t.us).limit(SAMPLE)
    some = trials(connection, list(connection.execute(query).scalars()))
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in some:
        groups[_error_class(trial) or re.sub(r"[\d.]+", "#", trial.reason)].append(trial)
    rows = []
    for alike in sorted(groups.values(), key=len, reverse=True):
        fastest = alike[0].time
        rows.append(
            {
                "standing": standing,
                "trials": count,  # of this standing, whatever the reason
                "looked_at": len(some),
                "of_these": len(alike),
                "error_class": _error_class(alike[0]),
                "reason": alike[0].reason,
                "trial": alike[0].key,
                "us": fastest.us if fastest else None,
                "kind": fastest.kind if fastest else None,
            }
        )
    return rows


def _error_class(trial: Trial) -> str:
    """That of a verdict of this base; of a foreign one the reason says what it is there."""
    return trial.verdict.error_class if trial.verdict is not None and not trial.origin else ""


def by_status(connection: Connection, task: str) -> list[Row]:
    """How many trials of a task there are of each status."""
    y = TALLIES.c
    count = func.sum(y.trials).label("count")
    return listed(connection, select(y.status, count).where(y.task == task, y.trials > 0).group_by(y.status))
