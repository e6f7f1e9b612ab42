"""A rule put to the test: the cheapest paired experiment that could refute it, planned and carried out.

:mod:`.places` says at which tasks and sizes, :mod:`.pairing` with which configurations, :mod:`.verifying` measures.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .pairing import Pairing as Pairing
    from .places import PairedPlace as PairedPlace
    from .verifying import Experiment as Experiment
    from .verifying import Outcome as Outcome
    from .verifying import planned as planned
    from .verifying import verified as verified
else:
    __getattr__, __all__ = exports(
        __name__,
        pairing=["Pairing"],
        places=["PairedPlace"],
        verifying=["Experiment", "Outcome", "planned", "verified"],
    )
