"""What is judged: launch plans that compute a graph together, run on the emulator or on a card as one function.

A task is one call of one candidate.  A target is one call per task, in order, through buffers in their stored dtypes.
Both are an :class:`Executable`, so that whoever runs and judges it need not know which it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from kernels_generated.runtime.plan import Launchable, LaunchPlan
from knowledge_base.chips import Chip
from knowledge_base.records import Finding, Status
from knowledge_base.snf.graph import shape_at
from knowledge_base.snf.task import Call, Task

from .admission import POISON_A, Poison, poisoned
from .cover import dims, text
from .emulation import EMULATOR
from .rejection import Rejected, reject
from .sizes import Sizes

LAUNCH_SECONDS = 15.0  # one plan at one judged size; honest ones take milliseconds
Within = Callable[[float, str], AbstractContextManager[None]]  # ends what runs inside it after so many seconds
MOST_FINDINGS = 20  # that a verdict keeps


class Machine(Protocol):
    """What a launch plan runs on.  ``in_order``: blocks run in one order, so that equal inputs give equal bits."""

    in_order: bool

    def ready(self, traced: Launchable) -> Any:
        """What :meth:`run` needs of the plan's kernels.  Raises Rejected where it cannot run one."""

    def run(
        self,
        plan: LaunchPlan,
        ready: Any,
        buffers: Mapping[str, torch.Tensor],
        sizes: Mapping[str, int],
        *,
        poison: Poison,
        sanitize: bool,
        deadline: float,
    ) -> tuple[Finding, ...]:
        """Runs the plan on every argument but the workspaces; outputs change in place.

        sanitize: to look for what no result shows, if the machine can.  deadline: a ``time.monotonic()`` value.
        Returns what was found.  Raises Rejected where the plan is refused or stopped.
        """


class Executable:
    """``calls`` in order; ``outputs`` are the buffers in which the graph's outputs lie afterwards.

    plans: by task identity, those of which one must hold wherever it is run.  deadline: a ``time.monotonic()`` value
    for all runs together.  within: what ends a run that is in one operation when its time is over, where something can.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        outputs: Sequence[str],
        plans: Mapping[str, Sequence[Launchable]],
        chip: Chip,
        deadline: float,
        within: Within | None = None,
        machine: Machine = EMULATOR,
    ) -> None:
        self.machine = machine
        self.calls, self.outputs, self.plans = tuple(calls), tuple(outputs), plans
        self.chip, self.deadline = chip, deadline
        self.within = within or (lambda seconds, what: nullcontext())

    @classmethod
    def of_task(
        cls,
        task: Task,
        plans: Sequence[Launchable],
        chip: Chip,
        deadline: float,
        within: Within | None = None,
        machine: Machine = EMULATOR,
    ) -> Executable:
        """A task's own plans: one call, in its own names and dimensions."""
        call = Call.whole(task)
        return cls([call], call.results, {task.identity: plans}, chip, deadline, within, machine)

    def run(
        self, inputs: Mapping[str, torch.Tensor], sizes: Sizes, memory: Poison = POISON_A, sanitize: bool = True
    ) -> dict[str, torch.Tensor]:
        """The results of every call by buffer, in order; ``inputs`` are left as they are.

        inputs: the graph's inputs and weights, contiguous, at ``sizes``.  memory: what outputs, workspaces and
        undetermined padding hold.  Raises Rejected where a call is stopped, found unsafe, or changes what it may only
        read.
        """
        made: dict[str, torch.Tensor] = {}
        for number, call in enumerate(self.calls):
            at = call.sizes_at(sizes)
            given = {
                tensor.name: (made[buffer] if buffer in made else inputs[buffer]).reshape(shape_at(tensor.shape, at))
                for tensor, buffer in zip(call.task.inputs, call.arguments, strict=True)
            }
            traced = self._applying(call, at)
            ready = self.machine.ready(
                traced
            )  # a kernel that cannot be read is so at every size: its verdict names none
            seconds = max(0.0, min(self.deadline - time.monotonic(), LAUNCH_SECONDS))
            late = self.said(number, sizes, f"an operation went on beyond the {seconds:.0f} s that its launch may take")
            try:
                with self.within(seconds, late):
                    results = self._call(call, at, traced, ready, given, memory, sanitize, seconds)
            except Rejected as rejected:
                verdict = rejected.verdict
                said = self.said(number, sizes, verdict.message)
                raise Rejected(verdict.model_copy(update={"message": said})) from None
            made.update(zip(call.results, results, strict=True))
        return made

    def _call(
        self,
        call: Call,
        at: Sizes,
        traced: Launchable,
        ready: Any,
        given: Mapping[str, torch.Tensor],
        memory: Poison,
        sanitize: bool,
        seconds: float,
    ) -> list[torch.Tensor]:
        """The call's results at its task's sizes ``at``, in ``seconds``.

        Every buffer is a storage of its own, of exactly its size.
        """
        buffers = {name: value.clone() for name, value in given.items()}
        outputs = {t.name: poisoned(shape_at(t.shape, at), t.dtype, memory.output) for t in call.task.outputs}
        findings = self.machine.run(
            traced.plan,
            ready,
            buffers | outputs,
            dims(at, self.chip),
            poison=memory,
            sanitize=sanitize,
            deadline=time.monotonic() + seconds,
        )
        if findings:
            raise unsafe(findings)
        for tensor in call.task.inputs:
            if not same_bits(buffers[tensor.name], given[tensor.name]):
                element = first_difference(buffers[tensor.name], given[tensor.name])
                message = f"{tensor.role} {tensor.name} was modified, first at element {element}"
                finding = Finding(kind="input-modified", message=message, element=element, buffer=tensor.name)
                raise reject(Status.UNSAFE, "input-modified", message, findings=(finding,))
        return list(outputs.values())

    def _applying(self, call: Call, at: Sizes) -> Launchable:
        return next(t for t in self.plans[call.task.identity] if t.plan.applies(dims(at, self.chip)))

    # ---------------------------------------------------------------------------------------- who made what

    def maker(self, buffer: str) -> int:
        """The number of the call whose result is ``buffer``."""
        return next(number for number, call in enumerate(self.calls) if buffer in call.results)

    def traced(self, number: int, sizes: Sizes) -> Launchable:
        """The plan that call ``number`` runs by at ``sizes``."""
        return self._applying(self.calls[number], self.calls[number].sizes_at(sizes))

    def said(self, number: int, sizes: Sizes, message: str) -> str:
        """``message`` about call ``number`` with where it happened: the sizes, and of several calls which one."""
        call = self.calls[number]
        if len(self.calls) > 1:
            return f"call {number} ({call.task.name}, {text(call.sizes_at(sizes))}): {message}"
        place = text(sizes)
        return message if place in message else f"{message} ({place})"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality: NaN equals the same NaN, and -0 differs from 0."""
    return torch.equal(_bytes(a), _bytes(b))


def first_difference(a: torch.Tensor, b: torch.Tensor) -> int:
    """The linear index of the first element whose bits differ."""
    different = (_bytes(a) != _bytes(b)).reshape(a.numel(), -1).any(1)
    return int(torch.nonzero(different)[0])


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def unsafe(findings: Sequence[Finding]) -> Rejected:
    """The rejection for what the sanitizer found in a launch."""
    worst = findings[0]
    return reject(Status.UNSAFE, worst.kind, worst.message, line=worst.line, findings=tuple(findings[:MOST_FINDINGS]))
