"""Syntax trees from several threads at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernels_generated.runtime.syntax import parse


class Talkative:
    """Garbage that runs Python when it is collected: then the thread that collects may lose its turn."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sum(range(200))


@pytest.fixture
def busy() -> Iterator[None]:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("busy")
def test_threads_may_read_python_at_the_same_time() -> None:
    """With ast.parse itself this fails at once: CPython counts the depth of a tree once for all threads."""
    text = "x = " + "+".join(f"(a{i} * (b + {i}))" for i in range(60)) + "\n"

    def read(number: int) -> int:
        for _ in range(5):
            Talkative()
        return len(parse(text * 3).body)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(100))) == {3}


def test_errors_are_those_of_the_parser() -> None:
    with pytest.raises(SyntaxError):
        parse("def launch(:\n")
