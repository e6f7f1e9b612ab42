"""What a run may spend on a language model.  Every call first reserves its worst case, so no budget is exceeded.

The worst case of a request is a token for every byte of its messages (tokenizers that fall back to bytes need no more)
and an answer of the greatest length that it allows, at the price of a prompt that no cache holds.  Once the endpoint
has counted, its counts stand; where it gave none, because the connection ended or it never does, the worst case does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowledge_base.records import LlmCall

if TYPE_CHECKING:
    from .prices import Price

WRAPPING = 300  # tokens that an endpoint puts around the messages: roles, marks, a system's line of its own
LEAST_TOKENS = 2_000  # of an answer; below it no file fits
POLL_S = 0.1  # how often a call that waits for others looks whether the run still goes on


@dataclass(frozen=True)
class Allowance:
    """Tokens, of prompts and answers together, and US dollars of all calls of a run, resumed or not.  None: any."""

    tokens: int | None = 500_000
    usd: float | None = None


@dataclass(frozen=True)
class Spent:
    """Tokens of prompts and answers, and what they cost; 0 dollars where the model has no price."""

    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.tokens + other.tokens, self.usd + other.usd)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.tokens - other.tokens, self.usd - other.usd)

    def within(self, limits: Allowance) -> bool:
        """Whether it is no more than the limits."""
        tokens, usd = limits.tokens, limits.usd
        return (tokens is None or self.tokens <= tokens) and (usd is None or self.usd <= usd)

    def of(self, limits: Allowance, priced: bool) -> str:
        """For people: ``83,201 of 500,000 tokens, $0.2100 of $1.00``."""
        text = f"{self.tokens:,} tokens" if limits.tokens is None else f"{self.tokens:,} of {limits.tokens:,} tokens"
        if not priced:
            return f"{text}, no price is known"
        return f"{text}, ${self.usd:.4f}" + (f" of ${limits.usd:.2f}" if limits.usd is not None else "")


def worst_case(request: Mapping[str, Any], price: Price | None) -> Spent:
    """The most that a request may cost."""
    prompt = WRAPPING + sum(len(message["content"].encode("utf-8", "replace")) for message in request["messages"])
    return _cost(prompt, request["max_tokens"], 0, price)


def charged(calls: Iterable[LlmCall], price: Price | None) -> Spent:
    """What calls cost, or may have cost: one under way, cut off or uncounted is charged its worst case."""
    return sum((_charged(call, price) for call in calls), Spent())


def _charged(call: LlmCall, price: Price | None) -> Spent:
    if call.status.turned_away and not call.text and call.tokens_in is None:
        return Spent()
    if call.status.broken_off or call.tokens_in is None or call.tokens_out is None:
        return worst_case(call.request, price)
    if call.cost_usd is not None:  # by the price of its day, and of its model
        return Spent(call.tokens_in + call.tokens_out, call.cost_usd)
    return _cost(call.tokens_in, call.tokens_out, call.tokens_cached or 0, price)


def _cost(tokens_in: int, tokens_out: int, cached: int, price: Price | None) -> Spent:
    return Spent(tokens_in + tokens_out, price.usd(tokens_in, tokens_out, cached) if price is not None else 0.0)


@dataclass(frozen=True)
class Reservation:
    """What a call may send: ``request``, and what is kept for it until its cost is known."""

    request: dict[str, Any]
    held: Spent


class Budget:
    """A run's, for all threads that ask.  ``calls``: those of the run that were made before it was resumed."""

    def __init__(self, limits: Allowance, price: Price | None, calls: Iterable[LlmCall] = ()) -> None:
        self.limits, self.price = limits, price
        self._spent: dict[str, Spent] = {}  # by place
        for call in calls:
            self._spend(call)
        self._held = Spent()  # for calls under way; nothing where there is none
        self._changed = threading.Condition()

    def reserve(self, request: Mapping[str, Any], goes_on: Callable[[], bool] = lambda: True) -> Reservation | None:
        """Keeps the worst case of a request; None where the budget has too little left, or ``goes_on`` says no.

        Where it does not fit, it waits for the calls that are under way, which mostly cost less than what is kept for
        them; then it allows a shorter answer.
        """
        with self._changed:
            while goes_on():
                fitting = self._longest(request, request["max_tokens"] if self._held.tokens else LEAST_TOKENS)
                if fitting is not None:
                    made = Reservation(fitting, worst_case(fitting, self.price))
                    self._held += made.held
                    return made
                if not self._held.tokens:
                    return None
                self._changed.wait(POLL_S)
        return None

    def settle(self, made: Reservation, call: LlmCall) -> None:
        """What was kept is free again; what the call cost is spent."""
        with self._changed:
            self._held -= made.held
            self._spend(call)
            self._changed.notify_all()

    def used_up(self, place: str, part: float) -> bool:
        """Whether a task has spent its part, tokens or dollars, of the budget."""
        with self._changed:
            spent = self._spent.get(place, Spent())
        tokens, usd = self.limits.tokens, self.limits.usd
        return (tokens is not None and spent.tokens >= part * tokens) or (usd is not None and spent.usd >= part * usd)

    @property
    def says(self) -> str:
        """What is spent, of what there is."""
        with self._changed:
            return self._total.of(self.limits, self.price is not None)

    @property
    def _total(self) -> Spent:
        return sum(self._spent.values(), Spent())

    def _spend(self, call: LlmCall) -> None:
        self._spent[call.place] = self._spent.get(call.place, Spent()) + _charged(call, self.price)

    def _longest(self, request: Mapping[str, Any], least: int) -> dict[str, Any] | None:
        """The request with the longest answer that fits, of ``least`` tokens or more; None where not even that does."""
        low, high = min(least, request["max_tokens"]), request["max_tokens"]
        if not self._fits(request, low):
            return None
        while low < high:  # a price may have steps
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fits(request, middle) else (low, middle - 1)
        return {**request, "max_tokens": low}

    def _fits(self, request: Mapping[str, Any], max_tokens: int) -> bool:
        worst = worst_case({**request, "max_tokens": max_tokens}, self.price)
        return (self._total + self._held + worst).within(self.limits)
