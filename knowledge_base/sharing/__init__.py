"""One base's rows in a file, and in another base: what was tried, what won, what is believed and why (knowledge.md)."""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .giving import give as give
    from .taking import take as take
else:
    __getattr__, __all__ = exports(__name__, giving=["give"], taking=["take"])
