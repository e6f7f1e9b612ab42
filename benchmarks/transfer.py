"""How much sooner a search is near the best where near work is known.  Prints one JSON line.

    python benchmarks/transfer.py [--within 1.02] [--seeds N]

The measured landscapes that ship are looked up as a table: no GPU is needed.  Each space of at least SMALLEST
configurations of a file is searched with 8 tries under way, cold by N seeds; and warm, by what the other spaces say
when some are left out: those of the same ops at the same sizes (``related shape``), or all of the same ops, at
whatever sizes (``related operator``).  And misled: all that is known is the space itself with its times shuffled, or
with the slowest as the fastest (``upside down``).  The tries until one is within 2% of the space's best: medians and
means, with 95% intervals by a bootstrap over the spaces, and these means ÷ the cold one's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.loop.prior import Prior, prior_of
from agent.loop.sampling import Sampler
from agent.loop.searching import BATCH, FEW
from evaluator.trace import read_axes
from knowledge_base.rules import Timed, features, in_spaces, shipped

SMALLEST = 48
# What landscapes call the same ops differently.
NAMES = {"linear_add": "linear_residual", "linear_23d289": "linear", "matmul_div_add_softmax": "attention"}


@dataclass(frozen=True)
class Work:
    """A file's configurations, the default first, with the µs that each took."""

    rows: Sequence[Timed]

    @property
    def op(self) -> str:
        """What its ops are called, whatever the text: ``linear_residual`` of ``linear_add_4adc6a``."""
        name = self.rows[0].task
        known = [op for start, op in NAMES.items() if name.startswith(start)]
        return known[0] if known else "_".join(part for part in name.split("_") if not _is_digest(part))

    @property
    def shape(self) -> tuple[str, str]:
        return self.op, json.dumps(self.rows[0].sizes, sort_keys=True)


def _is_digest(part: str) -> bool:
    return len(part) == 6 and all(c in "0123456789abcdef" for c in part)


def works() -> list[Work]:
    found: dict[tuple[Any, ...], list[Timed]] = {}
    for row in shipped():
        found.setdefault((row.session, row.task, json.dumps(row.sizes), row.source), []).append(row)
    made = []
    for rows in found.values():
        axes = read_axes(rows[0].source) if rows[0].source else {}
        if isinstance(axes, Mapping) and axes:
            rows.sort(key=lambda row: [list(axes[name]).index(row.axes[name]) for name in axes])
        made.append(Work(rows))
    return made


def batches(
    configurations: Sequence[Mapping[str, Any]], took: Sequence[float], given: int, seed: int,
    prior: Prior | None = None,
) -> Iterator[list[int]]:  # fmt: skip
    """The places that a search tries, in the order in which it is told what they took; FEW are under way."""
    sampler = Sampler(configurations, given, seed, prior=prior)
    under_way: deque[list[int]] = deque()
    while True:
        while len(under_way) < FEW // BATCH and (places := sampler.ask(BATCH)):
            under_way.append(places)
        if not under_way:
            return
        done = under_way.popleft()
        for place in done:
            sampler.tell(place, took[place])
        yield done


def tries(work: Work, seed: int, prior: Prior | None, within: float) -> int:
    """Until one is within so much of the best."""
    took = [row.us for row in work.rows]
    told = (place for done in batches([row.axes for row in work.rows], took, 1, seed, prior) for place in done)
    return next(count for count, place in enumerate(told, 1) if took[place] <= within * min(took))


def warm(work: Work, others: Sequence[Work], seeds: int, within: float) -> float:
    first = work.rows[0]
    spaces = in_spaces(row for other in others for row in other.rows)
    found = [features(row.axes, row.source) for row in work.rows]
    prior = prior_of(spaces, first.task, first.ops, first.dtype, first.sizes, first.chip, found)
    return mean(tries(work, seed, prior, within) for seed in range(seeds if prior is None else 1))


def misleading(work: Work) -> dict[str, Work]:
    """The space with other times."""
    times = [row.us for row in work.rows]
    shuffled = random.Random(0).sample(times, len(times))
    others = {"shuffled": shuffled, "upside down": [max(times) * min(times) / us for us in times]}
    return {
        name: Work([replace(row, us=us) for row, us in zip(work.rows, some, strict=True)])
        for name, some in others.items()
    }


def interval(values: Sequence[float], figure: Callable[[Sequence[float]], float]) -> list[float]:
    rng = np.random.default_rng(0)
    drawn = [figure(list(rng.choice(values, len(values)))) for _ in range(1000)]
    return [round(float(one), 1) for one in np.quantile(drawn, [0.025, 0.975])]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--within", type=float, default=1.02)
    options.add_argument("--seeds", type=int, default=8)
    asked = options.parse_args()
    everything = works()
    searched = [work for work in everything if len(work.rows) >= SMALLEST and work.rows[0].source]
    found: dict[str, list[float]] = {}
    spaces = {}
    for work in searched:
        others = [one for one in everything if one is not work]
        known = {
            "cold": [],
            "related shape": [one for one in others if one.shape != work.shape],
            "related operator": [one for one in others if one.op != work.op],
            **{name: [one] for name, one in misleading(work).items()},
        }
        row = {name: warm(work, some, asked.seeds, asked.within) for name, some in known.items()}
        for name, one in row.items():
            found.setdefault(name, []).append(one)
        label = f"{work.op} {work.shape[1]} {len(work.rows)}"
        spaces[next(f"{label} #{n}" for n in itertools.count(1) if f"{label} #{n}" not in spaces)] = row
    summary = {
        name: {
            "median": median(values), "median_95": interval(values, median),
            "mean": round(mean(values), 1), "mean_95": interval(values, mean),
            "most": max(values),
            "of_cold": round(mean(values) / mean(found["cold"]), 3),
        }
        for name, values in found.items()
    }  # fmt: skip
    assert all(math.isfinite(one) for values in found.values() for one in values)
    print(json.dumps({"benchmark": "transfer", "within": asked.within, "tries": summary, "spaces": spaces}))


if __name__ == "__main__":
    main()
