"""Measured spaces of configurations as work that a search can be tried on: no GPU is needed."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.loop import Prior, looked_up, prior_of
from evaluator.trace import read_axes
from knowledge_base.rules import Space, Timed, features, in_spaces, known_as, shipped
from knowledge_base.snf.op_table import OPS, kind

# What landscapes call the same ops differently.
NAMES = {"linear_add": "linear_residual", "linear_23d289": "linear", "matmul_div_add_softmax": "attention"}
GPT2 = 768  # the width of GPT-2's blocks: a size of each of their tasks but attention's
GPT2_HEADS = 12


@dataclass(frozen=True, eq=False)
class Landscape:
    """A file's configurations, the default first, with the µs that each took."""

    rows: Sequence[Timed]

    @functools.cached_property
    def op(self) -> str:
        """What its ops are called, whatever the text: ``linear_residual`` of ``linear_add_4adc6a``."""
        name = self.rows[0].task
        known = [op for start, op in NAMES.items() if name.startswith(start)]
        return known[0] if known else "_".join(part for part in name.split("_") if not _is_digest(part))

    @property
    def shape(self) -> tuple[str, str]:
        return self.op, json.dumps(self.rows[0].sizes, sort_keys=True)

    @functools.cached_property
    def family(self) -> str:
        """The kind of its ops: ``attention``, or of the first op that computes: contraction, row, elementwise, …"""
        first = self.rows[0]
        ops = known_as(first.task, first.ops)
        if "attention" in ops:
            return "attention"
        kinds = [kind(word) for word in (*first.ops, *self.op.split("_")) if word in OPS]
        return "contraction" if "contraction" in kinds else kinds[0]

    @property
    def model(self) -> str:
        """Whose block it is of: ``GPT-2`` or ``Llama``."""
        sizes = self.rows[0].sizes
        return "GPT-2" if GPT2 in sizes.values() or sizes.get("H") == GPT2_HEADS else "Llama"

    @functools.cached_property
    def best(self) -> float:
        """µs of the fastest."""
        return min(row.us for row in self.rows)

    @functools.cached_property
    def features(self) -> list[Mapping[str, Any]]:
        return [features(row.axes, row.source) for row in self.rows]


def _is_digest(part: str) -> bool:
    return len(part) == 6 and all(c in "0123456789abcdef" for c in part)


def landscapes() -> list[Landscape]:
    """Of what ships: each file of each session at each shape."""
    found: dict[tuple[Any, ...], list[Timed]] = {}
    for row in shipped():
        found.setdefault((row.session, row.task, json.dumps(row.sizes), row.source), []).append(row)
    made = []
    for rows in found.values():
        axes = read_axes(rows[0].source) if rows[0].source else {}
        if isinstance(axes, Mapping) and axes:
            rows.sort(key=lambda row: [list(axes[name]).index(row.axes[name]) for name in axes])
        made.append(Landscape(rows))
    return made


def tried(work: Landscape, seed: int, prior: Prior | None = None) -> Iterator[Timed]:
    """Its rows, in the order in which a search is told them."""
    configurations, took = [row.axes for row in work.rows], [row.us for row in work.rows]
    for place in looked_up(configurations, took, 1, seed, prior):
        yield work.rows[place]


def known_by(work: Landscape, known: Sequence[Space]) -> Prior | None:
    """What a search of the work starts from, where ``known`` is; None where none of it is near."""
    first = work.rows[0]
    if not known:
        return None
    return prior_of(known, first.task, first.ops, first.dtype, first.sizes, first.chip, work.features)


def spaces(some: Iterable[Landscape]) -> list[Space]:
    """What is known where these are; files of one session and shape are one space, or several."""
    together: dict[Any, list[Landscape]] = {}
    for one in some:
        first = one.rows[0]
        together.setdefault((first.session, first.task, one.shape), []).append(one)
    return [space for group in together.values() for space in _spaces(tuple(group))]


@functools.cache
def _spaces(some: tuple[Landscape, ...]) -> list[Space]:
    return in_spaces(row for work in some for row in work.rows)


def shuffled(work: Landscape) -> Landscape:
    """The same configurations, with each other's times."""
    times = [row.us for row in work.rows]
    mixed = random.Random(0).sample(times, len(times))
    return Landscape([replace(row, us=us) for row, us in zip(work.rows, mixed, strict=True)])


def upside_down(work: Landscape) -> Landscape:
    """The same configurations, the fastest as slow as the slowest and the other way round."""
    times = [row.us for row in work.rows]
    return Landscape([replace(row, us=max(times) * min(times) / row.us) for row in work.rows])
