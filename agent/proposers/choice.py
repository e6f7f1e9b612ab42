"""Which proposer a run uses, and why: ``--proposer auto|openai|synthesizer|manual``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowledge_base.errors import UserError
from knowledge_base.store import REPLAY

from . import language_model
from .access import NO_KEY, Access, access
from .base import Proposer, Workplace
from .manual import Manual
from .synthesizer import Synthesizer

if TYPE_CHECKING:
    from .language_model import Allowance, Price, Recording

NAMES = ("auto", "synthesizer", "manual", "openai")


@dataclass(frozen=True)
class LanguageModelChoice:
    """A language model, what asking it costs (None: it has no price), and what a run may spend on it.

    recording: what answers in its stead, in a replay.
    """

    access: Access
    price: Price | None
    limits: Allowance
    recording: Recording | None = None


@dataclass(frozen=True)
class Choice:
    """A proposer's name, and the reason in words that a user reads.  ``model``: the language model that it asks."""

    name: str
    why: str
    model: LanguageModelChoice | None = None

    @property
    def by(self) -> str:
        """Who writes the kernels, for people."""
        return "synthesizer, then by a language model" if self.model is not None else self.name

    def proposers(self, place: Workplace) -> tuple[Proposer, ...]:
        """The proposers that a task is given to, one after another.

        A language model comes after the synthesizer: it is told what it has to beat, and where it fails there is a
        kernel.
        """
        if self.name == "manual":
            return (Manual(place),)
        if self.model is not None:
            m = self.model
            return (Synthesizer(), language_model.LanguageModel(m.access, place, m.limits, m.price, m.recording))
        return (Synthesizer(),)


def choose(
    name: str,
    model: str | None,
    environment: Mapping[str, str] | None = None,
    *,
    tokens: int | None = None,
    usd: float | None = None,
    prices: str | None = None,
) -> Choice:
    """What ``--proposer name`` means here.

    ``auto`` is openai where OPENAI_API_KEY or OPENAI_BASE_URL is set and ``--model`` or OPENAI_MODEL names a model;
    otherwise the synthesizer.  tokens, usd: budgets of a language model.  prices: a file with prices of models.
    Raises UserError for an unknown name, for openai or a model without one of them, for a budget in dollars where the
    model has no price, and for budgets where no model is asked.
    """
    environment = os.environ if environment is None else environment
    if name not in NAMES:
        raise UserError(f"--proposer {name}: no such proposer", f"There are {', '.join(NAMES)}.")
    if name not in ("auto", "openai"):
        given = {"--model": model or None, "--budget-tokens": tokens, "--budget-usd": usd, "--prices": prices}
        for option, value in given.items():
            if value is not None:
                raise UserError(f"{option} {value}: the {name} proposer asks no language model", f"Leave {option} out.")
        return Choice(name, "asked for")
    found = access(model, environment)
    if isinstance(found, Access):
        return Choice("openai", f"{found.model} at {found.address}", _model(found, tokens, usd, prices))
    if name == "openai" or model:
        raise UserError(
            f"--proposer openai: {found}" if name == "openai" else f"--model {model}: {found}",
            "Set OPENAI_API_KEY (or OPENAI_BASE_URL for an endpoint of your own) and name a model: --model NAME. "
            "The synthesizer needs neither.",
        )
    return Choice("synthesizer", found)


def replayed(recording: Recording) -> Choice:
    """The choice of a run that is answered by a recording: it asks nobody, so it has no budget."""
    limits = language_model.Allowance(tokens=None)
    named = Access(recording.address, NO_KEY, recording.model)
    model = LanguageModelChoice(named, None, limits, recording)
    return Choice(REPLAY, f"{named.model}, as recorded in {recording.run}", model)


def _model(found: Access, tokens: int | None, usd: float | None, prices: str | None) -> LanguageModelChoice:
    price = language_model.price_of(found, prices)
    if usd is not None and price is None:
        raise UserError(
            f"--budget-usd: no price is known for {found.model} at {found.address}",
            "Give its price in a file: --prices FILE (docs/proposers.md), or limit --budget-tokens.",
        )
    if usd is not None and not usd >= 0:
        raise UserError(f"--budget-usd {usd:g}: no sum of dollars", "For example --budget-usd 1.50.")
    limits = language_model.Allowance(usd=usd) if tokens is None else language_model.Allowance(tokens, usd)
    return LanguageModelChoice(found, price, limits)
