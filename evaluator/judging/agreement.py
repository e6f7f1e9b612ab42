"""Whether a GPU gave what the emulator gives, from the same plans on the same inputs.

They may differ by rounding: the order of a sum is the machine's.  How much that is, PyTorch's own error says: the RMS
difference, as far as elements differ by more than one ulp, may not exceed it.  NaN and infinities stand in the same
places.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import Chip
from knowledge_base.records import Stage, Status, Verdict
from knowledge_base.snf.task import Task

from .accuracy import Case, Errors, Failure, Pool, pools, summary
from .compare import measure, worst
from .cover import text
from .desk import Desk
from .examine import EMULATION_SECONDS, one_thread
from .executable import Executable
from .oracle import Packed, unpack
from .rejection import Rejected
from .sizes import Sizes


def agreement(
    task: Task,
    plans: Sequence[Launchable],
    chip: Chip,
    seed: int,
    made: Sequence[tuple[Sizes, Mapping[str, Packed]]],
    desk: Desk,
) -> dict[str, Any]:
    """By output: how far a GPU's outputs are from the emulator's, as the figures of a verdict.

    plans: of which one holds at every size.  made: by sizes, what the GPU gave on normal inputs of ``seed``, by output.
    Raises Rejected where they differ by more than rounding.
    """
    executable = Executable.of_task(task, plans, chip, time.monotonic() + EMULATION_SECONDS, desk.within)
    measured: dict[str, list[tuple[Case, Errors]]] = {}
    with one_thread():
        for sizes, outputs in made:
            expected = desk.oracle.expect(task, sizes, "normal", seed)
            emulated = executable.run(expected.inputs, sizes, sanitize=False)
            for number, t in enumerate(task.outputs):
                got, emulators = unpack(outputs[t.name]), emulated[t.name]
                if expected.low and not got.is_floating_point():
                    emulators = expected.nearest(number, got)
                reference, eager = expected.reference[number], expected.eager[number]
                case = _case(t.name, t.dtype, sizes, got, emulators, reference, eager)
                errors = measure(case)
                if isinstance(errors, Failure):
                    raise Rejected(_disagree(errors))
                measured.setdefault(t.name, []).append((case, errors))
    figures: dict[str, Any] = {}
    for output, of_output in measured.items():
        for pool in pools(of_output):
            if pool.errors.rms(pool.errors.beyond_squares) > pool.errors.rms(pool.errors.yardstick_squares):
                raise Rejected(_disagree(worst(pool), pool))
        total = sum((errors for _, errors in of_output), Errors())
        figures[output] = summary(total) | {"sizes": [case.sizes for case, _ in of_output]}
    return figures


def _case(
    output: str,
    dtype: str,
    sizes: Sizes,
    got: torch.Tensor,
    emulated: torch.Tensor,
    reference: torch.Tensor,
    eager: torch.Tensor,
) -> Case:
    """The emulator's result as the reference, and an eager result that is as far from it as PyTorch is from its own."""
    if not emulated.is_floating_point():
        return Case(output, dtype, "normal", sizes, got, emulated, emulated)
    exact = emulated.to(torch.float64)
    off = eager.to(torch.float64) - reference
    beside = torch.where(torch.isfinite(exact) & torch.isfinite(off), exact + off, exact)
    return Case(output, dtype, "normal", sizes, got, exact, beside)


def _disagree(failure: Failure, pool: Pool | None = None) -> Verdict:
    case = failure.case
    message = (
        f"{case.output}{list(failure.index)} is {failure.got:.6g} on the GPU, {failure.expected:.6g} on the emulator"
        f" ({case.distribution} inputs, {text(case.sizes)})"
    )
    if pool is not None:
        figures = summary(pool.errors)
        message += f"; RMS difference {figures['rms']:.3g}, PyTorch's own RMS error {figures['yardstick_rms']:.3g}"
    numbers = {"output": case.output, "index": list(failure.index), "sizes": case.sizes}
    return Verdict(
        status=Status.DISAGREES, stage=Stage.REPLAY, error_class="disagrees", message=message, numbers=numbers
    )
