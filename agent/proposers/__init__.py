"""What writes kernels.  :mod:`.base` says what every proposer is, :mod:`.choice` which one a run has."""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .base import ProposalRequest as ProposalRequest
    from .base import Proposer as Proposer
    from .choice import Choice as Choice
    from .choice import choose as choose
else:
    __getattr__, __all__ = exports(
        __name__,
        base=["ProposalRequest", "Proposer"],
        choice=["Choice", "choose"],
    )
