"""``agent compare``: a whole model of PyTorch on generated kernels beside itself, in a process of its own.

:mod:`.comparing` asks that process, whose main program is :mod:`.model_process`; :mod:`.sources` has it build the
model, :mod:`.versus` compare.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .comparing import Asked as Asked
    from .comparing import compared as compared
else:
    __getattr__, __all__ = exports(__name__, comparing=["Asked", "compared"])
