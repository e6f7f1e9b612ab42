"""What the knowledge base's best kernels take beside other ways to do the same work: `agent bench`.

:mod:`.contests` takes what is known of a target and has it timed; :mod:`.outcomes` is what came of it, as data, and
:mod:`.pictures` shows that.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .contests import Contest as Contest
    from .contests import gathered as gathered
    from .outcomes import outcome as outcome
    from .outcomes import verdict as verdict
    from .pictures import GREEN as GREEN
    from .pictures import draw as draw
    from .pictures import figure_of as figure_of
    from .pictures import roofline as roofline
else:
    __getattr__, __all__ = exports(
        __name__,
        contests=["Contest", "gathered"],
        outcomes=["outcome", "verdict"],
        pictures=["GREEN", "draw", "figure_of", "roofline"],
    )
