"""A plan at the task's own size, which is too large to be emulated whole: what is looked at there.

- Of every launch, which block writes which element, without any value (:func:`evaluator.tileir.stores_alone`): no two
  blocks write one element, and together they write every element of every output.  So they do with other numbers of
  multiprocessors, where the launches ask for that: the plan serves any chip of its architecture.
- A sample of blocks, drawn from the seed, the corners of the grid always among them, with all that they read: every
  element that they write against the reference.  Blocks of earlier launches that these read from run, too.

So a kernel that is right at small sizes and wrong at the one that is timed is seen, if the blocks that go wrong are
many, lie at an edge, or leave elements out.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from evaluator.kernel import Kernel
from evaluator.tileir import (
    ATOMIC_OPS,
    NOWHERE,
    Footprint,
    Places,
    Program,
    Reads,
    RunReport,
    Sanitizer,
    Touching,
    build,
    stores_alone,
    walk,
)
from kernels_generated.runtime.bound import BoundLaunch, BoundPlan
from kernels_generated.runtime.expr import Expr
from kernels_generated.runtime.plan import Fill, Launchable
from knowledge_base.chips import Chip
from knowledge_base.records import Status
from knowledge_base.snf.graph import Tensor, shape_at
from knowledge_base.snf.task import Task

from .accuracy import Case, Errors, Failure, Pool, summary
from .admission import POISON_A, admit, poisoned, read_only, workspaces
from .compare import measure, worst
from .cover import dims, text
from .emulation import fill, launched, recorded
from .examine import one_thread, wrong
from .executable import Within, unsafe
from .inputs import draw, torch_dtype
from .oracle import Oracle
from .rejection import Rejected, reject
from .restriction import separable, taken
from .sizes import ELEMENTS, PROCESSORS, Sizes, work

BLOCKS = 12  # of a sample, at most, where one launch writes the outputs; of each of several a share, two or more
CORNERS = 4  # of these
SAMPLE_ELEMENTS = 16 * ELEMENTS  # of outputs: a sample has no more blocks beside corners
TRIED = 40  # blocks that are tried for it
FIRST = 2  # blocks that are of a sample in any case: of what they write only a part is compared, if all is too dear
FEWEST = 16  # indices along a dimension
REFUSED = 12  # of them in a row that would make the reference too dear
REFERENCE_WORK = 1_000_000_000  # multiply-adds of a sample's reference: some 0.1 s
MOST_WORK = 8 * REFERENCE_WORK  # of a reference that cannot be made smaller
MOST_BYTES = 2**31  # of all buffers
MOST_WRITTEN = 2**28  # elements of outputs and workspaces: each has a mark of four bytes, or two
SECONDS = 60.0  # honest plans take under one, and some seconds where persistent blocks feed others
SAMPLES = 4  # until a doubtful one is decided


@dataclass
class OwnSize:
    """What was found: figures by output, as those of a distribution, or why there are none."""

    figures: dict[str, Any] = field(default_factory=dict)
    left_out: str = ""

    @property
    def numbers(self) -> dict[str, Any]:
        """For a verdict, beside those of the distributions."""
        return {"own size": self.figures} if self.figures else {}


Index = Callable[[int], tuple[int, ...]]  # from an element's number in a case to its index in the whole output


@functools.lru_cache(maxsize=64)
def stores_of(bytecode: bytes) -> Program:
    """The kernel without its values: who writes what."""
    return build(stores_alone(Kernel.of(bytecode).module))


class _LeftOut(Exception):
    """Why a plan's values are not compared at its own size."""


def judge_own_size(
    task: Task,
    traced: Launchable,
    chip: Chip,
    seed: int,
    oracle: Oracle,
    *,
    normal: Mapping[str, Errors],
    within: Within | None = None,
) -> OwnSize:
    """Looks at ``traced`` at the task's sizes.  Raises Rejected for what is wrong there.

    normal: errors on normal inputs by output at the judged sizes, which count where a sample has few elements.
    within: what ends an operation that does not end by itself.
    """
    deadline = time.monotonic() + SECONDS
    look = _Look(task, traced, chip, dict(task.sizes), deadline)
    late = f"at {text(task.sizes)} an operation went on beyond the {SECONDS:.0f} s that it may take"
    with one_thread(), within(SECONDS, late) if within is not None else nullcontext():
        try:
            look.place(seed)
            for at in _elsewhere(task, traced, chip, seed):
                _Look(task, traced, chip, at, deadline).place(seed)
            return OwnSize(look.compare(seed, oracle, normal))
        except _LeftOut as why:
            return OwnSize(left_out=str(why))


def _elsewhere(task: Task, traced: Launchable, chip: Chip, seed: int) -> list[Sizes]:
    """The task's sizes where there are fewer multiprocessors, and more: if the plan asks for them and holds there."""
    if "num_sms" not in traced.plan.used:
        return []
    rng = random.Random(seed)
    sides = [[n for n in PROCESSORS if n < chip.sm_count], [n for n in PROCESSORS if n > chip.sm_count]]
    drawn = [task.sizes | {"num_sms": rng.choice(side)} for side in sides if side]
    return [at for at in drawn if traced.plan.applies(at)]


class _Look:
    """One plan at one size."""

    def __init__(self, task: Task, traced: Launchable, chip: Chip, sizes: Sizes, deadline: float) -> None:
        self.task, self.traced, self.sizes, self.deadline = task, traced, sizes, deadline
        self.shapes = {t.name: shape_at(t.shape, self.sizes) for t in (*task.inputs, *task.outputs)}
        self.bound: BoundPlan = admit(traced.plan, self.shapes, dims(self.sizes, chip), MOST_BYTES)
        self.footprints: list[Footprint] = []
        self.last: dict[int, list[str]] = {}  # launch -> the outputs of which it writes any element last

    @property
    def launches(self) -> list[BoundLaunch]:
        return [step for step in self.bound.steps if not isinstance(step, Fill)]

    def prepare(self, seed: int | None) -> None:
        """Fresh buffers; without a seed the inputs hold nothing yet: most launches store where no input tells."""
        own = [b for b in self.bound.buffers if not b.internal]
        for some in (own, self.bound.buffers):
            written = sum(math.prod(b.shape) for b in some if b.role not in ("input", "weight"))
            if written <= MOST_WRITTEN and sum(b.nbytes for b in some) <= MOST_BYTES:
                continue
            if some is own:
                raise _LeftOut("its arrays are too large")
            mebibytes = sum(b.nbytes for b in some if b.internal) / 2**20
            message = (
                f"{text(self.sizes)}, with workspaces of {mebibytes:.0f} MiB, takes more memory than there is for it"
            )
            raise reject(Status.UNSUPPORTED, "emulator-memory", message)
        if seed is not None:
            inputs = draw(self.task.graph, self.sizes, "normal", seed)
            self.outputs = {t.name: poisoned(self.shapes[t.name], t.dtype, POISON_A.output) for t in self.task.outputs}
        else:
            inputs, self.outputs = (
                {t.name: torch.zeros(self.shapes[t.name], dtype=torch_dtype(t.dtype)) for t in tensors}
                for tensors in (self.task.inputs, self.task.outputs)
            )
        self.memory = inputs | self.outputs | workspaces(self.bound, POISON_A.workspace)

    # ------------------------------------------------------------------------------------------ who writes what

    def place(self, seed: int) -> None:
        """Finds who writes what in every launch.  Raises Rejected where that is no cover of the outputs."""
        given = {t.name for t in self.task.inputs}
        for drawn in (None, seed):
            self.prepare(drawn)
            self.footprints = []
            reports: list[RunReport] = []
            for step in self.bound.steps:
                if isinstance(step, Fill):
                    fill(self.memory[step.argument], step.value)
                    continue
                self.footprints.append(Footprint(read_only(self.bound, len(reports))))
                reports.append(self.launch(len(reports), None, self.footprints[-1], values=False))
            if not any(found.read & given for found in self.footprints):
                break
        for index, (found, report) in enumerate(zip(self.footprints, reports, strict=True)):
            if found.read - given:
                names = ", ".join(sorted(found.read - given))
                message = (
                    f"where launch {index} stores depends on what {names} holds, which {text(self.sizes)} leaves open"
                )
                raise reject(Status.UNSUPPORTED, "writes-depend", message)
            self.refuse(report, index)
        for name, tensor in self.outputs.items():
            later = NOWHERE
            for launch in reversed(range(len(self.footprints))):
                here = self.footprints[launch].reaches(name, tensor)
                if not here <= later:
                    self.last.setdefault(launch, []).append(name)
                later |= here
            missing = later.outside(tensor.numel())
            if missing is not None:
                place = ", ".join(str(int(i)) for i in np.unravel_index(missing, tensor.shape))
                message = f"{name}[{place}] is written by no block at {text(self.sizes)}"
                raise reject(Status.WRONG, "unwritten", message)

    def launch(self, index: int, blocks: Sequence[int] | None, watcher: Sanitizer, *, values: bool = True) -> RunReport:
        """Runs blocks of a launch (None: all), with values or without.  Raises Rejected where it is stopped."""
        step = self.launches[index]
        code = self.traced.kernels[step.kernel]
        program = Kernel.of(code).program if values else stores_of(code)
        only = None if blocks is None else np.array(blocks, dtype=np.int64)
        return launched(program, step, self.memory, POISON_A, watcher, self.deadline, index, only)

    def refuse(self, report: RunReport, index: int) -> None:
        """Raises Rejected for what the sanitizer found in a launch."""
        if report.findings:
            verdict = unsafe(recorded(report, index)).verdict
            said = f"{verdict.message} ({text(self.sizes)})"
            raise Rejected(verdict.model_copy(update={"message": said}))

    def divided(self, index: int) -> bool:
        """Whether the blocks of a launch find out what to do from each other: then they run all, or say nothing."""
        program = stores_of(self.traced.kernels[self.launches[index].kernel])
        return any(op.name in ATOMIC_OPS for op in walk(program.module.body))

    def touched(self, index: int, block: int, name: str) -> torch.Tensor:
        """The elements of a buffer that a block writes, by number."""
        who = self.footprints[index].writers(name, self.memory[name]) if self.divided(index) else None
        if who is not None:
            return torch.from_numpy(who.places(block + 1))
        alone = Places(name)
        self.refuse(self.launch(index, [block], alone, values=False), index)
        return alone.of(self.memory[name])

    def writing(self, index: int, name: str, wanted: torch.Tensor) -> set[int]:
        """The blocks of a launch that write any of the elements of a buffer that ``wanted`` marks."""
        if self.divided(index):
            reached = self.footprints[index].reaches(name, self.memory[name])
            return set(range(math.prod(self.launches[index].grid))) if reached.meet(wanted.numpy()) else set()
        who = self.footprints[index].writers(name, self.memory[name])
        if who is not None:
            return _blocks(who.among(wanted.numpy()))
        found = Touching(name, wanted)
        self.launch(index, None, found, values=False)
        return found.blocks

    # ------------------------------------------------------------------------------------------ values

    def compare(self, seed: int, oracle: Oracle, normal: Mapping[str, Errors]) -> dict[str, Any]:
        """Errors of samples of blocks.  Raises Rejected where one is wrong."""
        ops = frozenset(node.op for node in self.task.graph.nodes)
        total: dict[str, Errors] = {}
        cases: dict[str, list[Case]] = {}
        places: dict[int, Index] = {}  # by the identity of a case
        for number in range(SAMPLES):
            sample = _Sample(self, random.Random(f"{seed} {number}"))
            telling = True  # less than half of what is compared is NaN or Inf in the reference
            for case, index in sample.run(seed + number, oracle):
                errors = measure(case)
                if isinstance(errors, Failure):
                    raise Rejected(wrong(replace(errors, index=index(errors.index[0])), None, ops))
                telling &= 2 * errors.count > case.got.numel()
                total[case.output] = total.get(case.output, Errors()) + errors
                cases.setdefault(case.output, []).append(case)
                places[id(case)] = index
            judged = {
                name: errors if errors.count >= ELEMENTS else errors + normal.get(name, Errors())
                for name, errors in total.items()
            }
            if (telling or number) and not any(errors.doubtful for errors in judged.values()):
                break
        for name, errors in judged.items():
            if not errors.acceptable:
                failure = worst(Pool(tuple(cases[name]), errors))
                index = places[id(failure.case)]
                raise Rejected(wrong(replace(failure, index=index(failure.index[0])), summary(errors), ops))
        return {name: summary(errors) | {"sizes": [self.sizes]} for name, errors in total.items()}


class _Sample:
    """Blocks of a launch, what they write of the outputs, and the part of the reference that this is."""

    def __init__(self, look: _Look, rng: random.Random) -> None:
        self.look, self.rng = look, rng
        self.keep: dict[str, set[int]] = {}
        self.free = separable(look.task)
        self.region = {name: torch.zeros(tensor.numel(), dtype=torch.bool) for name, tensor in look.outputs.items()}
        for launch in look.last:
            self.choose(launch, max(FIRST, BLOCKS // len(look.last)))

    def choose(self, launch: int, most: int) -> None:
        """Picks blocks of a launch as long as their reference is cheap: what they write is the ``region``."""
        number = elements = refused = 0
        for block in self.candidates(launch):
            places = {t.name: self.look.touched(launch, block, t.name) for t in self.outputs(launch)}
            wanted = {name: set(kept) for name, kept in self.keep.items()}
            for name, kept in self.extent(places).items():
                wanted.setdefault(name, set()).update(kept)
            if number < FIRST:
                self.thin(wanted)
            cost = self.cost(wanted)
            if number and cost > max(REFERENCE_WORK, self.cost(self.keep)):
                refused += 1
                if refused == REFUSED:
                    break
                continue
            if cost > MOST_WORK:
                raise _LeftOut(f"a reference of {cost / 1e9:.0f}e9 multiply-adds is too dear")
            self.keep = wanted
            for name, at in places.items():
                self.region[name][at] = True
                elements += len(at)
            number, refused = number + 1, 0
            if number == most or (number > 1 and elements >= SAMPLE_ELEMENTS):
                break

    def cost(self, keep: Mapping[str, set[int]]) -> int:
        """Multiply-adds of the reference at the indices that are kept."""
        return work(self.look.task.graph, self.look.sizes | {name: len(kept) for name, kept in keep.items()})

    def thin(self, keep: dict[str, set[int]]) -> None:
        """Leaves indices out until the reference is cheap: a persistent block writes all over an array."""
        while self.cost(keep) > REFERENCE_WORK:
            name = max(keep, key=lambda name: len(keep[name]), default=None)
            if name is None or len(keep[name]) <= FEWEST:
                return
            kept = sorted(keep[name])
            keep[name] = {kept[0], kept[-1], *self.rng.sample(kept, len(kept) // 2)}

    def outputs(self, launch: int) -> list[Tensor]:
        return [t for t in self.look.task.outputs if t.name in self.look.last[launch]]

    def candidates(self, launch: int) -> Iterator[int]:
        """Blocks that write an output: corners of the grid, then any."""
        x, y, z = self.look.launches[launch].grid
        corners = {i + x * (j + y * k) for i in (0, x - 1) for j in (0, y - 1) for k in (0, z - 1)}
        writing: set[int] = set()
        for t in self.outputs(launch):
            who = self.look.footprints[launch].writers(t.name, self.look.outputs[t.name])
            writing |= set(range(x * y * z)) if who is None else _blocks(np.unique(who.numbers).tolist())
        first, rest = sorted(writing & corners), sorted(writing - corners)
        self.rng.shuffle(first)
        yield from first[:CORNERS]
        # What lies in line with another block shares rows, columns or a head with it, and costs little more.
        start = (first or rest)[0]
        line = [b for b in rest if sum(i != j for i, j in zip(_place(b, x, y), _place(start, x, y), strict=True)) == 1]
        anywhere, near = (self.rng.sample(some, min(TRIED // 2, len(some))) for some in (rest, line))
        seen: set[int] = set()
        for block in (b for pair in itertools.zip_longest(anywhere, near) for b in pair if b is not None):
            if block not in seen:
                seen.add(block)
                yield block

    def extent(self, places: Mapping[str, torch.Tensor]) -> dict[str, set[int]]:
        """The indices along separable dimensions at flat ``places`` of outputs."""
        out: dict[str, set[int]] = {}
        for tensor in self.look.task.outputs:
            shape = self.look.shapes[tensor.name]
            if tensor.name not in places or not shape:
                continue
            for axis, coordinates in enumerate(np.unravel_index(places[tensor.name].numpy(), shape)):
                size = tensor.shape[axis]
                if isinstance(size, str) and size in self.free:
                    out.setdefault(size, set()).update(np.unique(coordinates).tolist())
        return out

    def run(self, seed: int, oracle: Oracle) -> Iterator[tuple[Case, Index]]:
        """A case for each output that the sample writes, its elements in a row, and their indices."""
        look = self.look
        needed = self.feeding()
        look.prepare(seed)
        keep = {name: sorted(kept) for name, kept in self.keep.items()}
        expected = oracle.expect_part(look.task, look.sizes, seed, keep)
        index = 0
        for step in look.bound.steps:
            if isinstance(step, Fill):
                fill(look.memory[step.argument], step.value)
                continue
            if needed[index]:
                look.refuse(look.launch(index, sorted(needed[index]), Reads(())), index)
            index += 1
        for number, (tensor, eager) in enumerate(zip(look.task.outputs, expected.eager, strict=True)):
            mask = taken(self.region[tensor.name].reshape(look.shapes[tensor.name]), tensor.shape, keep)
            got = taken(look.outputs[tensor.name], tensor.shape, keep)
            if bool(mask.any()):
                reference = expected.nearest(number, got)
                case = Case(tensor.name, tensor.dtype, "normal", look.sizes, got[mask], reference[mask], eager[mask])
                yield case, _indices(mask, tensor.shape, keep)

    def feeding(self) -> list[set[int]]:
        """By launch the blocks that must run: those that write the region, and those that write what these read."""
        look = self.look
        needed: list[set[int]] = [set() for _ in look.launches]
        for name, region in self.region.items():
            for k in range(len(needed)):
                needed[k] |= look.writing(k, name, region)
        names = [buffer.name for buffer in look.bound.buffers if buffer.role not in ("input", "weight")]
        for k in reversed(range(1, len(needed))):
            reads = Reads(names)
            if needed[k]:
                look.refuse(look.launch(k, sorted(needed[k]), reads), k)
            for name in names:
                read = reads.elements_read(name, look.memory[name])
                if read is not None:
                    for earlier in range(k):
                        needed[earlier] |= look.writing(earlier, name, read)
        return needed


def _blocks(marks: Iterable[int]) -> set[int]:
    """The numbers from 0 of the blocks that left these marks; 0 is nobody's."""
    return {mark - 1 for mark in marks if mark}


def _place(block: int, x: int, y: int) -> tuple[int, int, int]:
    """A block's coordinates in a grid of x by y by any."""
    return block % x, block // x % y, block // (x * y)


def _indices(mask: torch.Tensor, shape: Sequence[Expr], keep: Mapping[str, Sequence[int]]) -> Index:
    """From the number of an element that the mask takes to its index in the whole output."""

    def index(number: int) -> tuple[int, ...]:
        place = mask.nonzero()[number].tolist()
        return tuple(
            keep[size][i] if isinstance(size, str) and size in keep else i for i, size in zip(place, shape, strict=True)
        )

    return index
