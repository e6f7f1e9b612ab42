"""The judge: is this candidate right?  The meaning of right of docs/judging.md, whole, on the CPU.

    task, chip = everyday("layernorm"), CHIPS["rtx5070"]
    judged, plans = judge(begin(Candidate(source=source, task=task.identity), task, chip), task, chip)

The candidate's Python runs only in the tracer's confined children; what runs here is its plan and Tile IR, on the
emulator, on inputs that are drawn afresh for every judgement.  A case is one size and one distribution:

1. trace; choose sizes from the plan; trace where no guards hold; trace every size again with plain integers
2. every case on the emulator: outputs, workspaces and undetermined padding hold one finite poison, and for half of the
   cases another one in turn; equal results, inputs unchanged, no finding of the sanitizer
3. every element against the fp64 reference, in pools, by the yardstick's own error
4. once normal inputs have passed, the assembler compiles the kernels for the chip meanwhile: a refusal rejects, and
   evidence is attached

A failure is a Verdict with class, hint and the candidate's line.  What runs where is decided in :mod:`.cover`, how one
case runs in :mod:`.cases`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from evaluator.cover import Cover, confirm, cover, dims, launch_changes, text
from evaluator.inputs import CONSTANT_INPUTS, distributions
from evaluator.kernel import Kernel
from evaluator.sizes import ELEMENTS, Sizes, judged_sizes, output_elements
from knowledge_base.hints import classify
from knowledge_base.records import CompileEvidence, Stage, Status, Trial, Verdict
from knowledge_base.snf.task import Task

if TYPE_CHECKING:
    from evaluator.cases import Runner
    from evaluator.compare import Case, Errors, Failure, Place
    from evaluator.compile import Compiled
    from evaluator.oracle import Oracle
    from evaluator.trace import Traced
    from knowledge_base.chips import Chip

EMULATION_SECONDS = 120.0  # for all cases together; honest candidates take one to five
SECOND_OPINION = 8  # fresh seeds for the sizes of a doubtful pool
MAX_REPEATS = 16  # fresh seeds for a task whose outputs are small, until a pool has ELEMENTS elements
SIZES_PER_DISTRIBUTION = 3  # all but "normal", which runs at every size

Progress = Callable[[str, float], None]
Plans = dict[str, "Traced"]  # by the plan's digest


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: judged sizes are small, and the oracle and the assembler have the other cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Rejected(Exception):
    """Carries the verdict that ends a judgement."""

    def __init__(self, verdict: Verdict):
        super().__init__(verdict.message)
        self.verdict = verdict


def judge(
    trial: Trial,
    task: Task,
    chip: Chip,
    *,
    traced: Traced | None = None,
    seed: int | None = None,
    oracle: Oracle | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
) -> tuple[Trial, Plans]:
    """The trial with its verdict, and the plans it names: those that together hold at every judged size.

    trial, task, chip: as :func:`evaluator.trial.begin` puts them together.  A trial that was timed names the plan of
    that time: ``traced`` is that plan, so that what is judged is what was timed; without it the file is traced here.
    seed: makes the hidden inputs and sizes reproducible (default: from the operating system).  oracle: a started one;
    without, one is started for this call.  jobs: how many assemblers at once.  progress: called with a stage's name and
    the share done.
    """
    from evaluator.oracle import Oracle

    started = time.monotonic()
    seed = int.from_bytes(os.urandom(6)) if seed is None else seed
    owned = Oracle() if oracle is None else None
    judging = _Judging(trial, task, chip, seed, oracle or owned, jobs, progress)  # type: ignore[arg-type]
    try:
        verdict = judging.run(traced)
    finally:
        if owned is not None:
            owned.close()
    plans = {t.plan.digest: t for t in judging.covered.plans} if judging.covered is not None else {}
    judged = trial.fuller(
        verdict=verdict,
        plans=tuple(plans) or trial.plans,
        evidence=trial.evidence or verdict.evidence,
        judged=judging.sizes,
        infeasible=tuple(at for at, _ in judging.covered.infeasible) if judging.covered is not None else (),
        seed=seed,
        seconds=time.monotonic() - started,
    )
    return judged, plans


class _Judging:
    """One judgement under way."""

    def __init__(
        self,
        trial: Trial,
        task: Task,
        chip: Chip,
        seed: int,
        oracle: Oracle,
        jobs: int,
        progress: Progress | None,
    ) -> None:
        self.trial, self.task, self.chip, self.seed, self.oracle = trial, task, chip, seed, oracle
        self.source, self.axes = trial.candidate.source, trial.configuration
        self.progress = progress or (lambda stage, share: None)
        self.pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="assemble")
        self.compiling: list[Future[Compiled | Verdict]] = []
        self.covered: Cover | None = None
        self.sizes: tuple[Sizes, ...] = ()
        self.numbers: dict[str, Any] = {}
        self.normal: dict[Place, Errors] = {}
        self.ops = frozenset(node.op for node in task.graph.nodes)

    def run(self, traced: Traced | None) -> Verdict:
        try:
            verdict = self.decide(traced)
        except Rejected as rejected:
            verdict = rejected.verdict
        finally:
            self.pool.shutdown(wait=False, cancel_futures=True)
        return finished(verdict, self.source)

    def decide(self, traced: Traced | None) -> Verdict:
        self.progress("trace", 0.0)
        self.trace(traced)
        with one_thread():
            self.emulate()
        self.progress("compile", 1.0)
        evidence = self.evidence()
        assert self.covered is not None
        message = ""
        if self.covered.infeasible:
            where = "; ".join(text(at) for at, _ in self.covered.infeasible[:3])
            message = f"correct where feasible; launch refuses {where}"
        return Verdict(
            status=Status.CORRECT, stage=Stage.DONE, message=message, numbers=self.numbers, evidence=evidence
        )

    # -------------------------------------------------------------------------------------------- plans

    def trace(self, traced: Traced | None) -> None:
        from evaluator.trace import Request, trace

        first = traced or trace(self.source, self.task, [Request(self.task.sizes, self.axes)], self.chip)[0]
        if isinstance(first, Verdict):
            raise Rejected(first)
        if self.trial.plans and first.plan.digest != self.trial.plans[0]:
            raise Rejected(launch_changes("launch does not make the launches that it made when they were timed"))
        chosen = judged_sizes(self.task, [first.plan], first.axes, self.seed)
        covered = cover(self.source, self.task, self.chip, self.axes, first, chosen)
        if isinstance(covered, Verdict):
            raise Rejected(covered)
        if not covered.chosen:
            raise Rejected(covered.infeasible[0][1])
        self.covered = covered
        self.sizes = tuple(at for at, _ in covered.chosen)
        different = confirm(self.source, self.task, self.chip, self.axes, covered)
        if different is not None:
            raise Rejected(different)

    def compile(self, plans: Iterable[Traced]) -> None:
        """Starts the assembler on the plans' kernels; :meth:`evidence` waits for it."""
        kernels = {digest: data for traced in plans for digest, data in traced.kernels.items()}
        self.compiling = [self.pool.submit(Kernel.of(data).compiled, self.chip.arch) for data in kernels.values()]

    def evidence(self) -> tuple[CompileEvidence, ...]:
        out: list[CompileEvidence] = []
        for future in self.compiling:
            answer = future.result()
            if isinstance(answer, Verdict):
                raise Rejected(answer)
            out.append(answer.evidence)
        return tuple(out)

    # -------------------------------------------------------------------------------------------- cases

    def emulate(self) -> None:
        from evaluator.cases import Runner

        assert self.covered is not None
        runner = Runner(self.task, self.covered.plans, self.source, time.monotonic() + EMULATION_SECONDS)
        plan_of = {tuple(sorted(at.items())): index for at, index in self.covered.chosen}
        names = distributions(self.task.graph)
        for i, name in enumerate(names):
            self.progress("emulate", i / len(names))
            self.distribution(name, i, runner, plan_of)
            if i == 0:  # not before: most candidates are wrong, and wrong on normal inputs
                self.compile(self.covered.plans)

    def distribution(self, name: str, number: int, runner: Runner, plan_of: Mapping[Any, int]) -> None:
        """Runs one distribution's cases and judges its pools.  Raises Rejected.

        Sizes whose pool is doubtful run again on fresh seeds, and the larger pool decides.
        """
        from evaluator.compare import Errors, place, pools

        measured = self.measure(name, self.places(name, number), runner, plan_of)
        company = self.normal if name in CONSTANT_INPUTS else None
        again = {
            tuple(sorted(case.sizes.items()))
            for of_output in measured.values()
            for pool in pools(of_output, company)
            if pool.errors.doubtful
            for case in pool.cases
        }
        if again:
            seeds = range(self.seed + MAX_REPEATS, self.seed + MAX_REPEATS + SECOND_OPINION)
            more = self.measure(name, [(dict(at), seed) for at in sorted(again) for seed in seeds], runner, plan_of)
            measured = {output: [*of_output, *more[output]] for output, of_output in measured.items()}
        if name == "normal":
            for case, errors in (m for of_output in measured.values() for m in of_output):
                self.normal[place(case)] = self.normal.get(place(case), Errors()) + errors
        self.numbers[name] = accept(measured, self.ops, company)

    def measure(
        self, name: str, places: Sequence[tuple[Sizes, int]], runner: Runner, plan_of: Mapping[Any, int]
    ) -> dict[str, list[tuple[Case, Errors]]]:
        """Runs cases of one distribution at (sizes, seed): by output, each case with its errors.  Raises Rejected."""
        from evaluator.compare import Failure, measure
        from evaluator.oracle import question

        questions = [question(self.task, at, name, seed) for at, seed in places]
        measured: dict[str, list[tuple[Case, Errors]]] = {}
        for i, (q, expected) in enumerate(zip(questions, self.oracle.expect_all(questions), strict=True)):
            at = dict(q.sizes)
            twice = name == "normal" or i == 0
            cases = runner.run(plan_of[q.sizes], dims(at, self.chip), at, name, expected, twice, odd=bool(i % 2))
            if isinstance(cases, Verdict):
                raise Rejected(cases)
            for case in cases:
                errors = measure(case)
                if isinstance(errors, Failure):
                    raise Rejected(wrong(errors, None, self.ops))
                measured.setdefault(case.output, []).append((case, errors))
        return measured

    def places(self, name: str, number: int) -> list[tuple[Sizes, int]]:
        """(sizes, seed) of a distribution's cases: enough that their pool can have ELEMENTS elements."""
        chosen: Sequence[Sizes] = self.sizes
        if name != "normal":  # the first, which is large, and others in turn
            rest = self.sizes[1:]
            turn = [rest[(number * (SIZES_PER_DISTRIBUTION - 1) + k) % len(rest)] for k in range(2)] if rest else []
            chosen = [self.sizes[0], *(at for i, at in enumerate(turn) if at not in turn[:i])]
        out = [(at, self.seed) for at in chosen]
        elements = sum(output_elements(self.task, at) for at in chosen)
        largest = max(chosen, key=lambda at: output_elements(self.task, at))
        for repeat in range(1, MAX_REPEATS):
            if elements >= ELEMENTS:
                break
            out.append((largest, self.seed + repeat))
            elements += output_elements(self.task, largest)
        return out


def accept(
    measured: Mapping[str, Sequence[tuple[Case, Errors]]],
    ops: frozenset[str],
    company: Mapping[Place, Errors] | None = None,
) -> dict[str, Any]:
    """The figures of one distribution, by output.  Raises Rejected where a pool's errors are too large."""
    from evaluator.compare import pools, summary, worst

    figures: dict[str, Any] = {}
    for output, of_output in measured.items():
        for pool in pools(of_output, company):
            if not pool.errors.acceptable:
                raise Rejected(wrong(worst(pool), summary(pool.errors), ops, of_output))
        total = of_output[0][1]
        for _, errors in of_output[1:]:
            total = total + errors
        figures[output] = summary(total) | {"sizes": [c.sizes for c, _ in of_output]}
    return figures


def wrong(
    failure: Failure,
    figures: dict[str, Any] | None,
    ops: frozenset[str],
    measured: Sequence[tuple[Case, Errors]] = (),
) -> Verdict:
    """The verdict on an element that is wrong.

    ``figures`` are those of its pool, ``ops`` what the task is made of; ``measured``: the output at all sizes.
    """
    from evaluator.diagnose import diagnose

    error_class, pattern = diagnose(failure, ops, measured)
    case = failure.case
    message = (
        f"{case.output}{list(failure.index)} is {failure.got:.6g}, should be {failure.expected:.6g}"
        f" ({case.distribution} inputs, {text(case.sizes)})"
    )
    if figures is not None and figures["rms_ratio"]:
        message += f"; RMS error {figures['rms_ratio']:.3g} × PyTorch's"
    if pattern:
        message += f"; {pattern}"
    numbers: dict[str, Any] = {
        "output": case.output,
        "index": list(failure.index),
        "got": failure.got,
        "expected": failure.expected,
        "allowed_error": failure.allowed,
        "distribution": case.distribution,
        "sizes": case.sizes,
    }
    if figures is not None:
        numbers["errors"] = figures
    return Verdict(status=Status.WRONG, stage=Stage.COMPARE, error_class=error_class, message=message, numbers=numbers)


def finished(verdict: Verdict, source: str) -> Verdict:
    """The verdict with the error table's hint and the text of its line."""
    error_class, hint = classify(verdict.status, verdict.message, verdict.error_class)
    lines = source.splitlines()
    line = verdict.line
    if line is None and verdict.findings:
        line = verdict.findings[0].line
    said = lines[line - 1].strip() if line is not None and 0 < line <= len(lines) else ""
    changes = {"error_class": error_class, "hint": verdict.hint or hint, "line": line, "source": said}
    return verdict.model_copy(update=changes)
