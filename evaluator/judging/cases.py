"""One case on a machine: an executable at one size on one set of inputs, with two poisons in turn where asked.

What nobody has written holds a finite poison: outputs, workspaces, padding that a load leaves undetermined, and what an
operation gives where it is undefined.  Two runs that differ in nothing but the poison, and in the order of blocks where
these could tell each other something, must give equal bits; so any difference comes from what the kernel should not
have used.  :func:`run_case` then says which.  On a GPU nobody orders floating-point atomics: there both runs must pass
instead.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from evaluator.kernel import Kernel
from evaluator.tileir import ir, walk
from kernels_generated.runtime.plan import Launchable
from knowledge_base.records import Finding, Status
from knowledge_base.snf.graph import shape_at
from knowledge_base.snf.task import Task

from .accuracy import Case
from .admission import POISON_A, POISON_B, Poison, poisoned
from .executable import Executable, first_difference, same_bits
from .oracle import Expected
from .rejection import Rejected, reject
from .sizes import Sizes


def run_case(
    executable: Executable,
    task: Task,
    sizes: Sizes,
    distribution: str,
    expected: Expected,
    *,
    twice: bool = True,
    odd: bool = False,
) -> list[Case]:
    """A case per output of ``task``, which ``executable`` computes, or two where both runs count.

    Raises Rejected for what went wrong before numbers count.
    twice: run with both poisons and compare, the first run under the sanitizer.  odd: which poison a single run takes.
    """
    made = executable.run(expected.inputs, sizes, POISON_B if odd and not twice else POISON_A, sanitize=twice)
    runs = [made]
    if twice:
        again = executable.run(expected.inputs, sizes, POISON_B, sanitize=False)
        for buffer, value in made.items():  # in order of the calls: the first that differs is to blame
            if same_bits(value, again[buffer]):
                continue
            used = [executable.traced(number, sizes) for number in range(len(executable.calls))]
            if executable.machine.in_order or not adds_in_any_order(used):
                raise _blame(executable, sizes, expected, buffer)
            runs = [made, again]
    return [
        Case(buffer, t.dtype, distribution, sizes, got, expected.nearest(number, got), expected.eager[number])
        for held in (expected.inputs | run for run in runs)
        for number, (t, buffer) in enumerate(zip(task.outputs, executable.outputs, strict=True))
        for got in [held[buffer].reshape(shape_at(t.shape, sizes))]
    ]


def adds_in_any_order(plans: Iterable[Launchable]) -> bool:
    """Whether a kernel adds floats by atomics: their order decides how the sum is rounded."""
    return any(
        op.attrs.get("mode") == "addf"
        for traced in plans
        for digest in traced.plan.kernels
        for op in walk(Kernel.of(traced.kernels[digest]).module.body)
    )


def _blame(executable: Executable, sizes: Sizes, expected: Expected, buffer: str) -> Rejected:
    """Which poison reached ``buffer``: the runs are repeated, changing one at a time."""
    number = executable.maker(buffer)
    base = executable.run(expected.inputs, sizes, POISON_A, sanitize=False)[buffer]
    message = executable.said(number, sizes, f"{buffer} differs between two runs on the same inputs")
    if not executable.machine.in_order:  # what differs by itself says nothing about a poison
        same = executable.run(expected.inputs, sizes, POISON_A, sanitize=False)[buffer]
        if not same_bits(base, same):
            return reject(Status.UNSAFE, "not-deterministic", message)
    for kind in ("output", "workspace", "padding", "undefined", "order"):
        poison = Poison(**{k: getattr(POISON_B if k == kind else POISON_A, k) for k in Poison.__dataclass_fields__})
        try:
            other = executable.run(expected.inputs, sizes, poison, sanitize=False)[buffer]
        except Rejected:
            continue
        if not same_bits(base, other):
            return _accuse(executable, number, sizes, kind, buffer, base, other)
    return reject(Status.UNSAFE, "not-deterministic", message)


def _accuse(
    executable: Executable, number: int, sizes: Sizes, kind: str, buffer: str, a: torch.Tensor, b: torch.Tensor
) -> Rejected:
    element = first_difference(a, b)
    first, second = a.reshape(-1)[element], b.reshape(-1)[element]
    place = f"{buffer}{list(_index(element, tuple(a.shape)))}"
    values = f"{float(first):.6g} with one, {float(second):.6g} with the other"
    line: int | None = None
    if kind == "output":
        call = executable.calls[number]
        dtype = call.task.outputs[call.results.index(buffer)].dtype
        filled = [poisoned((), dtype, poison.output) for poison in (POISON_A, POISON_B)]
        if same_bits(first, filled[0]) and same_bits(second, filled[1]):
            error_class = "output-not-written"
            message = f"{place} is not written, {int((a == filled[0]).sum())} of {a.numel()} elements are not"
        else:
            error_class = "output-read"
            message = f"{place} depends on the output's content before launch: {values}"
    elif kind == "workspace":
        error_class = "uninitialised"
        message = f"{place} depends on uninitialised workspace: {values}"
    elif kind == "order":
        error_class = "not-deterministic"
        message = f"{place} differs between two runs on the same inputs, whose blocks run in another order: {values}"
    elif kind == "undefined":
        error_class = "undefined-value"
        message = f"{place} depends on what an operation gives for operands that it is undefined for: {values}"
    else:
        error_class = "undetermined-padding"
        line = _padding_line(executable.traced(number, sizes))
        message = f"{place} depends on undetermined padding: {values}"
    message = executable.said(number, sizes, message)
    finding = Finding(kind=error_class, message=message, element=element, buffer=buffer, line=line)
    return reject(Status.UNSAFE, error_class, message, line=line, findings=(finding,))


def _padding_line(traced: Launchable) -> int | None:
    """The first line of the candidate that loads without a padding mode."""
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


def _index(element: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    out: list[int] = []
    for extent in reversed(shape):
        out.append(element % extent)
        element //= extent
    return tuple(reversed(out))
