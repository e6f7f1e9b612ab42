"""Launch plans with their bytecode, by digest: those that this process has, behind them those that are stored.

A trial names its plans; whoever needs one asks here.  A plan that was traced in this process is a
:class:`evaluator.trace.Traced`; one that was read back is what runs, no more, and the judge takes none of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from evaluator.trace import Traced
from kernels_generated.runtime.plan import Launchable, PlanError, loads
from knowledge_base.records import Trial

if TYPE_CHECKING:
    from knowledge_base.store import Store


class Plans:
    """Threads may share one.  ``store``: what is looked at for plans that nobody put here."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._known: dict[str, Launchable] = {}

    def put(self, *plans: Launchable) -> None:
        """Keeps plans in memory; of two of one digest the one that was traced."""
        for plan in plans:
            if not isinstance(self._known.get(plan.digest), Traced):
                self._known[plan.digest] = plan

    def of(self, trial: Trial) -> tuple[Launchable, ...]:
        """The plans that the trial names, in order; none where it names none, or where one is nowhere whole."""
        self._recall([digest for digest in trial.plans if digest not in self._known])
        found = [self._known[digest] for digest in trial.plans if digest in self._known]
        return tuple(found) if len(found) == len(trial.plans) else ()

    def traced(self, trial: Trial) -> Traced | None:
        """The plan that the trial is timed in as the tracer gave it; None where nobody put that here."""
        first = self._known.get(trial.plans[0]) if trial.plans else None
        return first if isinstance(first, Traced) else None

    def artifacts(self, trial: Trial) -> dict[str, bytes]:
        """What is to be stored of a judged trial's plans; nothing of one that is not correct."""
        return {k: data for plan in self.of(trial) for k, data in plan.artifacts.items()} if trial.correct else {}

    def only(self, *trials: Trial) -> Plans:
        """The plans of these trials alone, in memory: what another process is sent."""
        chosen = Plans()
        for trial in trials:
            chosen.put(*self.of(trial))
        return chosen

    def __iter__(self) -> Iterator[Launchable]:
        return iter(tuple(self._known.values()))

    def _recall(self, digests: list[str]) -> None:
        """Reads stored plans; one that is not there whole, or that this version cannot read, is left out."""
        if self._store is None or not digests:
            return
        for digest, text in self._store.artifacts(digests).items():
            try:
                plan = loads(text.decode())
            except (PlanError, UnicodeDecodeError):
                continue
            kernels = self._store.artifacts(plan.kernels)
            if plan.digest == digest and all(kernel in kernels for kernel in plan.kernels):
                self.put(Launchable(plan, kernels))
