"""What is true: trace, compile, emulate, judge and time candidate kernels.

:mod:`.trace` makes launch plans and Tile IR of a candidate's file, in a process that :mod:`.confinement` holds;
:mod:`.compile` makes cubins; :mod:`.tileir` runs Tile IR on the CPU; :mod:`.judging` says whether a candidate is right
and :mod:`.timing` how long it takes.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .kernel import Kernel as Kernel
    from .kernel import refusal as refusal
    from .plans import Plans as Plans
    from .trial import begin as begin
    from .version import evaluator_version as evaluator_version
else:
    __getattr__, __all__ = exports(
        __name__,
        kernel=["Kernel", "refusal"],
        plans=["Plans"],
        trial=["begin"],
        version=["evaluator_version"],
    )
