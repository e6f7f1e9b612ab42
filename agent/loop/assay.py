"""What becomes of one file's configurations on this machine: traced, priced, compiled, modelled and timed.

The price is the modelled time with an *ideal* cubin: no real one is faster, so what is priced more than PRUNE times the
best time so far is not compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from evaluator.compile import Cache, Compiled, compile_kernels
from evaluator.judging import Rejected, finished
from evaluator.kernel import Kernel, refusal
from evaluator.plans import Plans
from evaluator.tileir import TileIRError
from evaluator.timing import MODEL, Timer, ideal_us
from evaluator.trace import Request, trace
from evaluator.trial import begin
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import Chip
from knowledge_base.records import Candidate, Trial, Verdict
from knowledge_base.snf.task import Task

PRUNE = 1.1  # the ideal price may be this much above the fastest one's time before a configuration is given up
ASSEMBLY_S = 20.0  # of processor time: a kernel that the assembler chews on for longer is unrolled beyond any use
REGISTER_FILE = 256 * 1024  # bytes of registers of an SM, and of tensor memory where there is one
BATCH = 4  # configurations that are chosen, and traced, at a time
AHEAD = 1.5  # configurations under way for each assembler: some are traced meanwhile, some are on the GPU

Axes = Mapping[str, Any]


class Assemblers:
    """``count`` assemblers that searches share.  Each takes one of ``slots`` while it works."""

    def __init__(self, count: int) -> None:
        self.count, self.slots = count, threading.Semaphore(count)
        self._lock = threading.Lock()
        self._under_way = 0

    @property
    def idle(self) -> bool:
        """Whether fewer configurations are under way, of all searches, than keep all of them busy."""
        return self._under_way < AHEAD * self.count

    def expect(self, configurations: int) -> None:
        """So many more are under way; negative: fewer."""
        with self._lock:
            self._under_way += configurations


class Assay:
    """A candidate's configurations for ``task`` on ``chip``, at the task's sizes.  Threads share it.

    plans: what is traced is put there.
    """

    def __init__(
        self, candidate: Candidate, task: Task, chip: Chip, assemblers: Assemblers, cache: Cache | None, timer: Timer,
        plans: Plans,
    ) -> None:  # fmt: skip
        self.candidate, self.task, self.chip, self.timer, self.plans = candidate, task, chip, timer, plans
        self._assemblers, self._cache = assemblers, cache
        self._compiled: dict[str, Compiled | Verdict] = {}  # by the bytecode's hash
        self._default = begin(candidate, task, chip)

    def traced(self, some: Sequence[Axes]) -> list[Trial]:
        """A trial for each, from one child: with its plan, pruned where no chip could run it, or with a verdict."""
        requests = [Request(self.task.sizes, axes, "sample") for axes in some]
        made: list[Trial] = []
        for axes, answer in zip(some, trace(self.candidate.source, self.task, requests, self.chip), strict=True):
            trial = self._default.fuller(configuration=dict(axes))
            if isinstance(answer, Verdict):
                made.append(trial.fuller(verdict=answer))
                continue
            self.plans.put(answer)
            trial = trial.fuller(plans=(answer.digest,))
            why = self._refused(answer) or self._too_large(answer)
            if isinstance(why, Verdict):
                trial = trial.fuller(verdict=finished(why, self.candidate.source))
            elif why:
                trial = trial.fuller(pruned=why)
            made.append(trial)
        return made

    def price(self, trial: Trial) -> float:
        """µs that its plan takes with cubins that no assembler could better."""
        one = self.plans.of(trial)[0]
        return ideal_us(self.task.sizes, one.plan, one.kernels, self.chip)

    def compile(self, trials: Sequence[Trial]) -> None:
        """Compiles their kernels, as far as no earlier configuration shares them."""
        traced = [self.plans.of(trial)[0] for trial in trials]
        new = {k: one.kernels[k] for one in traced for k in one.plan.kernels if k not in self._compiled}
        answers = compile_kernels(
            new,
            [self.chip.arch],
            jobs=self._assemblers.count,
            slots=self._assemblers.slots,
            cache=self._cache,
            seconds=ASSEMBLY_S,
        )
        self._compiled |= {digest: answer for (digest, _), answer in answers.items()}

    def timed(self, trial: Trial) -> Trial:
        """The trial of a configuration whose kernels are compiled, with its times."""
        one = self.plans.of(trial)[0]
        answers = [self._compiled[k] for k in one.plan.kernels]
        evidence = []
        for answer in answers:
            if isinstance(answer, Verdict):
                return trial.fuller(verdict=finished(answer, self.candidate.source))
            evidence.append(answer.evidence)
        trial = trial.fuller(evidence=tuple(evidence))
        modelled = MODEL.time(trial, self.task, one)
        if modelled is None:
            return trial  # no block fits: there is nothing to time
        trial = trial.fuller(measurements=(modelled,))
        if self.timer.kind == MODEL.kind:
            return trial
        try:
            timed = self.timer.time(trial, self.task, one)
        except Rejected as rejected:  # a clock looks at results, too
            return trial.fuller(verdict=finished(rejected.verdict, self.candidate.source))
        return trial if timed is None else trial.fuller(measurements=(modelled, timed))

    def held_to(self, trial: Trial, bar: float) -> Trial:
        """The trial, pruned where its price says that it can't win against ``bar``."""
        return trial if over(trial) else priced_out(trial, self.price(trial), bar)

    def tried(self, trial: Trial) -> Trial:
        """The trial, compiled and timed."""
        self.compile([trial])
        return self.timed(trial)

    def assayed(self, some: Sequence[Axes], bar: float) -> list[Trial]:
        """A trial for each, done with: refused, pruned against ``bar``, or compiled and timed."""

        def done(trial: Trial) -> Trial:
            trial = self.held_to(trial, bar)
            return trial if over(trial) else self.tried(trial)

        with ThreadPoolExecutor(max_workers=len(some), thread_name_prefix="batch") as pool:
            return list(pool.map(done, self.traced(some)))

    def _refused(self, one: Launchable) -> Verdict | None:
        """Why a kernel's Tile IR cannot be read; None if all can."""
        try:
            for digest in one.plan.kernels:
                Kernel.of(one.kernels[digest]).module  # noqa: B018 (reading it is the question)
        except TileIRError as error:
            return refusal(error)
        return None

    def _too_large(self, one: Launchable) -> str:
        """Why no chip can hold a kernel's accumulator; empty if one can."""
        size = max((Kernel.of(one.kernels[digest]).counts.accumulator_bytes for digest in one.plan.kernels), default=0)
        if size <= REGISTER_FILE:
            return ""
        return f"an accumulator of {size // 1024} KiB: an SM holds {REGISTER_FILE // 1024}"


class Elsewhere(Protocol):
    """Other machines that do batches, at most ``batches`` at once."""

    @property
    def batches(self) -> int: ...

    def take(self) -> bool:
        """Whether there is room for another one; then it is taken until :meth:`assayed` is over."""

    def assayed(
        self, candidate: Candidate, task: Task, some: Sequence[Axes], bar: float
    ) -> tuple[list[Trial], list[Launchable]] | None:
        """As :meth:`Assay.assayed`, with the trials' plans; None where they could not."""


def over(trial: Trial) -> bool:
    """Whether it is not compiled: refused, or pruned."""
    return trial.verdict is not None or bool(trial.pruned)


def too_slow(price: float, bar: float) -> bool:
    """Whether a configuration of this price, in µs, can't win against ``bar``."""
    return price > PRUNE * bar


def priced_out(trial: Trial, price: float, bar: float) -> Trial:
    """The trial, pruned with its price if that is too slow."""
    if not too_slow(price, bar):
        return trial
    why = f"an ideal cubin would take {price:.1f} µs by the model, the fastest so far {bar:.1f}"
    return trial.fuller(pruned=why, price_us=round(price, 3))
