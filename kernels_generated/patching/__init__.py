"""A model that is already there, on generated kernels: its modules that an operator computes are replaced by it.

    import kernels_generated

    print(kernels_generated.patch(model, example))     # what was replaced, what was not, and why
    kernels_generated.unpatch(model)

docs/patching.md has the details.
"""

from __future__ import annotations

from .patch_report import Patched, PatchedModule
from .patched import patch, unpatch
from .torch_backend import tilewright
from .twice import NothingToCompare, difference
from .twice import run as outputs

__all__ = ["NothingToCompare", "Patched", "PatchedModule", "difference", "outputs", "patch", "tilewright", "unpatch"]
