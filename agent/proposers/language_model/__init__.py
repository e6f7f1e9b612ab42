"""The proposer ``openai``: a language model writes the kernel, at any endpoint that speaks OpenAI's protocol.

:mod:`.model_proposer` decides what is asked and when, :mod:`.endpoint` asks, :mod:`.answers` reads a file out of what
comes back, :mod:`.prices` says what it cost.  What the model is told is written by :mod:`prompts`.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .model_proposer import LanguageModel as LanguageModel
else:
    __getattr__, __all__ = exports(__name__, model_proposer=["LanguageModel"])
