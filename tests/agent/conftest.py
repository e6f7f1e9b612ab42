"""Runs of these tests share judge processes: each imports torch once for all of them.  And what one has answered.

Nearly all of them have the same few kernels judged, of the same task with the same seed: the judge, the tracer, and
what they answer twice are tests/evaluator's.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judged_in_short import judged_in_short
from runner_again import LentPython

from evaluator.judging import JudgeProcess
from evaluator.trace import trace

_answers: dict[bytes, bytes] = {}  # of this process, whatever test


def once(question: tuple[Any, ...], ask: Callable[[], Any]) -> Any:
    """A fresh copy of the real answer, for which the first test that has exactly this question waits."""
    asked = pickle.dumps(question)
    if asked not in _answers:
        _answers[asked] = pickle.dumps(ask())
    return pickle.loads(_answers[asked])


class Asked(JudgeProcess):
    """One that is asked nothing twice, and judges in short but where ``whole`` says otherwise."""

    whole = False

    def call(self, function: Any, *arguments: Any, progress: Any = None) -> Any:
        question = (function, *arguments) if self.whole else (judged_in_short, function, *arguments)
        return once(question, lambda: super(Asked, self).call(*question, progress=progress))


def traced(*question: Any) -> Any:
    return once(("trace", question), lambda: trace(*question))


class Lent:
    """A judge process of a run, or of `agent check`; the next one gets it, unless it was ended while it judged."""

    idle: list[Asked] = []  # noqa: RUF012 (of this process, whatever test)

    def __init__(self) -> None:
        self._process = self.idle.pop() if self.idle else Asked()
        self._judging = threading.Lock()  # a judgement is a fork of the process, so nothing of it stays behind
        self._ended = False

    def judge(self, *arguments: Any, **options: Any) -> Any:
        with self._judging:
            return self._process.judge(*arguments, **options)

    def judge_composed(self, *arguments: Any, **options: Any) -> Any:
        with self._judging:
            return self._process.judge_composed(*arguments, **options)

    def emulate(self, *arguments: Any) -> Any:
        with self._judging:
            return self._process.emulate(*arguments)

    def agreement(self, *arguments: Any) -> Any:
        with self._judging:
            return self._process.agreement(*arguments)

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._judging.acquire(blocking=False):
            self.idle.append(self._process)
        else:
            self._process.kill()

    def __enter__(self) -> Lent:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.fixture(scope="session")
def judge_processes() -> Iterator[None]:
    """They end with the tests."""
    yield
    while Lent.idle:
        Lent.idle.pop().close()
    while LentPython.idle:
        LentPython.idle.pop().end()


@pytest.fixture
def whole_judgements(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that ask what the judge finds."""
    monkeypatch.setattr(Asked, "whole", True)


@pytest.fixture(autouse=True)
def lent_judges(judge_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)  # of judged_in_short
    for module in ("agent.loop.judges", "agent.commands.check"):
        monkeypatch.setattr(f"{module}.JudgeProcess", Lent)
    monkeypatch.setattr("agent.loop.assay.trace", traced)


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run looks at few configurations: which one is best is not what these tests ask."""
    monkeypatch.setattr("agent.loop.task_work.LIMIT", 3)


@pytest.fixture(autouse=True)
def of_copied_bases(copied_bases: None) -> None:
    """How a base is made is not what these tests ask."""
