"""Which proposer a run uses, and why: ``--proposer auto|openai|synthesizer|manual``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from knowledge_base.errors import UserError

from .base import Proposer
from .manual import Manual
from .synthesizer import Synthesizer

NAMES = ("auto", "synthesizer", "manual", "openai")
NO_LLM = "this version has no proposer that asks a language model"


@dataclass(frozen=True)
class Choice:
    """A proposer's name, and the reason in words that a user reads."""

    name: str
    why: str

    def proposer(self, folder: Path, say: Callable[[str], None], stop: Callable[[], bool]) -> Proposer:
        """The proposer.  ``folder``: what it writes for people; ``say``: tells the user; ``stop``: true ends it."""
        if self.name == "manual":
            return Manual(folder, say, stop)
        return Synthesizer()


def choose(name: str, model: str | None, environment: Mapping[str, str] | None = None) -> Choice:
    """What ``--proposer name`` means here.

    ``auto`` is openai where OPENAI_API_KEY or OPENAI_BASE_URL is set and ``--model`` or OPENAI_MODEL names a model;
    otherwise the synthesizer.  Raises UserError for an unknown name, and for openai as long as it is not there.
    """
    environment = os.environ if environment is None else environment
    if name not in NAMES:
        raise UserError(f"--proposer {name}: no such proposer", f"There are {', '.join(NAMES)}.")
    if name == "openai":
        raise UserError(f"--proposer openai: {NO_LLM}", "Use --proposer synthesizer (no key needed) or manual.")
    if name != "auto":
        if model:
            raise UserError(f"--model {model}: the {name} proposer asks no language model", "Leave --model out.")
        return Choice(name, "asked for")
    endpoint = next((v for v in ("OPENAI_API_KEY", "OPENAI_BASE_URL") if environment.get(v)), "")
    named = model or environment.get("OPENAI_MODEL", "")
    if not endpoint:
        return Choice("synthesizer", "neither OPENAI_API_KEY nor OPENAI_BASE_URL is set")
    if not named:
        return Choice("synthesizer", f"{endpoint} is set, but neither --model nor OPENAI_MODEL names a model")
    return Choice("synthesizer", f"{endpoint} and model {named} are set, but {NO_LLM}")
