"""What contests came to, as data: what is printed, drawn and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.loop import WHOLE
from evaluator.replay import OURS
from evaluator.timing import Interval, floor_us, measured, median, peak, ratio
from knowledge_base.chips import Chip
from knowledge_base.snf.cost import cost

from .contests import Contest

FASTER = 1.02  # the lower end of a speed-up's interval, from which on it is one


def outcome(contests: Sequence[Contest], chip: Chip) -> list[dict[str, Any]]:
    """A row for each contest (:func:`row`), the target's own last."""
    return [row(one, chip) for one in contests]


def row(contest: Contest, chip: Chip) -> dict[str, Any]:
    """us, interval_us: of ours, measured in the contest, or the modelled time where none was held (``kind``).

    baselines: those with a time, fastest first, each with ``speedup``: its time ÷ ours, with the interval of that.
    best: the fastest one's name.  score: 1 / (1 + (t - floor) / (t_best - floor)), the share of the way from the best
    baseline's time to the speed of light, one half where both are as fast.  floor_us, flops, bytes: of one call.
    """
    task, series = contest.task, contest.series
    needed = cost(task.graph, task.sizes)
    floor = floor_us(task, task.sizes, chip)
    made: dict[str, Any] = {
        "name": contest.name,
        "whole": contest.name == WHOLE,
        "identity": task.identity,
        "shape": dict(task.sizes),
        "calls": contest.calls,
        "kernels": [trial.candidate.digest for trial in contest.trials],
        "configurations": [trial.configuration for trial in contest.trials],
        "floor_us": round(floor, 3),
        "flops": needed.total_flops,
        "bytes": needed.bytes,
        "peak_flops": peak(task, chip),
        "kind": "measured" if OURS in series else "modelled",
        "us": None,
        "interval_us": None,
        "stability": "",
        "baselines": [],
        "best": None,
        "speedup": None,
        "speedup_interval": None,
        "score": None,
        "lacking": dict(contest.lacking),
        "message": contest.rejected.message if contest.rejected is not None else "",
        "samples": {name: [list(one) for one in found] for name, found in series.items()},
    }
    if OURS not in series:
        times = [trial.timed("modelled") for trial in contest.trials]
        if all(time is not None for time in times):
            made["us"] = round(sum(time.us for time in times if time is not None), 3)
        return made
    ours = series[OURS]
    time = measured(ours, task, task.sizes, chip)
    made |= {"us": time.us, "interval_us": time.interval, "stability": time.status}
    whole = {name: found for name, found in series.items() if name != OURS and len(found) == len(ours)}
    made["baselines"] = sorted((_baseline(name, found, ours) for name, found in whole.items()), key=lambda b: b["us"])
    if made["baselines"]:
        best = made["baselines"][0]
        made |= {"best": best["name"], "speedup": best["speedup"], "speedup_interval": best["speedup_interval"]}
        made["score"] = score(time.us, best["us"], floor)
    return made


def score(us: float, baseline_us: float, floor: float) -> float | None:
    """The speed-of-light score of docs/measuring.md; None where the baseline is not above the floor."""
    if baseline_us <= floor or us <= floor:
        return None
    return round(1 / (1 + (us - floor) / (baseline_us - floor)), 3)


def _baseline(name: str, found: list[list[float]], ours: list[list[float]]) -> dict[str, Any]:
    time, faster = median(found), ratio(found, ours)
    return {
        "name": name,
        "us": round(time.value, 3),
        "interval_us": _ends(time),
        "speedup": round(faster.value, 4),
        "speedup_interval": _ends(faster, 4),
    }


def _ends(found: Interval, digits: int = 3) -> tuple[float, float]:
    return round(found.low, digits), round(found.high, digits)


def verdict(row: Mapping[str, Any]) -> str:
    """``faster``, ``slower`` or ``even`` against the best baseline; empty where there is none."""
    if row["speedup_interval"] is None:
        return ""
    low, high = row["speedup_interval"]
    return "faster" if low > FASTER else "slower" if high < 1 / FASTER else "even"
