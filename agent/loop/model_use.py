"""What a run asked of a language model, added up from its stored calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.console import count
from agent.proposers import Allowance, LanguageModelChoice, Spent, charged
from knowledge_base.records import Answered, LlmCall


@dataclass(frozen=True)
class ModelUse:
    """A run's calls.  ``outcomes``: how many ended how.  candidates: answers that held a file.

    tokens_in, tokens_out: by the endpoint's counts; calls of which it gave none are not in them.  cost_usd: None where
    a counted call has no price.  charged_tokens, charged_usd: what counts against the budgets, a call that was cut off
    or not counted with the most that it may have cost.  budget_tokens, budget_usd: None where they were not limited.
    changed: in a replay, prompts that differ from the recorded ones; else None.  failure: what the last call without an
    answer died of; empty if none did.
    """

    model: str
    endpoint: str
    calls: int
    outcomes: dict[str, int]
    candidates: int
    tokens_in: int
    tokens_out: int
    cost_usd: float | None
    charged_tokens: int
    charged_usd: float | None
    budget_tokens: int | None
    budget_usd: float | None
    changed: int | None
    failure: str

    @property
    def says(self) -> str:
        """One line for people."""
        ended = ", ".join(f"{number} {outcome}" for outcome, number in self.outcomes.items())
        made = f"{self.model}: {count(self.calls, 'call')} ({ended}), {count(self.candidates, 'candidate')}"
        if self.changed is not None:
            since = (
                f" {self.changed} of {count(self.calls, 'prompt')} changed since: prompts/*.diff in the run's folder."
            )
            return f"{made}; recorded answers, no model was asked.{since if self.changed else ''}"
        spent = Spent(self.charged_tokens, self.charged_usd or 0.0)
        limits = Allowance(self.budget_tokens, self.budget_usd)
        return f"{made}; {spent.of(limits, self.charged_usd is not None)}."


def model_use(calls: Sequence[LlmCall], choice: LanguageModelChoice | None) -> ModelUse | None:
    """The sum of a run's calls; None where nothing was asked."""
    if not calls or choice is None:
        return None
    spent = charged(calls, choice.price)
    failed = [c for c in calls if not c.status.readable or c.status is Answered.REFUSED]
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
        charged_tokens=spent.tokens,
        charged_usd=round(spent.usd, 6) if choice.price is not None else None,
        budget_tokens=choice.limits.tokens,
        budget_usd=choice.limits.usd,
        changed=sum(map(_changed, calls)) if choice.recording is not None else None,
        failure=f"{failed[-1].status.value}: {failed[-1].said}" if failed else "",
    )


def _changed(call: LlmCall) -> bool:
    """Whether its answer was recorded with another prompt."""
    return bool(call.recorded_for) and call.recorded_for != call.prompt
