"""Baselines: how else a task can be computed on a GPU, to be timed beside a kernel of ours for the same work.

:mod:`.table` has them by name.  :mod:`.torch_program` writes a graph as PyTorch calls, :mod:`.libraries` has the calls
of other libraries, each of which may be missing.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .table import BASELINES as BASELINES
    from .table import Lacking as Lacking
else:
    __getattr__, __all__ = exports(__name__, table=["BASELINES", "Lacking"])
