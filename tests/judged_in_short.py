"""A judgement of a run's tests, in a judge's process: what a run makes of verdicts needs no more cases than these.

The candidate is traced, emulated under the sanitizer on normal inputs and on zeros, and held to the oracle.  Left out
is what tests/evaluator and tests/adversarial look at: the other distributions, the size that is timed, and the second
trace with plain integers.
"""

from __future__ import annotations

from typing import Any


def judged_in_short(question: str, *arguments: Any) -> Any:
    """The answer to a question; what is left out is so for this fork alone."""
    from evaluator.judging import examine, judgement
    from evaluator.judging.judge_server import QUESTIONS
    from evaluator.judging.own_size import OwnSize

    judgement.judge_own_size = lambda *_, **__: OwnSize()  # type: ignore[assignment]
    judgement.confirm = lambda *_: None
    examine.distributions = lambda _: ["normal", "zeros"]  # type: ignore[assignment]
    return QUESTIONS[question](*arguments)
