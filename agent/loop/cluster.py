"""Other hosts' GPUs, through Dask: workers of a cluster do batches of a search, too.

A worker traces, compiles and times a batch as a search does it here, on its own host and with a runner of its own for
each run.  What comes back is trials with their plans; kernels are judged, and winners measured again, here alone.
Dask's workers run whatever they are sent: a cluster belongs in a network that one trusts.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from evaluator.compile import cores
from evaluator.plans import Plans
from evaluator.replay import AnyRunner, runner_for
from evaluator.timing import Measured
from evaluator.version import evaluator_version
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import Chip
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.records import Candidate, Trial
from knowledge_base.snf.task import Task

from .assay import BATCH, Assay, Assemblers, Axes

CONNECT_S = 20.0
LOOK_S = 5.0  # between two looks whether a worker is left that could answer
INSTALL = "python -m pip install 'tilewright[cluster]'"
START = "Start one: dask scheduler; then on each host with such a GPU: dask worker ADDRESS --nworkers 1"

Answer = tuple[list[Trial], list[Launchable]]


class Cluster:
    """The workers behind the scheduler at ``address`` whose hosts have ``chip``, for one run.  Threads share it.

    say: told which workers are left out, and why.  Raises EnvironmentLacks without Dask, without a scheduler that
    answers, and where no worker can be used.
    """

    def __init__(self, address: str, chip: Chip, seed: int, say: Callable[[str], None]) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise EnvironmentLacks("--cluster needs Dask", INSTALL) from None
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters of it is said here
        self._run, self._chip, self._seed, self._say = secrets.token_hex(8), chip, seed, say
        self._lock = threading.Lock()
        self._taken = 0
        self._closed = False
        try:
            self._client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise EnvironmentLacks(f"--cluster {address}: no scheduler answers ({error})", START) from None
        try:
            self._workers = self._entered(address)
            self.batches = sum(max(1, n // BATCH) for w, n in self._client.nthreads().items() if w in self._workers)
        except BaseException:
            self.close()
            raise
        say(f"cluster {address}: {len(self._workers)} more with {chip.product}")

    def _entered(self, address: str) -> list[str]:
        """The workers that can be used."""
        answers = self._client.run(_enter, self._run, self._chip, self._seed, on_error="return")
        if not answers:
            raise EnvironmentLacks(f"--cluster {address}: it has no workers", START)
        lacking = {
            worker: "another version of tilewright, or of a package" if isinstance(said, str) else said
            for worker, said in answers.items()
            if said != evaluator_version()
        }
        for worker, why in lacking.items():
            self._say(f"cluster: {worker} is left out: {why}")
        if len(lacking) == len(answers):
            worker, why = next(iter(lacking.items()))
            raise EnvironmentLacks(f"--cluster {address}: no worker can be used; {worker}: {why}", START)
        return [worker for worker in answers if worker not in lacking]

    def take(self) -> bool:
        """Whether there is room for another batch; then it is taken until :meth:`assayed` is over."""
        with self._lock:
            room = self._taken < self.batches
            self._taken += room
            return room

    def assayed(self, candidate: Candidate, task: Task, some: Sequence[Axes], bar: float) -> Answer | None:
        """As :meth:`.assay.Assay.assayed`, with the plans; None where the cluster could not: it is used no more.

        Raises EnvironmentLacks once it was closed.
        """
        try:
            with self._lock:
                if self.batches == 0:
                    return None
            return self._asked(candidate, task, some, bar)
        except Exception as error:  # of Dask's, or a worker's: all of them mean that it did not answer
            if self._closed:
                raise EnvironmentLacks("the cluster was left", "Use --resume to go on.") from None
            with self._lock:
                first, self.batches = self.batches > 0, 0
            if first:
                self._say(f"the cluster is used no more: {type(error).__name__}: {error}")
            return None
        finally:
            with self._lock:
                self._taken -= 1

    def _asked(self, *question: Any) -> Answer:
        given = (self._run, self._chip, self._seed, *question)
        future = self._client.submit(_assayed, *given, workers=self._workers, pure=False, retries=1)
        while True:
            try:
                answer: Answer = future.result(timeout=LOOK_S)
                return answer
            except TimeoutError:
                if not set(self._workers) & set(self._client.nthreads()):
                    raise OSError("no worker is left") from None

    def close(self) -> None:
        """Leaves the workers as they were, and their GPUs free.  May be called twice, from any thread."""
        self._closed = True
        with contextlib.suppress(Exception):  # it may be gone
            self._client.run(_leave, self._run, on_error="ignore")
        with contextlib.suppress(Exception):
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------------------------------------------- on a worker


@dataclass(frozen=True)
class _Place:
    """What a run has on a worker."""

    runner: AnyRunner
    timer: Measured
    assemblers: Assemblers


_places: dict[str, _Place] = {}  # by run
_entering = threading.Lock()


def _enter(run: str, chip: Chip, seed: int) -> str:
    """Makes the run's place, and says what version is here.  Raises EnvironmentLacks without a GPU that is the chip."""
    with _entering:
        if run not in _places:
            runner = runner_for(chip)
            _places[run] = _Place(runner, Measured(runner, seed), Assemblers(cores()))
    return evaluator_version()


def _assayed(
    run: str, chip: Chip, seed: int, candidate: Candidate, task: Task, some: Sequence[Axes], bar: float
) -> Answer:
    _enter(run, chip, seed)  # a worker that was started anew has no place yet
    place, plans = _places[run], Plans()
    trials = Assay(candidate, task, chip, place.assemblers, None, place.timer, plans).assayed(some, bar)
    return trials, [one for trial in trials for one in plans.of(trial)]


def _leave(run: str) -> None:
    with _entering:
        place = _places.pop(run, None)
    if place is not None:
        place.runner.close()
