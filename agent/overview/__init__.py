"""A knowledge base on one page of HTML: best kernels, roofline, learning curves, rules with their intervals."""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from .gathering import gather as gather
    from .page import html as html
else:
    __getattr__, __all__ = exports(__name__, gathering=["gather"], page=["html"])
