"""The cases of a judgement: an executable on every distribution, its results held against the oracle's.

A case is one size and one set of inputs.  Results are judged by pools of cases (:mod:`.compare`); where a pool is
doubtful its sizes run again on fresh seeds.  A task's kernel and a whole target go through the same cases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from knowledge_base.records import Stage, Status, Verdict
from knowledge_base.snf.task import Task

from .accuracy import Case, Errors, Failure, Place, place, pools, summary
from .cases import run_case
from .compare import measure, worst
from .cover import text
from .diagnose import diagnose
from .executable import Executable
from .inputs import CONSTANT_INPUTS, distributions
from .oracle import Answering, question
from .rejection import Rejected
from .sizes import ELEMENTS, Sizes, output_elements

EMULATION_SECONDS = 120.0  # for all cases together; honest candidates take one to five
SECOND_OPINION = 8  # fresh seeds for the sizes of a doubtful pool
MAX_REPEATS = 16  # fresh seeds for a task whose outputs are small, until a pool has ELEMENTS elements
SIZES_PER_DISTRIBUTION = 3  # all but "normal", which runs at every size

Progress = Callable[[str, float], None]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: judged sizes are small, and the oracle and the assembler have the other cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Examination:
    """The cases of ``executable``, which claims to compute ``task`` and is to be right at ``sizes``.

    sizes: the first has the most output elements.  seed: of the inputs.  names: the distributions (default: all that
    say something about the task).  repeats: fresh seeds at most, where the outputs of all sizes together are few.
    """

    def __init__(
        self,
        task: Task,
        executable: Executable,
        sizes: Sequence[Sizes],
        seed: int,
        oracle: Answering,
        *,
        names: Sequence[str] | None = None,
        repeats: int = MAX_REPEATS,
    ) -> None:
        self.task, self.executable, self.sizes, self.seed, self.oracle = task, executable, sizes, seed, oracle
        self.names = distributions(task.graph) if names is None else names
        self.repeats = repeats
        self.numbers: dict[str, Any] = {}  # by distribution and output: the verdict's figures
        self.normal: dict[Place, Errors] = {}
        self.ran: list[Sizes] = []  # the sizes of every case that came out right so far
        self.ops = frozenset(node.op for node in task.graph.nodes)

    def run(self, progress: Progress | None = None, after_normal: Callable[[], None] | None = None) -> None:
        """Every distribution in turn.  Raises Rejected; where it does not, every size was run and came out right.

        ``after_normal`` is called once normal inputs have passed: most candidates that are wrong are wrong on these.
        """
        with one_thread():
            for number, name in enumerate(self.names):
                if progress is not None:
                    progress("emulate", number / len(self.names))
                self.distribution(name, number)
                if number == 0 and after_normal is not None:
                    after_normal()
        if not self.sizes or any(at not in self.ran for at in self.sizes):
            raise RuntimeError("a judgement without sizes, or with sizes that were not run")

    def distribution(self, name: str, number: int) -> None:
        """Runs one distribution's cases and judges its pools.  Raises Rejected.

        Sizes whose pool is doubtful run again on fresh seeds, and the larger pool decides.
        """
        measured = self.measure(name, self.places(name, number))
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
            more = self.measure(name, [(dict(at), seed) for at in sorted(again) for seed in seeds])
            measured = {output: [*of_output, *more[output]] for output, of_output in measured.items()}
        if name == "normal":
            for case, errors in (m for of_output in measured.values() for m in of_output):
                self.normal[place(case)] = self.normal.get(place(case), Errors()) + errors
        self.numbers[name] = accept(measured, self.ops, company)

    def measure(self, name: str, places: Sequence[tuple[Sizes, int]]) -> dict[str, list[tuple[Case, Errors]]]:
        """Runs cases of one distribution at (sizes, seed): by output, each case with its errors.  Raises Rejected."""
        questions = [question(self.task, at, name, seed) for at, seed in places]
        measured: dict[str, list[tuple[Case, Errors]]] = {}
        for i, (q, expected) in enumerate(zip(questions, self.oracle.expect_all(questions), strict=True)):
            at = dict(q.sizes)
            if expected.undefined and name != "normal":
                continue  # whatever comes out is right
            twice = name == "normal" or i == 0
            for case in run_case(self.executable, self.task, at, name, expected, twice=twice, odd=bool(i % 2)):
                errors = measure(case)
                if isinstance(errors, Failure):
                    raise Rejected(wrong(errors, None, self.ops))
                if name == "small":
                    usual = (of_case for at, of_case in self.normal.items() if at[0] == case.output)
                    errors = errors.eased(sum(usual, Errors()))
                measured.setdefault(case.output, []).append((case, errors))
            self.ran += [at] if at not in self.ran else []
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
        for repeat in range(1, self.repeats):
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
