"""How a judgement ends early: :class:`Rejected` carries the verdict from wherever the candidate went wrong."""

from __future__ import annotations

from typing import Any

from evaluator.confine import containment
from knowledge_base.hints import classify
from knowledge_base.records import Stage, Status, Verdict


class Rejected(Exception):
    """Carries the verdict that ends a judgement."""

    def __init__(self, verdict: Verdict):
        super().__init__(verdict.message)
        self.verdict = verdict


def reject(status: Status, error_class: str, message: str, **more: Any) -> Rejected:
    """A rejection while the candidate's kernels are emulated; ``more`` are other fields of the Verdict."""
    return Rejected(Verdict(status=status, stage=Stage.EMULATE, error_class=error_class, message=message, **more))


def finished(verdict: Verdict, source: str) -> Verdict:
    """The verdict with the error table's hint, its line's text out of ``source``, and what held the candidate."""
    error_class, hint = classify(verdict.status, verdict.message, verdict.error_class)
    lines = source.splitlines()
    line = verdict.line
    if line is None and verdict.findings:
        line = verdict.findings[0].line
    said = lines[line - 1].strip() if line is not None and 0 < line <= len(lines) else ""
    changes: dict[str, Any] = {"error_class": error_class, "hint": verdict.hint or hint, "line": line, "source": said}
    if verdict.stage is not Stage.STATIC:
        changes["contained"] = containment().level
    return verdict.model_copy(update=changes)
