"""One case on the emulator: a plan at one size on one set of inputs, with two poisons in turn where asked.

What nobody has written holds a finite poison: outputs, workspaces, and padding that a load leaves undetermined.  Two
runs that differ in nothing but the poison must give equal bits; the emulator runs blocks in a fixed order, so any
difference comes from memory that the kernel should not have used.  :meth:`Runner.run` then says which.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evaluator.compare import Case
from evaluator.cover import text
from evaluator.execute import POISON_A, POISON_B, Execution, Poison, execute, poisoned
from evaluator.kernel import Kernel, refusal
from evaluator.oracle import Expected
from evaluator.sizes import Sizes
from evaluator.tileir import TileIRError
from knowledge_base.records import Finding, Stage, Status, Verdict
from knowledge_base.snf.graph import shape_at
from knowledge_base.snf.task import Task

if TYPE_CHECKING:
    import torch

    from evaluator.tileir import Program
    from evaluator.trace import Traced

LAUNCH_SECONDS = 15.0  # one plan at one judged size; honest ones take milliseconds


class Runner:
    """Runs cases of one candidate."""

    def __init__(self, task: Task, plans: Sequence[Traced], source: str, deadline: float) -> None:
        self.task, self.plans, self.source, self.deadline = task, plans, source, deadline

    def run(
        self,
        plan: int,
        dims: Mapping[str, int],
        sizes: Sizes,
        distribution: str,
        expected: Expected,
        twice: bool,
        odd: bool,
    ) -> list[Case] | Verdict:
        """A case per output, or the Verdict of what went wrong before numbers count.

        twice: run with both poisons and compare.  odd: which poison a single run takes.
        """
        traced = self.plans[plan]
        programs = programs_of(traced)
        if isinstance(programs, Verdict):
            return programs
        first = POISON_B if odd and not twice else POISON_A
        results = self.once(traced, programs, dims, sizes, expected, first, sanitize=twice)
        if isinstance(results, Verdict):
            return results
        if twice:
            again = self.once(traced, programs, dims, sizes, expected, POISON_B, sanitize=False)
            if isinstance(again, Verdict):
                return again
            for i, tensor in enumerate(self.task.outputs):
                if not same_bits(results[i], again[i]):
                    return self.blame(traced, programs, dims, sizes, expected, i, tensor.name)
        return [
            Case(t.name, t.dtype, distribution, sizes, got, reference, eager)
            for t, got, reference, eager in zip(
                self.task.outputs, results, expected.reference, expected.eager, strict=True
            )
        ]

    def once(
        self,
        traced: Traced,
        programs: Mapping[str, Program],
        dims: Mapping[str, int],
        sizes: Sizes,
        expected: Expected,
        poison: Poison,
        sanitize: bool,
    ) -> list[torch.Tensor] | Verdict:
        """The outputs of one run; a Verdict where it was stopped, found unsafe, or changed an input."""
        buffers = {name: value.clone() for name, value in expected.inputs.items()}
        outputs = {t.name: poisoned(shape_at(t.shape, sizes), t.dtype, poison.output) for t in self.task.outputs}
        limit = min(self.deadline, time.monotonic() + LAUNCH_SECONDS)
        done = execute(traced.plan, programs, buffers | outputs, dims, poison=poison, sanitize=sanitize, deadline=limit)
        if done.verdict is not None:
            return _at(done.verdict, sizes)
        unsafe = _unsafe(done, sizes, self.task)
        if unsafe is not None:
            return unsafe
        for tensor in self.task.inputs:
            if not same_bits(buffers[tensor.name], expected.inputs[tensor.name]):
                element = first_difference(buffers[tensor.name], expected.inputs[tensor.name])
                message = f"{tensor.role} {tensor.name} was modified, first at element {element} ({text(sizes)})"
                finding = Finding(kind="input-modified", message=message, element=element, buffer=tensor.name)
                return _verdict(Status.UNSAFE, "input-modified", message, findings=(finding,))
        return list(outputs.values())

    def blame(
        self,
        traced: Traced,
        programs: Mapping[str, Program],
        dims: Mapping[str, int],
        sizes: Sizes,
        expected: Expected,
        output: int,
        name: str,
    ) -> Verdict:
        """Which poison reached the results: the runs are repeated, changing one at a time."""
        base = self.once(traced, programs, dims, sizes, expected, POISON_A, sanitize=False)
        assert not isinstance(base, Verdict)
        for kind in ("output", "workspace", "padding"):
            poison = Poison(**{k: getattr(POISON_B if k == kind else POISON_A, k) for k in Poison.__dataclass_fields__})
            other = self.once(traced, programs, dims, sizes, expected, poison, sanitize=False)
            if isinstance(other, Verdict) or same_bits(base[output], other[output]):
                continue
            element = first_difference(base[output], other[output])
            return self.accuse(kind, name, sizes, element, base[output], other[output], traced)
        message = f"{name} differs between two runs on the same inputs ({text(sizes)})"
        return _verdict(Status.UNSAFE, "not-deterministic", message)

    def accuse(
        self, kind: str, name: str, sizes: Sizes, element: int, a: torch.Tensor, b: torch.Tensor, traced: Traced
    ) -> Verdict:
        index = _index(element, tuple(a.shape))
        values = f"{float(a.reshape(-1)[element]):.6g} with one, {float(b.reshape(-1)[element]):.6g} with the other"
        line: int | None = None
        if kind == "output":
            filled = [poisoned((), next(t.dtype for t in self.task.outputs if t.name == name), p) for p in (5.0, -48.0)]
            untouched = same_bits(a.reshape(-1)[element], filled[0]) and same_bits(b.reshape(-1)[element], filled[1])
            if untouched:
                count = int((a.reshape(-1) == filled[0]).sum())
                error_class = "output-not-written"
                message = f"{name}{list(index)} is not written ({count} of {a.numel()} elements, {text(sizes)})"
            else:
                error_class = "output-read"
                message = f"{name}{list(index)} depends on the output's content before launch: {values} ({text(sizes)})"
        elif kind == "workspace":
            error_class = "uninitialised"
            message = f"{name}{list(index)} depends on uninitialised workspace: {values} ({text(sizes)})"
        else:
            error_class = "undetermined-padding"
            line = self.padding_line(traced)
            message = f"{name}{list(index)} depends on undetermined padding: {values} ({text(sizes)})"
        finding = Finding(kind=error_class, message=message, element=element, buffer=name, line=line)
        return _verdict(Status.UNSAFE, error_class, message, line=line, findings=(finding,))

    def padding_line(self, traced: Traced) -> int | None:
        """The first line of the candidate that loads without a padding mode."""
        from evaluator.tileir import ir
        from evaluator.tileir.program import walk

        for digest in traced.plan.kernels:
            module = Kernel.of(traced.kernels[digest]).module
            for op in walk(module.body):
                if op.name != "load_view_tko":
                    continue
                view = op.operand_types[0]
                if isinstance(view, ir.TileViewType) and view.padding is None:
                    where = module.location(op)
                    if where is not None:
                        return where.line
        return None


def programs_of(traced: Traced) -> dict[str, Program] | Verdict:
    """The plan's kernels, ready to run, by hash; a Verdict where the emulator or the disassembler refuses one."""
    try:
        return {digest: Kernel.of(traced.kernels[digest]).program for digest in traced.plan.kernels}
    except TileIRError as error:
        return refusal(error)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality: NaN equals the same NaN, and -0 differs from 0."""
    import torch

    return torch.equal(_bytes(a), _bytes(b))


def first_difference(a: torch.Tensor, b: torch.Tensor) -> int:
    """The linear index of the first element whose bits differ."""
    import torch

    different = (_bytes(a) != _bytes(b)).reshape(a.numel(), -1).any(1)
    return int(torch.nonzero(different)[0])


def _bytes(x: torch.Tensor) -> torch.Tensor:
    import torch

    return x.contiguous().reshape(-1).view(torch.uint8)


def _index(element: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    out: list[int] = []
    for extent in reversed(shape):
        out.append(element % extent)
        element //= extent
    return tuple(reversed(out))


def _unsafe(done: Execution, sizes: Sizes, task: Task) -> Verdict | None:
    if not done.findings:
        return None
    worst = done.findings[0]
    roles = {t.name: t.role for t in task.inputs}
    if worst.kind == "race" and worst.buffer in roles:
        # Reads do not race: where blocks race in an input, one of them writes it, and atomics would not mend that.
        said = f"{roles[worst.buffer]} {worst.buffer} is written: {worst.message.partition(': each needs')[0]}"
        findings = (worst.model_copy(update={"kind": "input-modified", "message": said}), *done.findings[1:20])
        return _verdict(Status.UNSAFE, "input-modified", f"{said} ({text(sizes)})", worst.line, findings)
    message = f"{worst.message} ({text(sizes)})"
    return _verdict(Status.UNSAFE, worst.kind, message, line=worst.line, findings=done.findings[:20])


def _at(verdict: Verdict, sizes: Sizes) -> Verdict:
    place = text(sizes)
    return (
        verdict if place in verdict.message else verdict.model_copy(update={"message": f"{verdict.message} ({place})"})
    )


def _verdict(
    status: Status, error_class: str, message: str, line: int | None = None, findings: tuple[Finding, ...] = ()
) -> Verdict:
    return Verdict(
        status=status, stage=Stage.EMULATE, error_class=error_class, message=message, line=line, findings=findings
    )
