"""The judge: is this candidate right?  The meaning of right of docs/judging.md, whole, on the CPU.

    task, chip = everyday("layernorm"), CHIPS["rtx5070"]
    judged = judge(begin(Candidate(source=source, task=task.identity), task, chip), task, chip)

The candidate's Python runs only in the tracer's confined children; what runs here is its plan and Tile IR, on the
emulator, on inputs that are drawn afresh for every judgement:

1. trace; choose sizes from the plan; trace where no guards hold; trace every size again with plain integers
2. every case on the emulator: outputs, workspaces and undetermined padding hold one finite poison, and for half of the
   cases another one in turn; equal results, inputs unchanged, no finding of the sanitizer
3. every element against the fp64 reference, in pools, by the yardstick's own error
4. once normal inputs have passed, the assembler compiles the kernels for the chip meanwhile: a refusal rejects, and
   evidence is attached

A failure is a Verdict with class, hint and the candidate's line; so is a defect of ours that one candidate shows.  What
runs where is decided in :mod:`.cover`, steps 2 and 3 are :mod:`.examine`'s.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor

from evaluator.compile import Compiled
from evaluator.confinement import containment
from evaluator.kernel import Kernel
from evaluator.plans import Plans
from evaluator.suspects import suspects
from evaluator.trace import Request, Traced, read_axes, trace
from kernels_generated.runtime.plan import Guard
from knowledge_base.chips import Chip
from knowledge_base.errors import UserError
from knowledge_base.records import CompileEvidence, Stage, Status, Trial, Verdict
from knowledge_base.snf.task import Task

from .accuracy import Errors
from .conditions import capacities, conditions
from .cover import Cover, confirm, cover, dims, launch_changes, text
from .examine import EMULATION_SECONDS, Examination, Progress
from .executable import Executable, Within
from .oracle import Oracle
from .own_size import OwnSize, judge_own_size
from .rejection import Rejected, defect, finished, reject
from .sizes import judged_sizes

REFUSED_NAMED = 6  # sizes that a verdict lists
ROUNDS = 4  # of sizes and the plans that they bring up, each with guards of its own


def judge(
    trial: Trial,
    task: Task,
    chip: Chip,
    *,
    plans: Plans | None = None,
    seed: int | None = None,
    oracle: Oracle | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    within: Within | None = None,
) -> Trial:
    """The trial with its verdict; it names the plans that together hold at every judged size.

    trial, task, chip: as :func:`evaluator.trial.begin` puts them together.  plans: what is traced is put there; a trial
    that was timed names the plan of that time, which is taken from there, so that what is judged is what was timed.
    Where nobody has put it there as it was traced, the file is traced here.
    seed: makes the hidden inputs and sizes reproducible (default: from the operating system).  oracle: a started one;
    without, one is started for this call.  jobs: how many assemblers at once.  progress: called with a stage's name and
    the share done.  within: what can end a step that does not end by itself: :meth:`.desk.Desk.within`, where
    this runs in a :class:`.judge_process.JudgeProcess`, as it should for a candidate that nobody vouches for.
    """
    started = time.monotonic()
    seed = int.from_bytes(os.urandom(6)) if seed is None else seed
    plans = Plans() if plans is None else plans
    judging = _Judging(trial, task, chip, jobs, progress or (lambda stage, share: None), within)
    # An oracle of our own starts before the candidate is read, and imports torch meanwhile.
    with contextlib.nullcontext(oracle) if oracle is not None else Oracle() as asked:
        try:
            verdict = judging.run(plans.traced(trial), seed, asked)
        except Rejected as rejected:
            verdict = rejected.verdict
        except UserError:  # this machine lacks something: no word about the candidate
            raise
        except Exception as error:
            verdict = defect(error)
        finally:
            judging.pool.shutdown(wait=False, cancel_futures=True)
    verdict = finished(verdict, trial.candidate.source)
    covered = judging.covered
    plans.put(*covered.traced)
    return trial.fuller(
        verdict=verdict,
        plans=tuple(t.digest for t in covered.traced) or trial.plans,
        evidence=judging.evidence or trial.evidence,
        evidence_elsewhere=judging.elsewhere,
        judged=tuple(at for at, _ in covered.chosen),
        infeasible=tuple(at for at, _ in covered.infeasible),
        seed=seed,
        seconds=time.monotonic() - started,
    )


class _Judging:
    """One judgement under way."""

    def __init__(
        self, trial: Trial, task: Task, chip: Chip, jobs: int, progress: Progress, within: Within | None = None
    ) -> None:
        self.trial, self.task, self.chip, self.progress, self.within = trial, task, chip, progress, within
        self.source, self.axes = trial.candidate.source, trial.configuration
        self.pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="assemble")
        self.compiling: list[Future[Compiled | Verdict]] = []
        self.evidence: tuple[CompileEvidence, ...] = ()  # of the first plan's kernels
        self.elsewhere: tuple[CompileEvidence, ...] = ()  # of the other plans'
        self.covered = Cover()

    def run(self, traced: Traced | None, seed: int, oracle: Oracle) -> Verdict:
        self.progress("trace", 0.0)
        if not isinstance(read_axes(self.source), Verdict) and not containment().landlock:
            oracle.settle()  # the candidate could write files that the oracle has yet to import
        self.trace(traced, seed)
        examination = self.examination(seed, oracle)
        examination.run(self.progress, after_normal=self.compile)
        self.progress("compile", 1.0)
        self.check(examination)
        own, message = self.own_size(examination, seed, oracle), ""
        if self.covered.infeasible:
            refused = [at for at, _ in self.covered.infeasible]
            where = "; ".join(text(at) for at in refused[:REFUSED_NAMED])
            more = len(refused) - REFUSED_NAMED
            message = f"not general: launch refuses {where}{f' and {more} other sizes' if more > 0 else ''}"
        if own.left_out:
            message += f"{'; ' if message else ''}at {text(self.task.sizes)} no values were compared: {own.left_out}"
        self.compiled()
        kernels = {digest: data for traced in self.covered.plans for digest, data in traced.kernels.items()}
        warnings = suspects(kernels, (*self.evidence, *self.elsewhere))
        return Verdict(
            status=Status.CORRECT, stage=Stage.DONE, message=message, numbers=examination.numbers | own.numbers,
            findings=warnings,
        )  # fmt: skip

    def own_size(self, examination: Examination, seed: int, oracle: Oracle) -> OwnSize:
        """The plan that serves the task's own sizes, there."""
        sizes = dims(self.task.sizes, self.chip)
        own = self.covered.serving(sizes)
        if own is None or self.task.sizes in examination.ran:
            return OwnSize()
        normal: dict[str, Errors] = {}
        for (output, _), errors in examination.normal.items():
            normal[output] = normal.get(output, Errors()) + errors
        plan = self.covered.plans[own]
        return judge_own_size(self.task, plan, self.chip, seed, oracle, normal=normal, within=self.within)

    def check(self, examination: Examination) -> None:
        """What "correct" stands on, looked at once more: plans, the task's own sizes served by one, and sizes run."""
        run_by = {index for at, index in self.covered.chosen if at in examination.ran}
        own = self.covered.serving(dims(self.task.sizes, self.chip))
        if own is None or not run_by:
            raise RuntimeError("a judgement without a plan for the task's own sizes, or of no plan")
        if own not in run_by:
            message = f"no judged size runs the launches that {text(self.task.sizes)} gets"
            raise reject(Status.UNSUPPORTED, "own-size-not-judged", message)

    def trace(self, traced: Traced | None, seed: int) -> None:
        """Chooses the sizes and finds a plan for each: ``covered``."""
        first = traced or trace(self.source, self.task, [Request(self.task.sizes, self.axes, "sample")], self.chip)[0]
        if isinstance(first, Verdict):
            raise Rejected(first)
        if self.trial.plans and first.plan.digest != self.trial.plans[0]:
            raise Rejected(launch_changes("launch does not make the launches that it made when they were timed"))
        asked: tuple[Guard, ...] = ()
        self.covered = Cover(traced=[first])
        for turn in range(ROUNDS):  # plans that the sizes so far bring up may ask for others
            others = tuple(dict.fromkeys(g for t in self.covered.traced[1:] for g in t.plan.guards))
            more = dict.fromkeys(c for t in self.covered.traced for c in conditions(t.plan, t.kernels))
            more |= dict.fromkeys(others)
            reached = dict.fromkeys(
                c for t in self.covered.traced for c in capacities(t.plan, t.kernels, self.task.sizes)
            )
            if turn and more.keys() <= {*asked}:
                break
            asked = tuple(more)
            chosen = judged_sizes(
                self.task, [first.plan], first.axes, seed, conditions=asked, others=others, capacities=tuple(reached)
            )
            known = Cover(traced=self.covered.traced)
            self.covered = cover(self.source, self.task, self.chip, self.axes, known, chosen)
        if not self.covered.chosen:
            raise Rejected(self.covered.infeasible[0][1])
        confirm(self.source, self.task, self.chip, self.axes, self.covered)

    def examination(self, seed: int, oracle: Oracle) -> Examination:
        deadline = time.monotonic() + EMULATION_SECONDS
        executable = Executable.of_task(self.task, self.covered.plans, self.chip, deadline, self.within)
        return Examination(self.task, executable, [at for at, _ in self.covered.chosen], seed, oracle)

    def compile(self) -> None:
        """Starts the assembler on the plans' kernels; :meth:`compiled` waits for it."""
        kernels = {digest: data for traced in self.covered.plans for digest, data in traced.kernels.items()}
        self.compiling = [self.pool.submit(Kernel.of(data).compiled, self.chip.arch) for data in kernels.values()]

    def compiled(self) -> None:
        """Waits for the assembler: ``evidence`` and ``elsewhere``.  Raises Rejected where it refused a kernel."""
        out: list[CompileEvidence] = []
        for future in self.compiling:
            answer = future.result()
            if isinstance(answer, Verdict):
                raise Rejected(answer)
            out.append(answer.evidence)
        first = self.covered.plans[0].plan.kernels
        self.evidence = tuple(e for e in out if e.kernel in first)
        self.elsewhere = tuple(e for e in out if e.kernel not in first)
