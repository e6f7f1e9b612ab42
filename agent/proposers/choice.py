"""Which proposer a run uses, and why: ``--proposer auto|openai|synthesizer|manual``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from knowledge_base.errors import UserError

from .access import Access, access
from .base import Proposer, Workplace
from .manual import Manual
from .synthesizer import Synthesizer

NAMES = ("auto", "synthesizer", "manual", "openai")


@dataclass(frozen=True)
class Choice:
    """A proposer's name, and the reason in words that a user reads.  ``access``: to the language model it asks."""

    name: str
    why: str
    access: Access | None = None

    @property
    def by(self) -> str:
        """Who writes the kernels, for people."""
        return "synthesizer, then by a language model" if self.access is not None else self.name

    def proposers(self, place: Workplace) -> tuple[Proposer, ...]:
        """The proposers that a task is given to, one after another.

        A language model comes after the synthesizer: it is told what it has to beat, and where it fails there is a
        kernel.
        """
        if self.name == "manual":
            return (Manual(place),)
        if self.access is not None:
            from .language_model import LanguageModel

            return (Synthesizer(), LanguageModel(self.access, place))
        return (Synthesizer(),)


def choose(name: str, model: str | None, environment: Mapping[str, str] | None = None) -> Choice:
    """What ``--proposer name`` means here.

    ``auto`` is openai where OPENAI_API_KEY or OPENAI_BASE_URL is set and ``--model`` or OPENAI_MODEL names a model;
    otherwise the synthesizer.  Raises UserError for an unknown name, and for openai without one of them.
    """
    environment = os.environ if environment is None else environment
    if name not in NAMES:
        raise UserError(f"--proposer {name}: no such proposer", f"There are {', '.join(NAMES)}.")
    if name not in ("auto", "openai"):
        if model:
            raise UserError(f"--model {model}: the {name} proposer asks no language model", "Leave --model out.")
        return Choice(name, "asked for")
    found = access(model, environment)
    if isinstance(found, Access):
        return Choice("openai", f"{found.model} at {found.address}", found)
    if name == "openai":
        raise UserError(
            f"--proposer openai: {found}",
            "Set OPENAI_API_KEY (or OPENAI_BASE_URL for an endpoint of your own) and name a model: --model NAME. "
            "The synthesizer needs neither.",
        )
    return Choice("synthesizer", found)
