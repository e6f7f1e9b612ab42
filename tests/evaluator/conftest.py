"""What several tests of the judge share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluator.judging.oracle import Oracle


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """An oracle that has started."""
    with Oracle() as started:
        yield started
