"""The proposer ``openai``: a language model writes the kernel, at any endpoint that speaks OpenAI's protocol.

:mod:`.model_proposer` decides what is asked and when, :mod:`.endpoint` asks, :mod:`.answers` reads a file out of what
comes back, :mod:`.budget` keeps what is spent within its limits, :mod:`.prices` says what a call costs.  What the model
is told is written by :mod:`prompts`.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .budget import Allowance as Allowance
    from .budget import Spent as Spent
    from .budget import charged as charged
    from .model_proposer import LanguageModel as LanguageModel
    from .prices import Price as Price
    from .prices import price_of as price_of
else:
    __getattr__, __all__ = exports(
        __name__,
        budget=["Allowance", "Spent", "charged"],
        model_proposer=["LanguageModel"],
        prices=["Price", "price_of"],
    )
