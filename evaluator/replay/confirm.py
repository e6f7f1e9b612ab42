"""What a trial that the judge calls correct has to pass on a GPU: right there, and as it is on the emulator.

A compiler can be wrong, and a language leaves races to the machine: what is right by the Tile IR is confirmed on the
card before it counts.  Needs no torch: the GPU's part is the runner's, the emulator's the judge's.
"""

from __future__ import annotations

import os
import time

from evaluator.judging import JudgeProcess, Rejected, finished
from evaluator.plans import Plans
from knowledge_base.chips import Chip
from knowledge_base.compiler_faults import FAULT_OF_COMPILER
from knowledge_base.records import Finding, Stage, Status, Trial, Verdict
from knowledge_base.snf.task import Task

from .composition import cubins_of
from .runner import AnyRunner

SECONDS = 120.0  # for one question of the runner; most take less than one
# Names of rows among a verdict's numbers; GPU is put behind the name of a distribution.
GPU, GPU_FULL_SIZE, GPU_EMULATOR = "on the GPU", "on the GPU, full size", "GPU − emulator"


def confirmed(
    trial: Trial, task: Task, chip: Chip, plans: Plans, runner: AnyRunner, judges: JudgeProcess, seed: int | None = None
) -> Trial:
    """A correct trial with what the GPU says of it: its numbers beside the judge's, or the verdict that rejects it.

    Every judged size on every distribution, the task's own size on normal inputs, and the emulator's outputs at the
    judged sizes.  seed: of the hidden inputs (default: from the operating system).  Raises EnvironmentLacks where the
    GPU cannot be used.
    """
    if trial.verdict is None or not trial.correct:
        return trial
    started = time.monotonic()
    seed = int.from_bytes(os.urandom(6)) if seed is None else seed
    launchables = plans.of(trial)
    cubins = cubins_of(launchables, chip)
    if isinstance(cubins, Verdict):
        return trial.fuller(verdict=finished(cubins, trial.candidate.source))
    sizes = [dict(at) for at in trial.judged]
    asked = (task, launchables, cubins, chip)
    numbers = dict(trial.verdict.numbers)
    try:
        small = runner.call("examined", *asked, sizes, seed, None, SECONDS, seconds=SECONDS)
        full = runner.call("examined", *asked, [task.sizes], seed, ("normal",), SECONDS, seconds=SECONDS)
        made = runner.call("outputs", *asked, sizes, seed, SECONDS, seconds=SECONDS)
        numbers |= {f"{name}, {GPU}": figures for name, figures in small.items()}
        numbers[GPU_FULL_SIZE] = full["normal"]
        numbers[GPU_EMULATOR] = judges.agreement(task, launchables, chip, seed, made)
        verdict = trial.verdict.model_copy(update={"numbers": numbers, "stage": Stage.REPLAY})
    except Rejected as rejected:
        verdict = finished(_disagrees(rejected.verdict, trial.verdict.findings), trial.candidate.source)
    return trial.fuller(verdict=verdict, seconds=trial.seconds + time.monotonic() - started)


def _disagrees(verdict: Verdict, warnings: tuple[Finding, ...]) -> Verdict:
    """What a GPU gets wrong that the emulator gets right is a disagreement of the two.

    warnings: what the judge said beside its verdict: known faults of the compiler that the kernel may meet.
    """
    if verdict.status not in (Status.WRONG, Status.UNSAFE, Status.DISAGREES):
        return verdict
    known = [finding for finding in warnings if finding.kind == FAULT_OF_COMPILER]
    said = "right by its Tile IR, so this may be a known fault of the compiler" if known else "right by its Tile IR"
    changes = {
        "status": Status.DISAGREES,
        "error_class": "compiler-fault" if known else "disagrees",
        "message": f"{said}; {verdict.message}",
        "findings": (*known, *verdict.findings),
    }
    return verdict.model_copy(update=changes)
