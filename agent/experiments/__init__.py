"""``agent experiment``: what the knowledge base is worth, tried on measured spaces of configurations."""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .measured_files import Landscape as Landscape
    from .measured_files import known_by as known_by
    from .measured_files import landscapes as landscapes
    from .measured_files import spaces as spaces
    from .measured_files import tried as tried
    from .measured_files import upside_down as upside_down
    from .protocols import compounding as compounding
else:
    __getattr__, __all__ = exports(
        __name__,
        measured_files=["Landscape", "known_by", "landscapes", "spaces", "tried", "upside_down"],
        protocols=["compounding"],
    )
