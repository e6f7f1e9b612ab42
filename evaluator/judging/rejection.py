"""How a judgement ends early: :class:`Rejected` carries the verdict from wherever the candidate went wrong."""

from __future__ import annotations

from typing import Any

from evaluator.confinement import containment, in_short
from evaluator.tileir import out_of_memory
from knowledge_base.hints import classify
from knowledge_base.records import Stage, Status, Verdict, clean


class Rejected(Exception):
    """Carries the verdict that ends a judgement.  It is never a good one: those are given at a judgement's end."""

    def __init__(self, verdict: Verdict):
        if verdict.correct:
            raise ValueError("a rejection of a correct candidate")
        super().__init__(verdict.message)
        self.verdict = verdict

    def __reduce__(self) -> tuple[type[Rejected], tuple[Verdict]]:  # it crosses the borders of processes
        return Rejected, (self.verdict,)


def reject(status: Status, error_class: str, message: str, **more: Any) -> Rejected:
    """A rejection while the candidate's kernels are emulated; ``more`` are other fields of the Verdict."""
    return Rejected(Verdict(status=status, stage=Stage.EMULATE, error_class=error_class, message=message, **more))


def defect(error: Exception) -> Verdict:
    """The verdict on a candidate that nobody could judge, because what judges it failed: ``error`` is no one's plan."""
    if out_of_memory(error):
        return reject(Status.UNSUPPORTED, "emulator-memory", "judging it takes more memory than it may").verdict
    message = f"the evaluator failed, which says nothing about the kernel: {in_short(error)}"
    error_class, hint = classify(Status.CRASH, message, "evaluator-defect")
    return Verdict(status=Status.CRASH, stage=Stage.EMULATE, error_class=error_class, message=message, hint=hint)


def finished(verdict: Verdict, source: str) -> Verdict:
    """The verdict with the error table's hint, its line's text out of ``source``, and what held the candidate."""
    error_class, hint = classify(verdict.status, verdict.message, verdict.error_class)
    lines = source.splitlines()
    line = verdict.line
    if line is None and verdict.findings:
        line = verdict.findings[0].line
    said = clean(lines[line - 1].strip()) if line is not None and 0 < line <= len(lines) else ""
    changes: dict[str, Any] = {"error_class": error_class, "hint": verdict.hint or hint, "line": line, "source": said}
    if verdict.stage is not Stage.STATIC:
        changes["contained"] = containment().level
    return verdict.model_copy(update=changes)
