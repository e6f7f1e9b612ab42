"""Configuration search: every configuration of one candidate file, compiled for a chip and ranked by modelled time.

The axes of the file span a product; where it is larger than the limit, a seeded quasi-random part of it is looked at
(the default, its neighbours along one axis, then Halton points).  Each configuration is traced, priced by the model
with an *ideal* cubin, and compiled in order of that price.  As no real cubin is faster than the ideal one, what is
priced more than PRUNE times the best modelled time so far is not compiled: it cannot win.  Spilling and unlaunchable
configurations are kept as rows with their reason, behind all others.

What comes out is modelled, never measured, and says nothing about right or wrong: that is the judge's.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from knowledge_base.chips import Chip
from knowledge_base.hints import classify
from knowledge_base.records import CompileEvidence, Measurement, Stage, Status, Verdict
from knowledge_base.snf.task import Task

from .configurations import configurations, listed

if TYPE_CHECKING:
    from evaluator.compile import Cache
    from evaluator.trace import Traced

LIMIT = 64  # configurations looked at unless told
PRUNE = 1.1  # the ideal price may be this much above the best time before a configuration is given up
CHUNK = 4  # compiled between two looks at the best time, times the jobs
TRACES_PER_CHILD = 32
ASSEMBLY_S = 20.0  # of processor time: a kernel that the assembler chews on for longer is unrolled beyond any use
REGISTER_FILE = 256 * 1024  # bytes of registers of an SM, and of tensor memory where there is one

Axes = Mapping[str, Any]
Progress = Callable[[int, int, "Row"], None]  # rows decided, configurations looked at, the row


@dataclass(frozen=True)
class Row:
    """One configuration.

    status: ranked (compiled and modelled), spills, does-not-fit (no block fits an SM), infeasible (launch raised
    ValueError), failed (trace or assembler refused it: ``verdict``), pruned (``reason`` says by which rule).
    kernels: hashes of its bytecodes; cubins: of its cubins, in the same order.
    """

    axes: Axes
    status: str
    reason: str = ""
    measurement: Measurement | None = None
    evidence: tuple[CompileEvidence, ...] = ()
    kernels: tuple[str, ...] = ()
    cubins: tuple[str, ...] = ()
    verdict: Verdict | None = None
    traced: Traced | None = None

    @property
    def us(self) -> float:
        """The modelled time; infinite where there is none."""
        return self.measurement.us if self.measurement else math.inf


@dataclass(frozen=True)
class SearchResult:
    """``rows`` best first.  ``total`` configurations exist, ``left_out`` were not looked at because of the limit.

    ``verdict``: why the file as a whole cannot be searched.  ``compiled``: kernels compiled or found in the cache.
    """

    task: str
    chip: str
    sizes: Mapping[str, int]
    rows: tuple[Row, ...]
    total: int
    left_out: int
    compiled: int
    seconds: float
    verdict: Verdict | None = None

    @property
    def best(self) -> Row | None:
        """The fastest configuration that does not spill; where all spill, the fastest of those; None if none runs."""
        return next((row for row in self.rows if row.status in ("ranked", "spills")), None)

    def counts(self) -> dict[str, int]:
        """How many rows have each status."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.status] = found.get(row.status, 0) + 1
        return found


def search(
    source: str,
    task: Task,
    chip: Chip,
    *,
    sizes: Mapping[str, int] | None = None,
    limit: int = LIMIT,
    jobs: int | None = None,
    first: Sequence[Axes] = (),
    policy: str = "general",
    seed: int = 0,
    seconds: float | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Ranks the configurations of ``source`` for ``task`` on ``chip`` by modelled time at ``sizes`` (default: its own).

    first: configurations to look at before all others (the best ones of an earlier search); axes that they leave out
    have their defaults, those with values that the file does not list are ignored.  policy: evaluator.trace.Request's.
    seconds: no compilation is begun later than this (what is left is ``pruned``); the first chunk always is.
    Raises EnvironmentLacks without the toolchain; what is wrong with the candidate is in the rows or the verdict.
    """
    from evaluator.trace import read_axes

    started = time.monotonic()
    at = dict(sizes or task.sizes)
    axes = read_axes(source)
    if isinstance(axes, Verdict):
        return SearchResult(task.name, chip.name, at, (), 0, 0, 0, 0.0, axes)
    total = math.prod(len(values) for values in axes.values())
    chosen = list(configurations(axes, limit, first, seed))
    deadline = math.inf if seconds is None else started + seconds
    run = _Search(task, chip, at, jobs or _cores(), cache, progress, len(chosen), deadline)
    run.go(run.traced(source, chosen, policy), len(listed(first, axes)))
    return SearchResult(
        task=task.name,
        chip=chip.name,
        sizes=at,
        rows=tuple(sorted(run.rows, key=_order)),
        total=total,
        left_out=total - len(chosen),
        compiled=len(run.seen),
        seconds=round(time.monotonic() - started, 3),
    )


# ---------------------------------------------------------------------------------------------------- the search


class _Search:
    """One search's state: rows decided, kernels compiled, the best time so far."""

    def __init__(
        self, task: Task, chip: Chip, sizes: dict[str, int], jobs: int, cache: Cache | None, progress: Progress | None,
        expected: int, deadline: float,
    ) -> None:  # fmt: skip
        self.task, self.chip, self.sizes, self.jobs, self.cache = task, chip, sizes, jobs, cache
        self.progress, self.expected, self.deadline = progress, expected, deadline
        self.rows: list[Row] = []
        self.seen: dict[str, Any] = {}  # bytecode hash → Compiled or Verdict
        self.best = math.inf

    def decide(self, row: Row) -> None:
        self.rows.append(row)
        if row.status == "ranked":
            self.best = min(self.best, row.us)
        if self.progress:
            self.progress(len(self.rows), self.expected, row)

    def traced(self, source: str, chosen: Sequence[dict[str, Any]], policy: str) -> list[Traced]:
        """Traces all configurations, a batch a child; what the tracer refuses is decided here."""
        from evaluator.trace import Request, trace

        batches = [chosen[i : i + TRACES_PER_CHILD] for i in range(0, len(chosen), TRACES_PER_CHILD)]

        def batch(some: Sequence[dict[str, Any]]) -> list[Traced | Verdict]:
            return trace(source, self.task, [Request(self.sizes, axes, policy) for axes in some], self.chip)

        with ThreadPoolExecutor(max_workers=max(1, min(self.jobs, len(batches)))) as pool:
            answers = [answer for part in pool.map(batch, batches) for answer in part]
        good: list[Traced] = []
        for axes, answer in zip(chosen, answers, strict=True):
            if not isinstance(answer, Verdict):
                good.append(answer)
                continue
            status = "infeasible" if answer.status is Status.INFEASIBLE else "failed"
            self.decide(Row(axes, status, answer.message, verdict=answer))
        return good

    def go(self, traced: Sequence[Traced], warm: int) -> None:
        """Prices, prunes, compiles and models; the first ``warm`` configurations go first.

        Of configurations that cost the same before they are compiled, the second waits for the first of the others:
        what the price can't tell apart (an order of tiles) is rarely told apart by the cubin.
        """
        priced: list[tuple[int, float, int, Traced]] = []
        turns: dict[float, int] = {}
        for i, one in enumerate(traced):
            why = self.refused(one) or self.too_large(one)
            if isinstance(why, Verdict):
                self.decide(Row(one.axes, "failed", why.message, kernels=one.plan.kernels, verdict=why, traced=one))
            elif why:
                self.decide(Row(one.axes, "pruned", why, kernels=one.plan.kernels, traced=one))
            else:
                price = self.ideal(one)
                turns[price] = turns.get(price, 0) + 1
                priced.append((0 if i < warm else turns[price], price, i, one))
        priced.sort(key=lambda p: p[:3])
        while priced:
            chunk: list[Traced] = []
            while priced and len(chunk) < CHUNK * self.jobs:
                _, price, _, one = priced.pop(0)
                why = self.hopeless(price)
                if why:
                    self.decide(Row(one.axes, "pruned", why, kernels=one.plan.kernels, traced=one))
                else:
                    chunk.append(one)
            self.compile(chunk)
            for one in chunk:
                self.decide(self.row(one))

    def hopeless(self, price: float) -> str:
        """Why a configuration of this ideal price need not be compiled; empty if it should be."""
        if price > PRUNE * self.best:
            return f"an ideal cubin would take {price:.1f} µs by the model, another configuration takes {self.best:.1f}"
        if self.seen and time.monotonic() > self.deadline:
            return "the time allowed for the search was over"
        return ""

    def refused(self, one: Traced) -> Verdict | None:
        """Why a kernel's Tile IR cannot be read; None if all can."""
        from evaluator.model import parsed
        from evaluator.tileir.errors import TileIRError, Unsupported

        try:
            for digest in one.plan.kernels:
                parsed(one.kernels[digest])
        except TileIRError as error:
            status = Status.UNSUPPORTED if isinstance(error, Unsupported) else Status.COMPILE_ERROR
            error_class, hint = classify(status.value, str(error))
            return Verdict(
                status=status, stage=Stage.COMPILE, error_class=error_class, message=str(error)[:600], hint=hint
            )
        return None

    def too_large(self, one: Traced) -> str:
        """Why no chip can hold a kernel's accumulator; empty if one can."""
        from evaluator.model import parsed
        from evaluator.work import accumulator_bytes

        for digest in one.plan.kernels:
            size = accumulator_bytes(parsed(one.kernels[digest]))
            if size > REGISTER_FILE:
                return f"an accumulator of {size // 1024} KiB: an SM holds {REGISTER_FILE // 1024}"
        return ""

    def ideal(self, one: Traced) -> float:
        """The modelled time with cubins that use few registers, no shared memory and the fastest instructions."""
        return self.model(one, {k: _ideal(k, self.chip) for k in one.plan.kernels}).us

    def model(self, one: Traced, evidence: Mapping[str, CompileEvidence]) -> Measurement:
        from evaluator.model import modelled

        return modelled(self.task, self.sizes, one.plan, one.kernels, evidence, self.chip)

    def compile(self, chunk: Sequence[Traced]) -> None:
        """Compiles the chunk's kernels that no earlier configuration shares."""
        from evaluator.compile import compile_kernels

        new = {k: one.kernels[k] for one in chunk for k in one.plan.kernels if k not in self.seen}
        answers = compile_kernels(new, [self.chip.arch], jobs=self.jobs, cache=self.cache, seconds=ASSEMBLY_S)
        self.seen |= {digest: answer for (digest, _), answer in answers.items()}

    def row(self, one: Traced) -> Row:
        """The row of a configuration whose kernels are compiled."""
        answers = [self.seen[k] for k in one.plan.kernels]
        row = Row(one.axes, "failed", kernels=one.plan.kernels, traced=one)
        refused = next((a for a in answers if isinstance(a, Verdict)), None)
        if refused:
            return replace(row, reason=refused.message, verdict=refused)
        evidence = tuple(a.evidence for a in answers)
        row = replace(row, evidence=evidence, cubins=tuple(a.digest for a in answers))
        measurement = self.model(one, dict(zip(one.plan.kernels, evidence, strict=True)))
        if math.isinf(measurement.us):
            return replace(row, status="does-not-fit", reason="an SM cannot hold one block of it")
        spilled = max((e.spill_bytes for e in evidence), default=0)
        if spilled:
            reason = f"{spilled} bytes of registers a thread are spilled"
            return replace(row, status="spills", reason=reason, measurement=measurement)
        return replace(row, status="ranked", measurement=measurement)


def _ideal(kernel: str, chip: Chip) -> CompileEvidence:
    from evaluator.model import FULL_RATE

    return CompileEvidence(
        arch=chip.arch, kernel=kernel, symbol="", registers=32, stack_bytes=0, spill_bytes=0, shared_bytes=0,
        mma=FULL_RATE[chip.arch], tma=False, threads=128,
    )  # fmt: skip


_RANK = {"ranked": 0, "spills": 1, "does-not-fit": 2, "pruned": 3, "infeasible": 4, "failed": 5}


def _order(row: Row) -> tuple[int, float, str]:
    return _RANK[row.status], row.us, repr(sorted(row.axes.items(), key=lambda item: item[0]))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
