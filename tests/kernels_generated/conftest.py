"""A driver's bindings that record, where those of the CUDA driver would be."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from recorded_driver import RecordedCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> RecordedCuda:
    recorded = RecordedCuda()
    package = ModuleType("cuda.bindings")
    package.driver = recorded  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    return recorded
