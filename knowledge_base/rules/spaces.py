"""Measured configurations as tables: one for each task, shape and chip that a session timed.

Configurations are compared within a space alone, where the same clock timed them under the same conditions.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knowledge_base.snf.op_table import OPS

from .form import known_as
from .structure import features

MISSING = -1  # the code of a feature that a configuration does not have


@dataclass(frozen=True)
class Timed:
    """A configuration and the µs that it took.

    session: times of one compare.  ops: that the task is made of.  source: the text of the kernel's file, if there is
    one.
    """

    task: str
    ops: tuple[str, ...]
    sizes: Mapping[str, int]
    dtype: str
    chip: str
    session: str
    axes: Mapping[str, Any]
    source: str
    us: float


@dataclass(frozen=True, eq=False)
class Space:
    """Rows of configurations: ``codes[row, feature]`` is a number of ``values[feature]``, ``us[row]`` the time.

    ops: what scopes may call the task.  whole: all combinations of the values are there.
    """

    task: str
    ops: frozenset[str]
    sizes: Mapping[str, int]
    dtype: str
    chip: str
    session: str
    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    codes: np.ndarray
    us: np.ndarray
    whole: bool

    @functools.cached_property
    def log_us(self) -> np.ndarray:
        return np.log(self.us)

    @functools.cached_property
    def _packed(self) -> tuple[np.ndarray, list[int]]:
        """A number for each row that tells all its features, and what each feature's code counts in it."""
        weights, one = [], 1
        for values in self.values:
            weights.append(one)
            one *= len(values) + 1
        kind = np.int64 if one < 2**62 else object
        return (self.codes.astype(kind) + 1) @ np.array(weights, dtype=kind), weights

    def groups(self, features: tuple[int, ...]) -> np.ndarray:
        """A number for each row, from 0, that is the same where rows differ in these features alone."""
        if features not in self._groups:
            whole, weights = self._packed
            for k in features:
                whole = whole - (self.codes[:, k].astype(whole.dtype) + 1) * weights[k]
            self._groups[features] = np.unique(whole, return_inverse=True)[1].reshape(-1)
        return self._groups[features]

    def comparable(self, features: tuple[int, ...]) -> tuple[np.ndarray, int, np.ndarray]:
        """The rows' groups, how many there are, and the rows that have all of these features, group after group."""
        if features not in self._comparable:
            group = self.groups(features)
            there = np.flatnonzero((self.codes[:, features] != MISSING).all(1))
            ordered = there[np.argsort(group[there], kind="stable")]
            self._comparable[features] = group, int(group.max()) + 1, ordered
        return self._comparable[features]

    @functools.cached_property
    def columns(self) -> dict[str, int]:
        """The number of each feature."""
        return {name: k for k, name in enumerate(self.names)}

    @functools.cached_property
    def _numbers(self) -> tuple[dict[Any, int], ...]:
        return tuple({value: code for code, value in enumerate(values)} for values in self.values)

    @functools.cached_property
    def _groups(self) -> dict[tuple[int, ...], np.ndarray]:
        return {}

    @functools.cached_property
    def _comparable(self) -> dict[tuple[int, ...], tuple[np.ndarray, int, np.ndarray]]:
        return {}

    @functools.cached_property
    def shape(self) -> tuple[str, str, str, tuple[tuple[str, int], ...]]:
        """What it is about.  Two spaces of one shape are two looks at the same thing."""
        return self.task, self.chip, self.dtype, tuple(sorted(self.sizes.items()))

    def selected(self, conditions: Iterable[tuple[str, Any]]) -> np.ndarray | None:
        """Which rows have these values; None where a feature is not one of this space."""
        rows = np.ones(len(self.us), dtype=bool)
        for name, value in conditions:
            if name not in self.columns:
                return None
            k = self.columns[name]
            if value not in self._numbers[k]:
                return np.zeros(len(self.us), dtype=bool)
            rows &= self.codes[:, k] == self._numbers[k][value]
        return rows


@functools.lru_cache(maxsize=1024)
def ops_in(name: str) -> tuple[str, ...]:
    """The ops that a task's name tells of: ``linear_silu_mul_c0ad0d`` linear, silu and mul."""
    return tuple(word for word in dict.fromkeys(re.split(r"[^A-Za-z0-9]+", name)) if word in OPS)


def in_spaces(timed: Iterable[Timed]) -> list[Space]:
    """The spaces of configurations, in the order in which they come; those that have one configuration are left out.

    Files of one session are one space where they differ in structure; files that do not are spaces of their own.
    """
    tables: dict[tuple[Any, ...], dict[str, list[tuple[dict[str, Any], float]]]] = {}
    heads: dict[tuple[Any, ...], Timed] = {}
    for row in timed:
        if not (math.isfinite(row.us) and row.us > 0):
            continue
        key = (row.session, row.task, row.chip, row.dtype, tuple(sorted(row.sizes.items())))
        heads.setdefault(key, row)
        tables.setdefault(key, {}).setdefault(row.source, []).append((features(row.axes, row.source), row.us))
    out = []
    for key, files in tables.items():
        apart: list[dict[str, list[tuple[dict[str, Any], float]]]] = []
        for source, rows in files.items():  # the first group in which no file is made like this one
            made = _made(rows)
            place = next((group for group in apart if all(_made(other) != made for other in group.values())), None)
            if place is None:
                apart.append(place := {})
            place[source] = rows
        out += [_space(heads[key], list(group.values())) for group in apart]
    return [space for space in out if len(space.us) > 1]


def _made(rows: Sequence[tuple[dict[str, Any], float]]) -> frozenset[tuple[str, Any]]:
    """What all rows of a file have in common."""
    common = set(rows[0][0].items())
    for found, _ in rows[1:]:
        common &= set(found.items())
    return frozenset(common) | {("axes", frozenset(rows[0][0]))}


def _space(head: Timed, files: Sequence[Sequence[tuple[dict[str, Any], float]]]) -> Space:
    rows = [row for file in files for row in file]
    names = tuple(dict.fromkeys(name for found, _ in rows for name in found))
    values = tuple(tuple(dict.fromkeys(found[n] for found, _ in rows if n in found)) for n in names)
    number = [{value: i for i, value in enumerate(of)} for of in values]
    codes = np.full((len(rows), len(names)), MISSING, dtype=np.int16)
    for i, (found, _) in enumerate(rows):
        for k, name in enumerate(names):
            if name in found:
                codes[i, k] = number[k][found[name]]
    us = np.array([time for _, time in rows])
    # A file's configurations are all there are if they are as many as its values' combinations.
    whole = all(len(file) >= math.prod(len({found.get(name) for found, _ in file}) for name in names) for file in files)
    return Space(
        head.task, known_as(head.task, head.ops), dict(head.sizes), head.dtype, head.chip, head.session, names, values,
        codes, us, whole,
    )  # fmt: skip
