"""The measured landscapes that ship: each row is of a file that ships with it, at values that its axes list."""

from __future__ import annotations

import hashlib

import pytest

from evaluator.trace import read_axes
from knowledge_base.landscapes import LANDSCAPES, landscape, landscape_sources

NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in LANDSCAPES.glob("*.jsonl.gz"))


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_a_time_where_they_are_right_and_say_what_is_wrong_otherwise(name: str) -> None:
    rows = landscape(name)
    assert len({row.model_dump_json() for row in rows}) == len(rows) > 100
    assert all((row.us is not None) == (row.status == "correct") for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_configurations_of_their_files(name: str) -> None:
    """Rows of kernels written by hand have no file."""
    by_source = {source: read_axes(text) for source, text in landscape_sources().items()}
    rows = [row for row in landscape(name) if row.source]
    assert bool(rows) == (name != "h200_sweeps")
    for row in rows:
        axes = by_source[row.source]
        assert isinstance(axes, dict)
        assert set(row.axes) == set(axes)
        assert all(value in axes[axis] for axis, value in row.axes.items())


def test_files_are_named_by_their_digests() -> None:
    for source, text in landscape_sources().items():
        assert hashlib.sha256(text.encode()).hexdigest().startswith(source)
