"""What a run asked of a language model, added up from its stored calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.console import count
from knowledge_base.records import Answered, LlmCall


@dataclass(frozen=True)
class ModelUse:
    """A run's calls.  ``outcomes``: how many ended how.  candidates: answers that held a file.

    tokens_in, tokens_out: by the endpoint's counts; calls of which it gave none are not in them, nor what a call cost
    that was cut off.  cost_usd: None where a counted call has no price.  failure: what the last call without an answer
    died of; empty if none did.
    """

    model: str
    endpoint: str
    calls: int
    outcomes: dict[str, int]
    candidates: int
    tokens_in: int
    tokens_out: int
    cost_usd: float | None
    failure: str

    @property
    def says(self) -> str:
        """One line for people."""
        ended = ", ".join(f"{number} {outcome}" for outcome, number in self.outcomes.items())
        cost = "no price is known" if self.cost_usd is None else f"${self.cost_usd:.4f}"
        tokens = f"{self.tokens_in:,} + {self.tokens_out:,} tokens"
        made = f"{count(self.calls, 'call')} ({ended}), {count(self.candidates, 'candidate')}"
        return f"{self.model}: {made}, {tokens}, {cost}."


def model_use(calls: Sequence[LlmCall]) -> ModelUse | None:
    """The sum of a run's calls; None where nothing was asked."""
    if not calls:
        return None
    failed = [c for c in calls if c.status not in (Answered.ANSWERED, Answered.TRUNCATED, Answered.EMPTY)]
    counted = [c for c in calls if c.tokens_in is not None]
    costs = [c.cost_usd for c in counted]
    return ModelUse(
        model=calls[-1].model,
        endpoint=calls[-1].endpoint,
        calls=len(calls),
        outcomes=dict(Counter(c.status.value for c in calls)),
        candidates=sum(bool(c.candidate) for c in calls),
        tokens_in=sum(c.tokens_in or 0 for c in counted),
        tokens_out=sum(c.tokens_out or 0 for c in counted),
        cost_usd=round(sum(c or 0.0 for c in costs), 6) if costs and None not in costs else None,
        failure=f"{failed[-1].status.value}: {failed[-1].said}" if failed else "",
    )
