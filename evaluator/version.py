"""The evaluator's version: a verdict or a modelled time is only as good as the code that gave it.

It is a hash of everything a verdict depends on: the sources of the evaluator, of the task language and of the launch
plan, and the versions of the packages that compile, trace and compute references.  So a change of any of them makes
evaluations new, and a verdict that is reused is one that would be given again.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path

PACKAGES = ("cuda-tile", "nvidia-cuda-tileiras", "nvidia-nvvm", "torch", "numpy")
_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ("evaluator", "knowledge_base/snf", "kernels_generated/runtime")
_FILES = ("knowledge_base/chips.py", "knowledge_base/records.py")


def packages() -> dict[str, str]:
    """Installed versions; an absent package has ``none``."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


@functools.cache
def evaluator_version() -> str:
    """Sixteen hex digits; equal where every source and package is."""
    digest = hashlib.sha256()
    paths = [p for folder in _SOURCES for p in sorted((_ROOT / folder).rglob("*.py"))]
    for path in (*paths, *(_ROOT / name for name in _FILES)):
        digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(repr(sorted(packages().items())).encode())
    return digest.hexdigest()[:16]
