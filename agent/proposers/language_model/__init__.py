"""The proposer ``openai``: a language model writes the kernel, at any endpoint that speaks OpenAI's protocol.

:mod:`.model_proposer` decides what is asked and when, :mod:`.endpoint` asks, in the :mod:`.dialect` of the endpoint,
:mod:`.answers` reads a file out of what comes back, :mod:`.budget` keeps what is spent within its limits, and
:mod:`.prices` says what a call costs.  What the model is told is written by :mod:`prompts`.
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
    from .recording import Recording as Recording
    from .recording import read_recording as read_recording
    from .recording import shipped_recordings as shipped_recordings
else:
    __getattr__, __all__ = exports(
        __name__,
        budget=["Allowance", "Spent", "charged"],
        model_proposer=["LanguageModel"],
        prices=["Price", "price_of"],
        recording=["Recording", "read_recording", "shipped_recordings"],
    )
