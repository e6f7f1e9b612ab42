"""Which functions a run goes through, in the order of their first calls; imported by a judge's process as well."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import Any, Self

ROOT = Path(__file__).parents[1]
Step = tuple[str, str]  # a file, from the root; a function's qualified name


class Walk:
    """While it is entered, first calls of the functions of ``stops`` are noted in ``steps``, in all threads."""

    def __init__(self, stops: Collection[Step]) -> None:
        self.steps: list[Step] = []
        self._stops = {(str(ROOT / file), name): (file, name) for file, name in stops}

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            step = self._stops.get((frame.f_code.co_filename, frame.f_code.co_qualname))
            if step is not None and step not in self.steps:
                self.steps.append(step)

    def __enter__(self) -> Self:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def asked(stops: Collection[Step], question: str, *arguments: Any) -> tuple[Any, list[Step]]:
    """In a judge's process: the answer to a question, and the steps that it took."""
    from evaluator.judging.judge_server import QUESTIONS

    with Walk(stops) as walk:
        answer = QUESTIONS[question](*arguments)
    return answer, walk.steps
