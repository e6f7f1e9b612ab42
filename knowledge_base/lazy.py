"""What a package exports, each name loaded when it is first used.

    if TYPE_CHECKING:
        from .store import Store as Store
    else:
        __getattr__, __all__ = exports(__name__, store=["Store"])

``from knowledge_base import Store`` then imports that one module, so a package may export what needs torch and what
does not, and who imports the one does not wait for the other.  Type checkers read the first branch; a test holds the
two equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def exports(package: str, **modules: Sequence[str]) -> tuple[Callable[[str], Any], list[str]]:
    """A package's ``__getattr__`` and ``__all__``.  ``modules``: by the name of a module in it, what that exports."""
    home = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)  # found at once from now on
        return value

    return load, sorted(home)
