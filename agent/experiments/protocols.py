"""Whether knowledge compounds: the same searches with a knowledge base and without, on measured spaces.

- In sequence: one work after another, in many orders; the base has what the searches before tried, and nothing else.
- Left out: the base has all of every other work, but for what is alike: the same ops at the same sizes, the same ops,
  all ops of a kind (linears are near-twins), or the other model's block.
- Poisoned: what the base has is wrong: times of near work upside down, times of the work itself shuffled or upside
  down, and rules that say the contrary of what was mined.

A search is what ``agent run`` does on a GPU (:mod:`agent.loop.sampling`), with times looked up.  Of each its learning
curve counts: after every try, the best time there is ÷ the best one found.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from agent.loop import Prior
from knowledge_base.rules import Space, Timed, in_spaces, insert, key_of, mine, review
from knowledge_base.store import Store

from .measured_files import Landscape, known_by, landscapes, shuffled, spaces, tried, upside_down

SMALLEST = 48  # configurations of a space that is worth a search
GOOD, NEAR = 0.95, 1 / 1.02  # of the best speed: what tries are counted to
PLACES = ((1, 1), (2, 4), (5, 8), (9, 99))  # in a sequence: first and last of a group
DRAWS = 1000  # of a bootstrap
CONTRARY = {"faster": "slower", "slower": "faster"}

Measures = Mapping[str, float]


@dataclass(frozen=True)
class Pair:
    """The same search, cold and warm."""

    cold: Measures
    warm: Measures


def compounding(tries: int, orders: int, seeds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The whole experiment on the landscapes that ship.

    tries: of a search; in a sequence, where it ends.  orders: sequences.  seeds: of each search, whose mean counts.
    """
    everything = landscapes()
    some = [work for work in everything if len(work.rows) >= SMALLEST and work.rows[0].source]
    searches = _Searches(tries, seeds)
    chips = sorted({work.rows[0].chip for work in some})
    document: dict[str, Any] = {
        "experiment": "compounding", "chips": chips, "spaces": len(some), "tries": tries, "orders": orders,
        "seeds": seeds,
    }  # fmt: skip
    document["sequence"], rules = _in_sequence(_distinct(some), searches, orders, say)
    document["left_out"] = _left_out(some, everything, searches, say)
    document["poisoned"] = _poisoned(some, everything, searches, say)
    document["planted_rules"] = rules
    return document


# ---------------------------------------------------------------------------------------------------- a search


class _Searches:
    """Searches of so many tries, each by so many seeds, whose mean counts.  cold: of a work, that knows nothing."""

    def __init__(self, tries: int, seeds: int) -> None:
        self.tries, self._seeds = tries, seeds
        self.cold = functools.cache(self._measured)

    def _measured(self, work: Landscape, prior: Prior | None = None) -> Measures:
        each = [searched(work, seed, self.tries, prior).measures for seed in range(self._seeds)]
        return {name: mean(one[name] for one in each) for name in each[0]}

    def beside(self, work: Landscape, prior: Prior | None) -> Pair:
        """That which knows nothing, and that which begins with ``prior``."""
        cold = self.cold(work)
        return Pair(cold, cold if prior is None else self._measured(work, prior))


@dataclass(frozen=True)
class Search:
    """What a search tried, in this order: as many as it may, and on to one that is NEAR."""

    work: Landscape
    rows: Sequence[Timed]
    tries: int

    @property
    def measures(self) -> Measures:
        """Tries to GOOD and to NEAR, and by so many tries as it may have the area under the learning curve (its mean)
        and its end."""
        curve = self.work.best / np.minimum.accumulate([row.us for row in self.rows])
        upto = curve[: self.tries]
        return {
            "tries_to_95%": int(np.argmax(curve >= GOOD)) + 1,
            "tries_to_98%": int(np.argmax(curve >= NEAR)) + 1,
            "area": float(upto.sum() + (self.tries - len(upto)) * upto[-1]) / self.tries,
            "final": float(upto[-1]),
        }


def searched(work: Landscape, seed: int, tries: int, prior: Prior | None = None) -> Search:
    """A search, cold or from what is known."""
    rows: list[Timed] = []
    near = False
    for row in tried(work, seed, prior):
        rows.append(row)
        near = near or work.best / row.us >= NEAR
        if near and len(rows) >= tries:
            break
    return Search(work, rows, tries)


# ---------------------------------------------------------------------------------------------------- the protocols


def _in_sequence(
    some: Sequence[Landscape], searches: _Searches, orders: int, say: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures by place in the sequence; and what became of contrary rules in the base of the first one."""
    by_place: dict[tuple[int, int], list[list[Pair]]] = {place: [[] for _ in range(orders)] for place in PLACES}
    first: list[Timed] = []
    for number in range(orders):
        say(f"sequence {number + 1} of {orders}")
        known: list[Timed] = []
        order = random.Random(number).sample(some, len(some))
        for place, work in enumerate(order, 1):
            prior = known_by(work, in_spaces(known))
            group = next(one for one in PLACES if one[0] <= place <= one[1])
            by_place[group][number].append(searches.beside(work, prior))
            known += searched(work, number, searches.tries, prior).rows[: searches.tries]
        first = first or known
    figures = {
        str(low) if low == high else f"{low} to {min(high, len(some))}": summary(by_place[low, high])
        for low, high in PLACES
        if low <= len(some)
    }
    return figures, _planted(spaces(some), in_spaces(first))


def _left_out(
    some: Sequence[Landscape], everything: Sequence[Landscape], searches: _Searches, say: Callable[[str], None]
) -> dict[str, Any]:
    known: dict[str, Callable[[Landscape, Landscape], bool]] = {
        "the same ops at these sizes": lambda other, work: other.shape != work.shape,
        "the same ops": lambda other, work: other.op != work.op,
        "all ops of the kind": lambda other, work: other.family != work.family,
    }
    found = {name: _each(name, some, everything, searches, keeps, say) for name, keeps in known.items()}
    for model in ("GPT-2", "Llama"):
        of_model = [work for work in some if work.model == model]
        name = f"{model}'s own, for {model}'s"
        found[name] = _each(name, of_model, everything, searches, lambda other, work: other.model != work.model, say)
    return found


def _each(
    name: str, some: Sequence[Landscape], everything: Sequence[Landscape], searches: _Searches,
    keeps: Callable[[Landscape, Landscape], bool], say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    pairs = []
    for number, work in enumerate(some, 1):
        say(f"left out: {name}, {number} of {len(some)}")
        known = spaces(other for other in everything if keeps(other, work))
        pairs.append(searches.beside(work, known_by(work, known)))
    return summary(_by_shape(some, pairs))


def _poisoned(
    some: Sequence[Landscape], everything: Sequence[Landscape], searches: _Searches, say: Callable[[str], None]
) -> dict[str, Any]:
    wrong = {work: upside_down(work) for work in everything}
    known: dict[str, Callable[[Landscape], list[Space]]] = {
        "other sizes and ops, upside down": lambda work: spaces(
            wrong[one] for one in everything if one.shape != work.shape
        ),
        "the space itself, shuffled": lambda work: spaces([shuffled(work)]),
        "the space itself, upside down": lambda work: spaces([wrong[work]]),
    }
    found = {}
    for name, of in known.items():
        pairs = []
        for number, work in enumerate(some, 1):
            say(f"poisoned: {name}, {number} of {len(some)}")
            pairs.append(searches.beside(work, known_by(work, of(work))))
        found[name] = summary(_by_shape(some, pairs))
    return found


def _planted(whole: Sequence[Space], seen: Sequence[Space]) -> dict[str, Any]:
    """What becomes of rules that say the contrary of what ``whole`` yields, in a base that has seen ``seen``."""
    told = [rule for rule in mine(whole) if rule.direction in CONTRARY]
    wrong = [rule.model_copy(update={"direction": CONTRARY[rule.direction]}) for rule in told]
    rules = {key_of(rule.form, rule.direction): rule for rule in wrong}
    with tempfile.TemporaryDirectory() as folder, Store.open(str(Path(folder) / "kb.db")) as store:
        with store.database.write() as connection:
            insert(connection, rules, "planted")
        changes = {change.key: change for change in review(store.database, seen, "the first sequence")}
    refuted = sum(key in changes and changes[key].status == "refuted" for key in rules)
    return {"planted": len(rules), "refuted": refuted, "left": len(rules) - refuted}


def _by_shape(some: Sequence[Landscape], pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Files of the same ops at the same sizes are much alike, so that they are drawn together."""
    groups: dict[Any, list[Pair]] = {}
    for work, pair in zip(some, pairs, strict=True):
        groups.setdefault(work.shape, []).append(pair)
    return list(groups.values())


def _distinct(some: Sequence[Landscape]) -> list[Landscape]:
    """Of each shape the file with the most configurations: a sequence in which nothing comes twice."""
    largest: dict[Any, Landscape] = {}
    for work in some:
        if work.shape not in largest or len(work.rows) > len(largest[work.shape].rows):
            largest[work.shape] = work
    return list(largest.values())


# ---------------------------------------------------------------------------------------------------- figures


def summary(units: Sequence[Sequence[Pair]]) -> dict[str, Any]:
    """Of pairs, in groups that are drawn together: each measure cold and warm, with 95% intervals by a bootstrap.

    One group has no intervals.
    """
    pairs = [pair for unit in units for pair in unit]
    found: dict[str, Any] = {"searches": len(pairs)}
    for name in pairs[0].cold:
        sums = np.array(
            [(sum(p.cold[name] for p in unit), sum(p.warm[name] for p in unit), len(unit)) for unit in units]
        )
        drawn = sums[np.random.default_rng(0).integers(0, len(sums), (DRAWS, len(sums)))].sum(1)
        drawn = drawn[:, :2] / drawn[:, 2:] if len(units) > 1 else drawn[:0]
        cold, warm = (float(one) for one in sums[:, :2].sum(0) / sums[:, 2].sum())
        found[name] = {
            "cold": cold, "cold_median": median(pair.cold[name] for pair in pairs), "cold_95": _interval(drawn[:, 0]),
            "warm": warm, "warm_median": median(pair.warm[name] for pair in pairs), "warm_95": _interval(drawn[:, 1]),
            "ratio": warm / cold, "ratio_95": _interval(drawn[:, 1] / drawn[:, 0]),
        }  # fmt: skip
    return found


def _interval(drawn: np.ndarray) -> list[float] | None:
    if not len(drawn):
        return None
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [float(low), float(high)]
