"""What users import: winners that were promoted, a folder a task, and the :mod:`.runtime` that they need.

    from kernels_generated import ops            # the winners as PyTorch operators
    kernels_generated.patch(model, example)      # and in place of the modules of a model that is already there

docs/operators.md and docs/patching.md have the details.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """``patch`` and ``unpatch`` are loaded with PyTorch, which :mod:`.runtime` does without."""
    if name in ("patch", "unpatch"):
        from kernels_generated import patching

        return getattr(patching, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
