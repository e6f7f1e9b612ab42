"""What writes kernels.  :mod:`.base` says what every proposer is, :mod:`.choice` which one a run has."""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .access import Access as Access
    from .base import Offer as Offer
    from .base import Proposal as Proposal
    from .base import ProposalRequest as ProposalRequest
    from .base import Proposer as Proposer
    from .base import Workplace as Workplace
    from .base import snf_file as snf_file
    from .briefs import brief as brief
    from .briefs import request_body as request_body
    from .choice import Choice as Choice
    from .choice import LanguageModelChoice as LanguageModelChoice
    from .choice import choose as choose
    from .choice import replayed as replayed
    from .language_model import Allowance as Allowance
    from .language_model import Recording as Recording
    from .language_model import Spent as Spent
    from .language_model import charged as charged
    from .language_model import read_recording as read_recording
    from .language_model import shipped_recordings as shipped_recordings
else:
    __getattr__, __all__ = exports(
        __name__,
        access=["Access"],
        base=["Offer", "Proposal", "ProposalRequest", "Proposer", "Workplace", "snf_file"],
        briefs=["brief", "request_body"],
        choice=["Choice", "LanguageModelChoice", "choose", "replayed"],
        language_model=["Allowance", "Recording", "Spent", "charged", "read_recording", "shipped_recordings"],
    )
