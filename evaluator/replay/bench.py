"""What a runner's process holds, and what it can be asked: functions that get the bench as their last argument.

All of it is our own code: a candidate's part in it are launch plans, which are checked before they run, and cubins,
which run on the GPU.
"""

from __future__ import annotations

import gc
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from evaluator.baselines import BASELINES
from evaluator.judging import (
    POISON_A,
    Examination,
    Executable,
    Expected,
    Packed,
    Question,
    Rejected,
    Sizes,
    computed,
    pack,
    question,
)
from kernels_generated.runtime import Launchable
from kernels_generated.runtime.launcher import element_bytes
from knowledge_base.chips import Chip
from knowledge_base.records import Stage
from knowledge_base.snf.task import Task

from .card import Card
from .composition import OURS, Composition
from .contestants import baseline, spoiled
from .device import Device
from .stopwatch import SETS, Contestant, PlanContestant, Unrecordable, race

KEPT = 0.25  # of the GPU's memory, for answers: the configurations of several tasks are asked the same in turn
KEPT_ELSEWHERE = 8 << 30  # bytes of them where there is none


class Bench:
    """A runner's device, and what results on it are held against."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.oracle = NearOracle(device.place)

    def answers(self, task: Task, seed: int) -> list[Expected]:
        """What a task's own sizes give on each set of inputs that is timed."""
        sets = [question(task, task.sizes, "normal", seed + number) for number in range(SETS)]
        return list(self.oracle.expect_all(sets))

    def forget(self) -> None:
        """Gives the GPU's memory back that answers take, and that PyTorch keeps for later."""
        self.oracle.forget()
        gc.collect()
        if self.device.place.type == "cuda":
            torch.cuda.empty_cache()


class NearOracle:
    """Answers questions in this process, at ``place``; the latest answers are kept there."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        on_gpu = place.type == "cuda"
        self._most = int(KEPT * torch.cuda.get_device_properties(place).total_memory) if on_gpu else KEPT_ELSEWHERE
        self._known: OrderedDict[Question, Expected] = OrderedDict()

    def expect_all(self, questions: Iterable[Question]) -> Iterator[Expected]:
        for q in questions:
            answer = self._known.pop(q, None) or computed(q, self._place)
            self._known[q] = answer
            while sum(map(_bytes, self._known.values())) > self._most and len(self._known) > 1:
                self._known.popitem(last=False)
            yield answer

    def forget(self) -> None:
        self._known.clear()


def _bytes(answer: Expected) -> int:
    tensors = [*answer.inputs.values(), *answer.reference, *answer.eager]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---------------------------------------------------------------------------------------------------- questions


def examined(
    task: Task,
    plans: Sequence[Launchable],
    cubins: Mapping[str, bytes],
    chip: Chip,
    sizes: Sequence[Sizes],
    seed: int,
    names: Sequence[str] | None,
    seconds: float,
    bench: Bench,
) -> dict[str, Any]:
    """The figures of plans at ``sizes``, by distribution and output, as a judgement has them.

    cubins: of the plans' kernels, for the device.  names: the distributions; None: all that say something.  Raises
    Rejected for what is wrong, DriverError for what faults.
    """
    card = Card(bench.device, cubins)
    try:
        with torch.device(bench.device.place):
            executable = Executable.of_task(task, plans, chip, time.monotonic() + seconds, machine=card)
            examination = Examination(task, executable, sizes, seed, bench.oracle, names=names)
            examination.run()
            return examination.numbers
    except Rejected as rejected:
        raise _on_the_card(rejected) from None
    finally:
        card.close()


def outputs(
    task: Task,
    plans: Sequence[Launchable],
    cubins: Mapping[str, bytes],
    chip: Chip,
    sizes: Sequence[Sizes],
    seed: int,
    seconds: float,
    bench: Bench,
) -> list[tuple[Sizes, dict[str, Packed]]]:
    """What the plans give on normal inputs, by output: for :func:`evaluator.judging.agreement.agreement`."""
    card = Card(bench.device, cubins)
    made: list[tuple[Sizes, dict[str, Packed]]] = []
    try:
        with torch.device(bench.device.place):
            executable = Executable.of_task(task, plans, chip, time.monotonic() + seconds, machine=card)
            for at in sizes:
                (expected,) = bench.oracle.expect_all([question(task, at, "normal", seed)])
                results = executable.run(expected.inputs, at, POISON_A, sanitize=False)
                made.append((dict(at), {name: pack(value.cpu()) for name, value in results.items()}))
    except Rejected as rejected:
        raise _on_the_card(rejected) from None
    finally:
        card.close()
    return made


def raced(compositions: Sequence[Composition], chip: Chip, seed: int, rounds: int, bench: Bench) -> list[list[float]]:
    """µs of each one's samples at its own sizes, as :func:`.stopwatch.race` takes them.

    compositions: of one task or target.  Raises Rejected for one that is not right, DriverError for what faults.
    """
    cards = [Card(bench.device, one.cubins) for one in compositions]
    try:
        with torch.device(bench.device.place):
            answers = bench.answers(compositions[0].whole, seed)
            contestants = [
                PlanContestant(bench.device, card, one, chip, answers)
                for card, one in zip(cards, compositions, strict=True)
            ]
            return race(bench.device, contestants, rounds)
    except Rejected as rejected:
        raise _on_the_card(rejected) from None
    finally:
        bench.device.synchronize(bench.device.stream)
        for card in cards:
            card.close()


def packed(composition: Composition, chip: Chip, seed: int, rounds: int, bench: Bench) -> list[float]:
    """µs of the samples of what prepares a composition's weights.

    Raises Rejected where its results are not right, before or after, DriverError for what faults.
    """
    card = Card(bench.device, composition.cubins)
    try:
        with torch.device(bench.device.place):
            whole = PlanContestant(bench.device, card, composition, chip, bench.answers(composition.whole, seed))
            (times,) = race(bench.device, [whole.packing()], rounds)
            return times
    except Rejected as rejected:
        raise _on_the_card(rejected) from None
    finally:
        bench.device.synchronize(bench.device.stream)
        card.close()


def compared(
    composition: Composition, chip: Chip, seed: int, rounds: int, but: Collection[str], bench: Bench
) -> dict[str, list[float] | str]:
    """µs of the samples of OURS and of each baseline, by its name, taken in turn; or why a baseline has none.

    A baseline that has nothing for the graph is left out, and so are those named in ``but``.  Raises Rejected for a
    composition that is not right, DriverError for what faults, Spoiled for a baseline that cannot be recorded.
    """
    card = Card(bench.device, composition.cubins)
    said: dict[str, list[float] | str] = {}
    try:
        with torch.device(bench.device.place):
            answers = bench.answers(composition.whole, seed)
            contestants: dict[str, Contestant] = {OURS: PlanContestant(bench.device, card, composition, chip, answers)}
            for name in BASELINES:
                made = None if name in but else baseline(name, bench.device, composition.whole, answers)
                if isinstance(made, str):
                    said[name] = made
                elif made is not None:
                    contestants[name] = made
            try:
                times = race(bench.device, list(contestants.values()), rounds)
            except Unrecordable as error:  # alone it could be
                raise spoiled(list(contestants)[error.number], error) from error
            return dict(zip(contestants, times, strict=True)) | said
    except Rejected as rejected:
        raise _on_the_card(rejected) from None
    finally:
        bench.device.synchronize(bench.device.stream)
        card.close()


def forget(bench: Bench) -> None:
    """Gives back the memory that is kept for the next question."""
    bench.forget()


def known_answer(bench: Bench) -> bool:
    """Whether the GPU still works: memory that the driver fills, and a sum and a product that have one right answer."""
    device = bench.device
    count = 1 << 14
    memory = device.empty(4 * count)
    device.fill(memory.data_ptr(), element_bytes("i32", 3), count, device.stream)
    device.synchronize(device.stream)
    numbers = memory.view(torch.int32)
    numbers += torch.arange(count, dtype=torch.int32, device=device.place)
    ones = torch.ones(64, 64, device=device.place)
    return int(numbers.sum()) == 3 * count + count * (count - 1) // 2 and bool((ones @ ones == 64).all())


QUESTIONS: dict[str, Callable[..., Any]] = {
    "examined": examined, "outputs": outputs, "raced": raced, "packed": packed, "compared": compared,
    "forget": forget, "known_answer": known_answer,
}  # fmt: skip


def _on_the_card(rejected: Rejected) -> Rejected:
    """The rejection as one that the GPU showed."""
    verdict = rejected.verdict
    said = verdict.message if "GPU" in verdict.message else f"on the GPU: {verdict.message}"
    return Rejected(verdict.model_copy(update={"stage": Stage.REPLAY, "message": said}))
